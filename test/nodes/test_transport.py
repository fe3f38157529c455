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
COMPRESSED = "sensor_msgs/msg/CompressedImage"
PROFILE = """<dds xmlns="http://www.eprosima.com"><profiles>
<transport_descriptors><transport_descriptor><transport_id>shm</transport_id><type>{type}</type>
<segment_size>{size}</segment_size></transport_descriptor></transport_descriptors>
<participant profile_name="p" is_default_profile="true"><rtps><userTransports><transport_id>shm</transport_id>
</userTransports><useBuiltinTransports>{builtin}</useBuiltinTransports></rtps></participant></profiles></dds>"""


def spec(**keys: Any) -> FusionSpec:
    image = {"topic": "/camera", "type": "sensor_msgs/msg/Image", **keys}
    joints = {"topic": "/joints", "type": "sensor_msgs/msg/JointState", "names": ["a"]}
    return load_spec({"robocache": 1, "streams": {"front": image, "joints": joints}})


def written(path: Path, size: object, kind: str = "SHM", builtin: str = "false") -> dict[str, str]:
    path.write_text(PROFILE.format(size=size, type=kind, builtin=builtin))
    return {"FASTDDS_DEFAULT_PROFILES_FILE": str(path)}


def warnings(given: FusionSpec, environ: dict[str, str], sizes: dict[str, int] | None = None) -> list[str]:
    return transport.warnings(given, transport.limit(FAST, environ), sizes or {})


IMAGE_BYTES = {"front": 921_600}
LOSES = "front: best effort loses every message larger than Fast DDS' shared memory segment (0.50 MiB)"
CROP = {"crop": [0, 0, 1080, 1920]}


@pytest.mark.parametrize(
    ("stream", "profile_bytes", "sizes", "line"),
    [
        pytest.param({}, 0, IMAGE_BYTES, "front: messages on /camera have up to 0.88 MiB, more than", id="declared"),
        pytest.param({"image": {"size": [640, 480]}}, 0, {}, LOSES, id="a size that is not known"),
        pytest.param({}, 2**26, {}, "", id="a large segment"),
        pytest.param({"image": CROP}, 2**20, {}, "front: messages on /camera have at least 1.98 MiB", id="a crop"),
        pytest.param({"image": CROP, "type": COMPRESSED}, 0, {}, "", id="a crop of a compressed image"),
        pytest.param({"qos": {"reliability": "reliable"}}, 0, IMAGE_BYTES, "", id="reliable"),
    ],
)
def test_messages_above_the_limit_are_warned_of(stream, profile_bytes, sizes, line, tmp_path):
    found = warnings(spec(**stream), written(tmp_path / "p.xml", profile_bytes) if profile_bytes else {}, sizes)
    assert [each[: len(line)] for each in found] == ([line] if line else [])
    assert all("MiB)" in each and "config/fastdds.xml" in each for each in found)


def test_the_shipped_profile_asks_for_acknowledgements_of_the_simulated_robot_ten_times_as_often():
    text = resource("config", "fastdds.xml").read_text(encoding="utf-8")
    period = r'<data_writer profile_name="([^"]+)"[^>]*>\s*<times>\s*<heartbeat_period>\s*<sec>0</sec>\s*<nanosec>(\d+)'
    periods = dict(re.findall(period, text))
    assert periods.pop("robocache_writer") == "100000000"
    assert periods == dict.fromkeys(TYPES.keys() - {SUCCESS, EPISODE}, "10000000")  # those two are sent once an episode


def test_shipped_profile_carries_a_large_camera_and_says_nothing_about_the_drivers_of_others():
    environ = {"FASTDDS_DEFAULT_PROFILES_FILE": str(resource("config", "fastdds.xml"))}
    assert warnings(spec(), environ, {"front": 1920 * 1080 * 3}) == []
    assert transport.fast_dds_bytes(environ) == 64 * 2**20
    chosen = {"ROS_DISTRO": "kilted"}
    transport.use_profile(chosen)
    assert transport.fast_dds_bytes(chosen) == 64 * 2**20
    (line,) = warnings(spec(), chosen)
    assert line.startswith(LOSES)


def test_limit_states_what_is_lost_and_the_way_out():
    found = transport.limit(FAST, {})
    assert found.losses.startswith(LOSES.removeprefix("front: "))
    assert "config/fastdds.xml" in found.losses
    assert transport.limit("rmw_zenoh_cpp", {}) is None
    assert transport.warnings(spec(), None, {"front": 2**30}) == []


def test_profile_of_the_user_is_kept(tmp_path):
    environ = written(tmp_path / "p.xml", 2**20)
    before = dict(environ)
    transport.use_profile(environ)
    assert environ == before


@pytest.mark.parametrize(
    ("profile", "expected"),
    [
        pytest.param({"size": 1000, "builtin": "true"}, 512 * 1024, id="builtin transports count too"),
        pytest.param({"size": 9, "kind": "UDPv4"}, 212992, id="a socket without shared memory"),
        pytest.param({"size": ""}, 512 * 1024, id="no size"),
        pytest.param({"size": "0x100000"}, 512 * 1024, id="hexadecimal"),
        pytest.param({"size": "512 kB"}, 512 * 1024, id="a unit"),
        pytest.param(None, 512 * 1024, id="no file"),
    ],
)
def test_bytes_of_a_profile(profile, expected, tmp_path, monkeypatch):
    (tmp_path / "rmem_max").write_text("212992\n")
    monkeypatch.setattr(transport, "SOCKET_LIMIT", tmp_path / "rmem_max")
    environ = {"FASTDDS_DEFAULT_PROFILES_FILE": str(tmp_path / "none.xml")}
    assert transport.fast_dds_bytes(written(tmp_path / "p.xml", **profile) if profile else environ) == expected
    assert transport.fast_dds_bytes({"FASTDDS_BUILTIN_TRANSPORTS": "UDPv4"}) == 212992
    cyclone = transport.limit(CYCLONE, {})
    assert "net.core.rmem_max" in cyclone.exceeded(spec().streams[0], 300_000)
    assert cyclone.exceeded(spec().streams[0], 57_600) == ""
