"""ROS 1: bags of format 2.0 and messages in MCAP files, complete and damaged, are read as recordings of ROS 2."""

import re
import struct

import numpy as np
import pytest
from rosbags.typesys import Stores, get_typestore

from robocache_ros.bags.reader import Bag
from robocache_ros.bags.storage.ros1 import ROS1_MAGIC, ToCdr, ros2_definition, ros2_type
from robocache_ros.bags.write import write_bag
from robocache_ros.decode.definitions import message_type
from robocache_ros.errors import RoboCacheError
from test.bags.conftest import read
from test.fuzz.mcap_writer import McapLayout, write_mcap
from test.fuzz.recordings import ARRAY, POSE, TYPES, messages
from test.ros1_bags import write_ros1_bag


def bag(path, **options):
    return write_ros1_bag(path / "lift.bag", TYPES, messages(), chunk_bytes=2000, **options)


def test_topics_have_the_names_types_and_counts_of_ros_2(tmp_path):
    with Bag(bag(tmp_path, latched=("/arm/command",))) as opened:
        assert {t.name: (t.type, t.count, t.latched) for t in opened.topics.values()} == {
            "/arm/pose": (POSE, 100, False),
            "/arm/command": (ARRAY, 40, True),
        }
        assert "seq" not in opened.definitions[POSE]
    given = [("arm//pose", log_ns, data) for topic, log_ns, data in messages() if topic == "/arm/pose"]
    with Bag(write_ros1_bag(tmp_path / "x.bag", {"arm//pose": POSE}, given)) as opened:
        assert list(opened.topics) == ["/arm/pose"]  # with its leading slash, and one of each


def test_messages_of_unsorted_chunks_and_of_splits_come_in_log_order(tmp_path):
    given, splits = messages(), tmp_path / "splits"
    splits.mkdir()
    write_ros1_bag(tmp_path / "x.bag", TYPES, given[70:] + given[:70], chunk_bytes=1000)
    write_ros1_bag(splits / "lift_2024-05-01-12-00-00_0.bag", TYPES, given[:50])
    write_ros1_bag(splits / "lift_2024-05-01-12-10-00_1.bag", TYPES, given[50:])
    assert read(tmp_path / "x.bag") == read(splits) == (given, [])


def test_bags_that_are_not_splits_are_refused_as_one_recording(tmp_path):
    for name in ("lift.bag", "drop.bag"):
        write_ros1_bag(tmp_path / name, TYPES, messages())
    with pytest.raises(RoboCacheError, match=r"2 ROS 1 bags that are not splits of one recording"):
        Bag(tmp_path)


def test_a_folder_of_ros_2_that_is_named_as_a_bag_or_has_one_is_a_recording_of_ros_2(tmp_path):
    folder = write_bag(tmp_path / "lift.bag", TYPES, messages())
    assert read(folder) == (messages(), [])
    write_ros1_bag(folder / "lift.bag", TYPES, messages()[:3])
    assert read(folder)[0] == messages()


def without_index(data):
    """A bag as a crashed recorder leaves it: no place of the index in the header, and no index."""
    at = data.index(b"index_pos=") + len(b"index_pos=")
    (index_at,) = struct.unpack_from("<Q", data, at)
    return data[:at] + bytes(8) + data[at + 8 : index_at]


@pytest.mark.parametrize("name", ["lift.bag", "lift.bag.active"])
def test_a_bag_without_index_is_read_and_that_is_noted(tmp_path, name):
    data = without_index(bag(tmp_path).read_bytes())
    (tmp_path / "crash").mkdir()
    notes = [f"{name}: has no index, as after a crash of the recorder; its records were read one by one"]
    assert read(tmp_path / "crash" / name, data) == (messages(), notes)


def test_the_unfinished_last_chunk_of_a_crashed_recorder_is_read(tmp_path):
    path = write_ros1_bag(tmp_path / "x.bag", TYPES, messages())  # one chunk
    data = bytearray(without_index(path.read_bytes()))
    size_at = data.index(b"size=") + len(b"size=")
    index_record = data.index(b"op=\x04") - 8  # the first index record, which a crash leaves out
    length_at = data.index(b"op=\x05") - 4
    (header,) = struct.unpack_from("<I", data, length_at - 4)
    data[size_at : size_at + 4] = bytes(4)
    data[length_at + header : length_at + header + 4] = bytes(4)
    found, notes = read(path, data[: index_record - 20])  # and the last message is cut
    assert found == [m for m in messages() if m in found]
    assert len(found) == 139
    assert notes[-1] == "x.bag: 1 chunks are incomplete; 139 messages were recovered"


