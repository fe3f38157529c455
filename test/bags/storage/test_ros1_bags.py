"""ROS 1 bags of format 2.0, complete and damaged, are read as recordings of ROS 2."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("rosbags", reason="needs the `bags` extra")

from robocache_ros.bags.reader import Bag
from robocache_ros.bags.source import RawMessage
from robocache_ros.bags.storage.ros1 import ROS1_MAGIC
from robocache_ros.bags.write import write_bag
from robocache_ros.errors import RoboCacheError
from test.fuzz.recordings import TYPES, messages
from test.ros1_bags import write_ros1_bag


def bag(path: Path, **options: Any) -> Path:
    return write_ros1_bag(path / "lift.bag", TYPES, messages(), chunk_bytes=2000, **options)


def read(path: Path) -> tuple[list[RawMessage], list[str]]:
    with Bag(path) as opened:
        found = list(opened.messages())
        return found, opened.notes


@pytest.mark.parametrize("compression", ["none", "lz4", "bz2"])
def test_a_bag_gives_the_messages_of_the_same_recording_of_ros_2(tmp_path: Path, compression: str) -> None:
    expected = read(write_bag(tmp_path / "ros2", TYPES, messages()))
    found = read(bag(tmp_path, compression=compression))
    assert found == expected
    assert found[1] == []


def test_topics_have_the_names_types_and_counts_of_ros_2(tmp_path: Path) -> None:
    with Bag(bag(tmp_path, latched=("/arm/command",))) as opened:
        assert {t.name: (t.type, t.count, t.latched) for t in opened.topics.values()} == {
            "/arm/pose": ("geometry_msgs/msg/PoseStamped", 100, False),
            "/arm/command": ("std_msgs/msg/Float64MultiArray", 40, True),
        }
        assert "seq" not in opened.definitions["geometry_msgs/msg/PoseStamped"]


def test_a_topic_without_its_leading_slash_gets_one(tmp_path: Path) -> None:
    types = {"arm//pose": TYPES["/arm/pose"]}
    given = [("arm//pose", log_ns, data) for topic, log_ns, data in messages() if topic == "/arm/pose"]
    with Bag(write_ros1_bag(tmp_path / "x.bag", types, given)) as opened:
        assert list(opened.topics) == ["/arm/pose"]


def test_messages_of_unsorted_chunks_come_in_log_order(tmp_path: Path) -> None:
    given = messages()
    shuffled = given[70:] + given[:70]
    write_ros1_bag(tmp_path / "x.bag", TYPES, shuffled, chunk_bytes=1000)
    assert read(tmp_path / "x.bag")[0] == given


def test_splits_of_a_bag_are_one_recording(tmp_path: Path) -> None:
    given = messages()
    write_ros1_bag(tmp_path / "lift_2024-05-01-12-00-00_0.bag", TYPES, given[:50])
    write_ros1_bag(tmp_path / "lift_2024-05-01-12-10-00_1.bag", TYPES, given[50:])
    assert read(tmp_path) == (given, [])


def test_bags_that_are_not_splits_are_refused_as_one_recording(tmp_path: Path) -> None:
    for name in ("lift.bag", "drop.bag"):
        write_ros1_bag(tmp_path / name, TYPES, messages())
    with pytest.raises(RoboCacheError, match=r"2 ROS 1 bags that are not splits of one recording"):
        Bag(tmp_path)


def test_a_bag_next_to_its_conversion_is_unchanged(tmp_path: Path) -> None:
    write_bag(tmp_path / "lift", TYPES, messages())
    write_ros1_bag(tmp_path / "lift" / "lift.bag", TYPES, messages()[:3])
    assert len(read(tmp_path / "lift")[0]) == len(messages())


def test_a_folder_named_as_a_bag_is_a_recording_of_ros_2(tmp_path: Path) -> None:
    assert read(write_bag(tmp_path / "lift.bag", TYPES, messages())) == (messages(), [])


def without_index(data: bytes) -> bytes:
    """A bag as a crashed recorder leaves it: no place of the index in the header, and no index."""
    at = data.index(b"index_pos=") + len(b"index_pos=")
    (index_at,) = struct.unpack_from("<Q", data, at)
    return data[:at] + bytes(8) + data[at + 8 : index_at]


@pytest.mark.parametrize("name", ["lift.bag", "lift.bag.active"])
def test_a_bag_without_index_is_read_and_that_is_noted(tmp_path: Path, name: str) -> None:
    data = bag(tmp_path).read_bytes()
    (tmp_path / "crash").mkdir()
    (tmp_path / "crash" / name).write_bytes(without_index(data))
    found, notes = read(tmp_path / "crash" / name)
    assert found == messages()
    assert notes == [f"{name}: has no index, as after a crash of the recorder; its records were read one by one"]


def test_the_unfinished_last_chunk_of_a_crashed_recorder_is_read(tmp_path: Path) -> None:
    path = write_ros1_bag(tmp_path / "x.bag", TYPES, messages())  # one chunk
    data = bytearray(without_index(path.read_bytes()))
    size_at = data.index(b"size=") + len(b"size=")
    index_record = data.index(b"op=\x04") - 8  # the first index record, which a crash leaves out
    length_at = data.index(b"op=\x05") - 4
    (header,) = struct.unpack_from("<I", data, length_at - 4)
    data[size_at : size_at + 4] = bytes(4)
    data[length_at + header : length_at + header + 4] = bytes(4)
    path.write_bytes(data[: index_record - 20])  # and the last message is cut
    found, notes = read(path)
    assert found == [m for m in messages() if m in found]
    assert len(found) == len(messages()) - 1
    assert notes[-1] == "x.bag: 1 chunks are incomplete; 139 messages were recovered"


def test_a_cut_bag_is_read_up_to_the_cut(tmp_path: Path) -> None:
    path = bag(tmp_path)
    path.write_bytes(path.read_bytes()[:20_000])
    found, notes = read(path)
    assert 0 < len(found) < len(messages())
    assert found == messages()[: len(found)]
    assert any("its index is truncated" in note or "its index is damaged" in note for note in notes)
    assert any("damaged or incomplete and were not read" in note for note in notes)


def test_messages_of_a_damaged_chunk_are_counted(tmp_path: Path) -> None:
    path = bag(tmp_path, compression="bz2")
    data = bytearray(path.read_bytes())
    at = data.index(b"BZh9", data.index(b"BZh9") + 1) + 60
    data[at] ^= 0xFF
    path.write_bytes(data)
    found, notes = read(path)
    assert len(found) < len(messages())
    (note,) = [note for note in notes if "chunks are damaged" in note]
    assert f"; {len(messages()) - len(found)} messages could not be read" in note


def test_a_damaged_chunk_of_a_bag_without_index_is_noted(tmp_path: Path) -> None:
    path = bag(tmp_path, compression="lz4")
    data = bytearray(without_index(path.read_bytes()))
    index = data.index(b"op=\x04") - 8
    first = data.index(b"\x04\x22\x4d\x18")  # LZ4's magic
    data[first + 20] ^= 0xFF
    path.write_bytes(data[:index])  # the first chunk, without its index records
    with pytest.raises(RoboCacheError, match="1 chunks without an index are damaged and could not be read"):
        Bag(path)


def test_a_chunk_of_more_messages_than_any_recorder_writes_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("robocache_ros.bags.storage.ros1.MAX_MESSAGES", 20)
    path = write_ros1_bag(tmp_path / "x.bag", TYPES, messages())
    found, notes = read(path)
    assert found == []
    assert notes == ["x.bag: 1 of 1 chunks are damaged; 140 messages could not be read"]


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"#ROSBAG V1.2\n" + bytes(100), "a ROS 1 bag of format 1.2, not 2.0; migrate it with 'rosbag reindex'"),
        (b"something else" * 10, "not a ROS 1 bag"),
        (b"", "empty; record it again"),
        (ROS1_MAGIC, "has no messages|its header is damaged"),
    ],
)
def test_what_is_no_bag_of_format_2_0_is_refused_in_one_line(tmp_path: Path, data: bytes, why: str) -> None:
    path = tmp_path / "x.bag"
    path.write_bytes(data)
    with pytest.raises(RoboCacheError, match=why) as refused:
        Bag(path)
    assert len(str(refused.value)) < 200 + len(str(path))
    assert str(refused.value).isprintable()
