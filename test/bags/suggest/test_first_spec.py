"""The first two commands on recordings with the traits of those that strangers made."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import yaml

from robocache_ros.bags.describe import describe
from robocache_ros.bags.fuse import BagRun
from robocache_ros.bags.reader import Bag
from robocache_ros.bags.source import Topic
from robocache_ros.bags.storage.merge import merged_topics
from robocache_ros.bags.storage.metadata import read_metadata, storage_files
from robocache_ros.bags.suggest.fields import numeric_fields
from robocache_ros.bags.suggest.first_spec import suggest_spec
from robocache_ros.bags.write import write_bag
from robocache_ros.decode.definitions import message_type
from robocache_ros.errors import RoboCacheError
from robocache_ros.spec import FusionSpec, load_spec
from test.bags.conftest import MS, START_NS, numbers, pose
from test.ros1_bags import write_ros1_bag

POSE = "geometry_msgs/msg/PoseStamped"
S = 1000 * MS


def recorded(path: Path, offsets_ns: Sequence[int], *, unset: bool = False) -> Path:
    """50 Hz poses, on a topic for each difference between log time and stamp."""
    messages = [
        (f"/pose_{n}", START_NS + 20 * k * MS, pose(0 if unset else START_NS + 20 * k * MS - offset, k))
        for k in range(100)
        for n, offset in enumerate(offsets_ns)
    ]
    return write_bag(path, {f"/pose_{n}": POSE for n in range(len(offsets_ns))}, messages)


def exported(path: Path) -> tuple[FusionSpec, int]:
    """The suggested spec, and the ticks at which every stream has a value."""
    spec = load_spec(yaml.safe_load(suggest_spec(describe(path))))
    with Bag(path) as bag:
        frames = list(BagRun(bag, spec).frames())
    return spec, sum(int((part.valid > 0).all(axis=1).sum()) for part in frames)


@pytest.mark.parametrize("offset_ns", [START_NS - 7 * S, 6 * S, -300 * 86400 * S])
def test_stamps_on_another_clock_are_the_timeline(offset_ns: int, tmp_path: Path) -> None:
    path = recorded(tmp_path / "bag", [offset_ns])
    spec, ticks = exported(path)

    assert {stream.stamp for stream in spec.streams} == {"header"}
    assert ticks > 90
    assert spec.delay_ms <= 30
    assert describe(path).notes[0].startswith("the timeline follows the header stamps of /pose_0, ")


def test_stamps_of_different_clocks_are_distinguished_in_the_notes(tmp_path: Path) -> None:
    path = recorded(tmp_path / "bag", [0, 0, 3 * 86400 * S, 3 * 86400 * S, -400 * S])
    info = describe(path)

    own = "the timeline: they come from another clock; "
    own += "give their streams `stamp: device`, which translates them, as --write-spec does"
    assert info.notes == (
        f"/pose_2, /pose_3: stamps are 2.59e5 s behind {own}",
        f"/pose_4: stamps are 400.0 s ahead of {own}",
    )
    spec, ticks = exported(path)
    assert [stream.stamp for stream in spec.streams] == ["header", "header", "device", "device", "device"]
    assert ticks > 90
    assert "`stamp: device` translates" in suggest_spec(info)


def test_stamps_that_are_not_set_give_a_spec_by_arrival(tmp_path: Path) -> None:
    path = recorded(tmp_path / "bag", [0], unset=True)
    info = describe(path)

    assert info.topics["/pose_0"].stats.rate_hz == pytest.approx(50)
    assert "stamps are not set" in info.notes[0]
    assert exported(path)[1] > 90


def test_stamps_slightly_ahead_of_the_log_are_on_its_clock(tmp_path: Path) -> None:
    path = recorded(tmp_path / "bag", [-5 * MS])
    spec, ticks = exported(path)

    assert {stream.stamp for stream in spec.streams} == {"header"}
    assert spec.delay_ms <= 30
    assert ticks > 90


def test_a_few_stamps_far_off_do_not_make_the_delay_endless(tmp_path: Path) -> None:
    messages = [
        ("/pose", START_NS + 20 * k * MS, pose(START_NS + 20 * k * MS - (90 * S if k == 50 else 0))) for k in range(100)
    ]
    spec, ticks = exported(write_bag(tmp_path / "bag", {"/pose": POSE}, messages))

    assert spec.streams[0].stamp == "header"
    assert spec.delay_ms <= 30
    assert ticks > 80


def test_a_stream_by_arrival_does_not_need_a_valid_stamp(tmp_path: Path) -> None:
    data = b"\0\1\0\0" + struct.pack("<iII4x7d", 0, 2**31, 1, *[0.0] * 6, 1.0)  # nanoseconds beyond a second
    messages = [("/pose", START_NS + 20 * k * MS, data) for k in range(50)]

    assert exported(write_bag(tmp_path / "bag", {"/pose": POSE}, messages))[1] > 40


def test_short_type_names_are_read_as_full_ones() -> None:
    source = SimpleNamespace(topics=(Topic("/a", "sensor_msgs/Image", 1), Topic("/b", "x_msgs/srv/Y_Event", 1)))

    assert [t.type for t in merged_topics([source]).values()] == ["sensor_msgs/msg/Image", "x_msgs/srv/Y_Event"]  # type: ignore[list-item]


def test_the_error_of_a_short_type_names_the_full_one() -> None:
    with pytest.raises(RoboCacheError, match=r"'sensor_msgs/Image' is not a message type .*; write sensor_msgs/msg/Im"):
        load_spec({"robocache": 1, "streams": {"front": {"topic": "/front", "type": "sensor_msgs/Image"}}})


def test_a_renamed_storage_file_is_read_and_noted(tmp_path: Path) -> None:
    path = recorded(tmp_path / "bag", [0])
    next(path.glob("*.mcap")).rename(path / "other.mcap")
    info = describe(path)

    assert info.topics["/pose_0"].stats.count == 100
    assert info.notes == ("metadata.yaml names bag.mcap, which does not exist; other.mcap was read instead",)


def test_several_files_of_other_recordings_are_not_read_in_place_of_a_missing_one(tmp_path: Path) -> None:
    path = recorded(tmp_path / "bag", [0])
    file = next(path.glob("*.mcap"))
    for name in ("left.mcap", "right.mcap"):
        (path / name).write_bytes(file.read_bytes())
    file.unlink()
    with pytest.raises(RoboCacheError, match="is missing; copy the complete folder"):
        describe(path)


def test_numeric_fields_of_a_custom_type_are_proposed() -> None:
    text = "std_msgs/Header header\nuint32 rows\nfloat32[] data\nfloat64[9] covariance\nstring name\n"
    text += "float32[] ragged\ngeometry_msgs/Quaternion q\nfloat64 speed\nuint8[] blob\nTail[] tails\n"
    text += "=" * 80 + "\nMSG: my_msgs/Tail\nfloat32 a\nfloat32 b\n"
    tails = [SimpleNamespace(a=1.0, b=2.0)]
    q = SimpleNamespace(x=0.0, y=0.0, z=0.0, w=1.0)
    messages = [
        SimpleNamespace(
            name="rig", rows=3, data=np.arange(4.0) + k, ragged=[1.0] * k, q=q, speed=k, blob=bytes(100), tails=tails
        )
        for k in range(3)
    ]
    found, others = numeric_fields(message_type("my_msgs/msg/Rig", {"my_msgs/msg/Rig": text}), messages)

    dims = {field.path: field.dim for field in found}
    assert dims == {"rows": 1, "data": 4, "q": 4, "speed": 1, "tails[0]": 2}
    assert [field.path for field in found if field.is_quaternion] == ["q"]
    assert others == ["covariance (not a measurement)", "ragged (0 to 2 elements)", "blob (100 elements)"]


def test_fields_of_a_type_without_a_rule_become_streams(tmp_path: Path) -> None:
    kind = "geometry_msgs/msg/Vector3Stamped"
    messages = [
        (
            "/field",
            START_NS + 20 * k * MS,
            b"\0\1\0\0" + struct.pack("<iII4x3d", *divmod(START_NS + 20 * k * MS, S), 1, k, -k, 0.5),
        )
        for k in range(50)
    ]
    spec, ticks = exported(write_bag(tmp_path / "bag", {"/field": kind}, messages))

    assert [(s.name, s.field, s.dim, s.align, s.stamp) for s in spec.streams] == [
        ("field_vector", ("vector.x", "vector.y"), 2, "linear", "header")
    ]
    assert ticks > 40


def test_one_message_a_topic_is_refused_in_a_complete_sentence(tmp_path: Path) -> None:
    path = write_bag(
        tmp_path / "bag", {f"/p{n}": POSE for n in range(4)}, [(f"/p{n}", START_NS, pose(START_NS)) for n in range(4)]
    )
    with pytest.raises(RoboCacheError) as caught:
        suggest_spec(describe(path))
    assert str(caught.value).endswith(
        ": no topic has enough messages to be a stream (4 topics, 1 message each); record for longer"
    )


@pytest.mark.parametrize("as_folder", [True, False])
def test_the_spec_suggested_for_a_bag_of_ros_1_is_that_of_the_same_recording_of_ros_2(
    as_folder: bool, tmp_path: Path
) -> None:
    messages = [("/pose", START_NS + 20 * k * MS, pose(START_NS + 20 * k * MS)) for k in range(100)]
    file = tmp_path / "ros1" / "ros2"
    file.parent.mkdir()
    write_ros1_bag(file.with_suffix(".bag"), {"/pose": POSE}, messages)
    expected = suggest_spec(describe(write_bag(tmp_path / "ros2", {"/pose": POSE}, messages)))
    found = suggest_spec(describe(file.parent if as_folder else file.with_suffix(".bag")))
    assert found.splitlines()[1:] == expected.splitlines()[1:]  # the first line names the recording


def test_a_topic_of_a_few_moments_is_an_event(tmp_path: Path) -> None:
    messages = [("/pose", START_NS + 20 * k * MS, pose(START_NS + 20 * k * MS)) for k in range(500)]
    messages += [("/burst", START_NS + 20 * k * MS + 1, numbers(k)) for k in range(10)]
    types = {"/pose": POSE, "/burst": "std_msgs/msg/Float64MultiArray"}
    text = suggest_spec(describe(write_bag(tmp_path / "bag", types, sorted(messages, key=lambda m: m[1]))))

    assert "/burst (std_msgs/msg/Float64MultiArray): 10 messages only, in 0.2 s of the recording: an event" in text


def test_a_topic_that_is_often_silent_is_held(tmp_path: Path) -> None:
    ends_ms = {"/pose_0": 4000, "/pose_1": 1500}
    messages = [
        (topic, START_NS + ms * MS, pose(START_NS + ms * MS, ms))
        for topic, end_ms in ends_ms.items()
        for ms in range(0, end_ms, 20)
    ]
    path = write_bag(tmp_path / "bag", dict.fromkeys(ends_ms, POSE), sorted(messages, key=lambda message: message[1]))

    spec, ticks = exported(path)

    assert {stream.topic: stream.on_invalid for stream in spec.streams} == {"/pose_0": "split", "/pose_1": "hold"}
    assert ticks > 190


def test_a_tiny_image_keeps_its_size(tmp_path: Path) -> None:
    data = b"\0\1\0\0" + struct.pack("<iII4xIII", 1, 0, 1, 2, 2, 6) + b"mono8\0" + b"\0" * 2
    data += struct.pack("<II4B", 2, 4, 1, 2, 3, 4)
    messages = [("/image", START_NS + 20 * k * MS, data) for k in range(5)]
    text = suggest_spec(describe(write_bag(tmp_path / "bag", {"/image": "sensor_msgs/msg/Image"}, messages)))

    assert "size: [2, 2]" in text


def test_metadata_with_aliases_is_read(tmp_path: Path) -> None:
    path = recorded(tmp_path / "bag", [0])
    file = path / "metadata.yaml"
    text = file.read_text().replace("starting_time:", "starting_time: &start", 1)
    assert "&start" in text
    file.write_text(f"{text}  again: *start\n")

    assert [found.name for found in storage_files(path)] == ["bag.mcap"]
    assert read_metadata(path).counts == {"/pose_0": 100}