def test_a_cut_bag_is_read_up_to_the_cut(tmp_path):
    path = bag(tmp_path)
    found, notes = read(path, path.read_bytes()[:20_000])
    assert 0 < len(found) < len(messages())
    assert found == messages()[: len(found)]
    assert re.search(r"its index is (truncated|damaged)", "\n".join(notes))
    assert "damaged or incomplete and were not read" in "\n".join(notes)


def test_messages_of_a_damaged_chunk_are_counted(tmp_path):
    path = bag(tmp_path, compression="bz2")
    data = bytearray(path.read_bytes())
    data[data.index(b"BZh9", data.index(b"BZh9") + 1) + 60] ^= 0xFF
    found, notes = read(path, data)
    assert len(found) < len(messages())
    (note,) = [note for note in notes if "chunks are damaged" in note]
    assert f"; {len(messages()) - len(found)} messages could not be read" in note


def test_a_damaged_chunk_of_a_bag_without_index_is_noted(tmp_path):
    path = bag(tmp_path, compression="lz4")
    data = bytearray(without_index(path.read_bytes()))
    data[data.index(b"\x04\x22\x4d\x18") + 20] ^= 0xFF  # behind LZ4's magic
    with pytest.raises(RoboCacheError, match="1 chunks without an index are damaged and could not be read"):
        read(path, data[: data.index(b"op=\x04") - 8])  # the first chunk, without its index records


def test_a_chunk_of_more_messages_than_any_recorder_writes_is_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr("robocache_ros.bags.storage.ros1.MAX_MESSAGES", 20)
    notes = ["x.bag: 1 of 1 chunks are damaged; 140 messages could not be read"]
    assert read(write_ros1_bag(tmp_path / "x.bag", TYPES, messages())) == ([], notes)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"#ROSBAG V1.2\n" + bytes(100), "a ROS 1 bag of format 1.2, not 2.0; migrate it with 'rosbag reindex'"),
        (b"something else" * 10, "not a ROS 1 bag"),
        (b"", "empty; record it again"),
        (ROS1_MAGIC, "has no messages|its header is damaged"),
    ],
)
def test_what_is_no_bag_of_format_2_0_is_refused_in_one_line(tmp_path, data, why):
    path = tmp_path / "x.bag"
    with pytest.raises(RoboCacheError, match=why) as refused:
        read(path, data)
    assert len(str(refused.value)) < 200 + len(str(path))
    assert str(refused.value).isprintable()


ROS1, ROS2 = get_typestore(Stores.ROS1_NOETIC), get_typestore(Stores.LATEST)
TF = "geometry_msgs/TransformStamped[] transforms\n===\nMSG: geometry_msgs/TransformStamped\n{}"
TF = TF.format(ROS1.generate_msgdef("geometry_msgs/msg/TransformStamped")[0])


def ros1_bytes(kind, /, **fields):
    """A message in the serialization of ROS 1, and in CDR by rosbags."""
    cdr = bytes(ROS2.serialize_cdr(ROS2.types[kind](**fields), kind))
    return bytes(ROS2.cdr_to_ros1(cdr, kind)), cdr


def header():
    return ROS2.types["std_msgs/msg/Header"](ROS2.types["builtin_interfaces/msg/Time"](5, 6), "base")


def samples():
    t = {kind.rpartition("/")[2]: made for kind, made in ROS2.types.items() if "/msg/" in kind}
    transform = t["Transform"](t["Vector3"](1.0, 2.0, 3.0), t["Quaternion"](0.0, 0.0, 0.0, 1.0))
    stamped = t["TransformStamped"](header(), "tool", transform)
    field, roi = t["PointField"]("x", 0, 7, 1), t["RegionOfInterest"](1, 2, 3, 4, True)
    one, none, six = np.array([1.5, -2.0]), np.array([]), np.arange(6, dtype=np.uint8)
    square, wide, eight = np.arange(9.0), np.arange(12.0), np.arange(8, dtype=np.uint8)
    return {
        "sensor_msgs/msg/JointState": {
            "header": header(), "name": ["a", "joint_2"], "position": one, "velocity": none, "effort": one,
        },
        "sensor_msgs/msg/Image": {
            "header": header(), "height": 2, "width": 3, "encoding": "mono8", "is_bigendian": 0, "step": 3, "data": six,
        },
        "sensor_msgs/msg/CameraInfo": {
            "header": header(), "height": 2, "width": 3, "distortion_model": "plumb_bob", "d": one, "k": square,
            "r": square, "p": wide, "binning_x": 1, "binning_y": 2, "roi": roi,
        },
        "sensor_msgs/msg/PointCloud2": {
            "header": header(), "height": 1, "width": 2, "fields": [field, field], "is_bigendian": False,
            "point_step": 4, "row_step": 8, "data": eight, "is_dense": True,
        },
        "tf2_msgs/msg/TFMessage": {"transforms": [stamped, stamped]},
        "std_msgs/msg/String": {"data": "text"},
        "std_msgs/msg/Empty": {},
    }  # fmt: skip


