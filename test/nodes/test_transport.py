"""What is said at the start of streams that the transport will lose."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from robocache_ros.nodes import transport
from robocache_ros.resources import resource
from robocache_ros.spec import FusionSpec, load_spec

FAST, CYCLONE = "rmw_fastrtps_cpp", "rmw_cyclonedds_cpp"
PROFILE = """<dds xmlns="http://www.eprosima.com"><profiles>
<transport_descriptors><transport_descriptor><transport_id>shm</transport_id><type>{type}</type>
<segment_size>{size}</segment_size></transport_descriptor></transport_descriptors>
<participant profile_name="p" is_default_profile="true"><rtps><userTransports><transport_id>shm</transport_id>
</userTransports><useBuiltinTransports>{builtin}</useBuiltinTransports></rtps></participant></profiles></dds>"""


def spec(**keys: Any) -> FusionSpec:
    image = {"topic": "/camera", "type": "sensor_msgs/msg/Image", **keys}
    joints = {"topic": "/joints", "type": "sensor_msgs/msg/JointState", "names": ["a"]}
    return load_spec({"robocache": 1, "streams": {"front": image, "joints": joints}})


def written(path: Path, size: int, kind: str = "SHM", builtin: str = "false") -> dict[str, str]:
    path.write_text(PROFILE.format(size=size, type=kind, builtin=builtin))
    return {"FASTDDS_DEFAULT_PROFILES_FILE": str(path)}


def test_default_settings_lose_raw_images() -> None:
    (line,) = transport.warnings(spec(), FAST, {})

    assert line.startswith("front: messages of /camera are lost where they are larger than")
    assert "0.50 MiB" in line
    assert "config/fastdds.xml" in line


def test_shipped_profile_loses_nothing() -> None:
    environ = {"FASTDDS_DEFAULT_PROFILES_FILE": str(resource("config", "fastdds.xml"))}

    assert transport.warnings(spec(), FAST, environ) == []
    assert transport.fast_dds_bytes(environ) == 64 * 2**20


def test_crop_tells_how_large_an_image_must_be(tmp_path: Path) -> None:
    environ = written(tmp_path / "p.xml", 4 * 2**20)

    assert transport.warnings(spec(), FAST, environ) == []
    assert transport.warnings(spec(image={"crop": [0, 0, 1080, 1920]}), FAST, environ)


@pytest.mark.parametrize(
    "keys",
    [{"qos": {"reliability": "reliable"}}, {"type": "sensor_msgs/msg/CompressedImage"}],
    ids=["reliable", "jpeg"],
)
def test_what_is_sent_again_or_small_is_not_warned_of(keys: dict[str, Any]) -> None:
    assert transport.warnings(spec(**keys), FAST, {}) == []


def test_profile_that_cannot_be_read_counts_as_none(tmp_path: Path) -> None:
    assert transport.fast_dds_bytes({"FASTDDS_DEFAULT_PROFILES_FILE": str(tmp_path / "none.xml")}) == 512 * 1024


def test_builtin_transports_stay_beside_those_of_the_profile(tmp_path: Path) -> None:
    assert transport.fast_dds_bytes(written(tmp_path / "p.xml", 1000, builtin="true")) == 512 * 1024


def test_without_shared_memory_the_sockets_decide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limit = tmp_path / "rmem_max"
    limit.write_text("212992\n")
    monkeypatch.setattr(transport, "SOCKET_LIMIT", limit)

    assert transport.fast_dds_bytes(written(tmp_path / "p.xml", 9, kind="UDPv4")) == 212992
    assert transport.fast_dds_bytes({"FASTDDS_BUILTIN_TRANSPORTS": "UDPv4"}) == 212992
    assert "net.core.rmem_max" in transport.warnings(spec(), CYCLONE, {})[0]


def test_middleware_that_is_not_known_is_not_judged() -> None:
    assert transport.warnings(spec(), "rmw_zenoh_cpp", {}) == []
