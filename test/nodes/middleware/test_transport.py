"""Warnings of messages that the transport loses: by declared sizes, received sizes, or silence."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from robocache_ros.nodes import transport
from robocache_ros.resources import resource
from robocache_ros.sim.simulation import EPISODE, SUCCESS, TYPES
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


def warnings(given: FusionSpec, environ: dict[str, str], sizes: dict[str, int] | None = None) -> list[str]:
    return transport.warnings(given, transport.limit(FAST, environ), sizes or {})


def test_declared_size_above_the_limit_is_warned_of() -> None:
    (line,) = warnings(spec(), {}, {"front": 921_600})

    assert line.startswith("front: messages on /camera have up to 0.88 MiB, more than Fast DDS' shared memory segment")
    assert "0.50 MiB" in line
    assert "config/fastdds.xml" in line


def test_images_of_unknown_size_are_warned_of_where_the_transport_is_small(tmp_path: Path) -> None:
    (line,) = warnings(spec(image={"size": [640, 480]}), {})

    assert line.startswith(
        "front: best effort loses every message larger than Fast DDS' shared memory segment (0.50 MiB)"
    )
    assert warnings(spec(), written(tmp_path / "p.xml", 64 * 2**20)) == []


def test_the_shipped_profile_asks_for_acknowledgements_of_the_simulated_robot_ten_times_as_often() -> None:
    text = resource("config", "fastdds.xml").read_text(encoding="utf-8")
    period = r'<data_writer profile_name="([^"]+)"[^>]*>\s*<times>\s*<heartbeat_period>\s*<sec>0</sec>\s*<nanosec>(\d+)'
    periods = dict(re.findall(period, text))

    assert periods.pop("robocache_writer") == "100000000"
    assert periods == dict.fromkeys(TYPES.keys() - {SUCCESS, EPISODE}, "10000000")  # those two are sent once an episode


def test_shipped_profile_carries_a_large_camera() -> None:
    environ = {"FASTDDS_DEFAULT_PROFILES_FILE": str(resource("config", "fastdds.xml"))}

    assert warnings(spec(), environ, {"front": 1920 * 1080 * 3}) == []
    assert transport.fast_dds_bytes(environ) == 64 * 2**20


def test_crop_tells_how_large_an_image_is_at_least(tmp_path: Path) -> None:
    environ = written(tmp_path / "p.xml", 2**20)

    (line,) = warnings(spec(image={"crop": [0, 0, 1080, 1920]}), environ)
    assert "at least 1.98 MiB" in line


def test_crop_of_a_compressed_image_tells_nothing() -> None:
    compressed = spec(image={"crop": [0, 0, 1080, 1920]}, type="sensor_msgs/msg/CompressedImage")

    assert warnings(compressed, {}) == []


def test_reliable_stream_is_not_warned_of() -> None:
    assert warnings(spec(qos={"reliability": "reliable"}), {}, {"front": 921_600}) == []


def test_limit_states_what_is_lost_and_the_way_out() -> None:
    found = transport.limit(FAST, {})
    assert found

    assert found.losses.startswith(
        "best effort loses every message larger than Fast DDS' shared memory segment (0.50 MiB)"
    )
    assert "config/fastdds.xml" in found.losses


def test_profile_that_this_package_chose_says_nothing_about_the_drivers() -> None:
    environ: dict[str, str] = {"ROS_DISTRO": "kilted"}
    transport.use_profile(environ)

    assert transport.fast_dds_bytes(environ) == 64 * 2**20
    (line,) = warnings(spec(), environ)
    assert line.startswith("front: best effort loses every message larger than")


def test_profile_of_the_user_is_kept(tmp_path: Path) -> None:
    environ = written(tmp_path / "p.xml", 2**20)
    before = dict(environ)

    transport.use_profile(environ)

    assert environ == before


def test_unreadable_profile_counts_as_none(tmp_path: Path) -> None:
    assert transport.fast_dds_bytes({"FASTDDS_DEFAULT_PROFILES_FILE": str(tmp_path / "none.xml")}) == 512 * 1024


def test_builtin_transports_count_next_to_those_of_the_profile(tmp_path: Path) -> None:
    assert transport.fast_dds_bytes(written(tmp_path / "p.xml", 1000, builtin="true")) == 512 * 1024


def test_socket_buffer_is_the_limit_without_shared_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limit = tmp_path / "rmem_max"
    limit.write_text("212992\n")
    monkeypatch.setattr(transport, "SOCKET_LIMIT", limit)

    assert transport.fast_dds_bytes(written(tmp_path / "p.xml", 9, kind="UDPv4")) == 212992
    assert transport.fast_dds_bytes({"FASTDDS_BUILTIN_TRANSPORTS": "UDPv4"}) == 212992
    cyclone = transport.limit(CYCLONE, {})
    assert cyclone
    assert "net.core.rmem_max" in cyclone.exceeded(spec().streams[0], 300_000)
    assert cyclone.exceeded(spec().streams[0], 57_600) == ""


def test_unknown_middleware_has_no_limit() -> None:
    assert transport.limit("rmw_zenoh_cpp", {}) is None
    assert transport.warnings(spec(), None, {"front": 2**30}) == []


@pytest.mark.parametrize("size", ["", "0x100000", "512 kB"])
def test_segment_size_that_is_not_a_number_counts_as_the_default(size: str, tmp_path: Path) -> None:
    assert transport.fast_dds_bytes(written(tmp_path / "p.xml", size)) == 512 * 1024  # type: ignore[arg-type]