@pytest.mark.parametrize("name", samples())
def test_a_message_becomes_the_same_cdr_as_with_rosbags(name):
    raw, cdr = ros1_bytes(name, **samples()[name])
    text = TF if name == "tf2_msgs/msg/TFMessage" else ROS1.generate_msgdef(name)[0]
    convert = ToCdr(message_type(name, {name: ros2_definition(name, text)}))
    # rosbags pads Empty's CDR otherwise; what counts is the one byte behind the encapsulation.
    assert convert(raw)[:5] == cdr[:5]
    assert convert(raw) == cdr or name == "std_msgs/msg/Empty"
    for cut in (1, len(raw) // 2, len(raw) - 1) if raw else ():
        with pytest.raises(RoboCacheError):
            convert(raw[: len(raw) - cut])


def test_types_of_ros_1_get_their_names_in_ros_2():
    assert ros2_type("sensor_msgs/JointState") == "sensor_msgs/msg/JointState"
    assert ros2_type("tf/tfMessage") == "tf2_msgs/msg/TFMessage"
    text = "byte a\nchar b\ntime t\nduration[2] d\nint32 ONE=1\nstring S=a # b\nHeader header # c\nVec[] v\n"
    definition = ros2_definition("my_msgs/Thing", f"{text}===\nMSG: my_msgs/Vec\nfloat32 posX\nfloat32 y")
    fields = dict(message_type("my_msgs/msg/Thing", {"my_msgs/msg/Thing": definition}).fields)
    assert list(fields) == ["a", "b", "t", "d", "header", "v"]
    assert (getattr(fields["a"], "name", ""), getattr(fields["b"], "name", "")) == ("int8", "uint8")


def read_mcap(path, types, given):
    return read(path, write_mcap(types, given, McapLayout(encoding="ros1", definitions="ros1msg")))


def test_messages_that_do_not_fit_their_definition_are_left_out_and_noted(tmp_path):
    raw, _ = ros1_bytes("std_msgs/msg/String", data="text")
    given = [("/a", 10, raw), ("/a", 20, raw[:-1]), ("/a", 30, raw + b"more")]
    found, notes = read_mcap(tmp_path / "x.mcap", {"/a": ("std_msgs/String", "string data")}, given)
    assert [m.log_ns for m in found] == [10, 30]
    assert found[0].data == found[1].data
    assert notes == [
        "x.mcap: /a: 1 messages do not match their definition and were not read",
        "x.mcap: /a: its messages are up to 4 bytes longer than their definition, and these bytes were not read",
    ]


def test_an_mcap_file_of_ros_1_gives_the_messages_of_ros_2(tmp_path):
    types = {topic: (kind.replace("/msg/", "/"), ROS1.generate_msgdef(kind)[0]) for topic, kind in TYPES.items()}
    given = [(topic, log_ns, bytes(ROS2.cdr_to_ros1(data, TYPES[topic]))) for topic, log_ns, data in messages()]
    assert read_mcap(tmp_path / "x.mcap", types, given) == (messages(), [])


def test_a_type_without_a_readable_definition_is_noted(tmp_path):
    types = {"/a": ("my_msgs/Thing", "no definition?"), "/b": ("std_msgs/String", "string data")}
    raw, _ = ros1_bytes("std_msgs/msg/String", data="text")
    found, notes = read_mcap(tmp_path / "x.mcap", types, [("/a", 10, raw), ("/b", 20, raw)])
    assert [m.topic for m in found] == ["/b"]
    assert notes == ["x.mcap: 1 messages of type my_msgs/Thing were not read: its definition cannot be parsed"]
