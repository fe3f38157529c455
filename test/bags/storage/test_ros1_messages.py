"""Messages in the serialization of ROS 1, from MCAP files too, and their types, become those of ROS 2."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("rosbags", reason="needs the `bags` extra")

from rosbags.typesys import Stores, get_typestore

from robocache_ros.bags.reader import Bag
from robocache_ros.bags.source import RawMessage
from robocache_ros.bags.storage.ros1_messages import ToCdr, ros2_definition, ros2_type
from robocache_ros.decode.definitions import message_type
from robocache_ros.errors import RoboCacheError
from test.fuzz.mcap_writer import McapLayout, write_mcap
from test.fuzz.recordings import TYPES, messages

ROS1, ROS2 = get_typestore(Stores.ROS1_NOETIC), get_typestore(Stores.LATEST)
TF = "geometry_msgs/TransformStamped[] transforms\n===\nMSG: geometry_msgs/TransformStamped\n{}"
TF = TF.format(ROS1.generate_msgdef("geometry_msgs/msg/TransformStamped")[0])


def read(path: Path) -> tuple[list[RawMessage], list[str]]:
    with Bag(path) as opened:
        found = list(opened.messages())
        return found, opened.notes


def ros1_bytes(kind: str, /, **fields: Any) -> tuple[bytes, bytes]:
    """A message in the serialization of ROS 1, and in CDR by rosbags."""
    cdr = bytes(ROS2.serialize_cdr(ROS2.types[kind](**fields), kind))
    return bytes(ROS2.cdr_to_ros1(cdr, kind)), cdr


def header() -> Any:
    return ROS2.types["std_msgs/msg/Header"](ROS2.types["builtin_interfaces/msg/Time"](5, 6), "base")


def samples() -> dict[str, dict[str, Any]]:
    import numpy as np

    t = ROS2.types
    transform = t["geometry_msgs/msg/Transform"](
        t["geometry_msgs/msg/Vector3"](1.0, 2.0, 3.0), t["geometry_msgs/msg/Quaternion"](0.0, 0.0, 0.0, 1.0)
    )
    stamped = t["geometry_msgs/msg/TransformStamped"](header(), "tool", transform)
    field = t["sensor_msgs/msg/PointField"]("x", 0, 7, 1)
    roi = t["sensor_msgs/msg/RegionOfInterest"](1, 2, 3, 4, True)
    one, none = np.array([1.5, -2.0]), np.array([])
    square, wide = np.arange(9.0), np.arange(12.0)
    return {
        "sensor_msgs/msg/JointState": {
            "header": header(), "name": ["a", "joint_2"], "position": one, "velocity": none, "effort": one,
        },
        "sensor_msgs/msg/Image": {
            "header": header(), "height": 2, "width": 3, "encoding": "mono8", "is_bigendian": 0, "step": 3,
            "data": np.arange(6, dtype=np.uint8),
        },
        "sensor_msgs/msg/CameraInfo": {
            "header": header(), "height": 2, "width": 3, "distortion_model": "plumb_bob", "d": one, "k": square,
            "r": square, "p": wide, "binning_x": 1, "binning_y": 2, "roi": roi,
        },
        "sensor_msgs/msg/PointCloud2": {
            "header": header(), "height": 1, "width": 2, "fields": [field, field], "is_bigendian": False,
            "point_step": 4, "row_step": 8, "data": np.arange(8, dtype=np.uint8), "is_dense": True,
        },
        "tf2_msgs/msg/TFMessage": {"transforms": [stamped, stamped]},
        "std_msgs/msg/String": {"data": "text"},
        "std_msgs/msg/Empty": {},
    }  # fmt: skip


@pytest.mark.parametrize("name", samples())
def test_a_message_becomes_the_same_cdr_as_with_rosbags(name: str) -> None:
    raw, cdr = ros1_bytes(name, **samples()[name])
    text = TF if name == "tf2_msgs/msg/TFMessage" else ROS1.generate_msgdef(name)[0]
    convert = ToCdr(message_type(name, {name: ros2_definition(name, text)}))
    # rosbags pads Empty's CDR otherwise; what counts is the one byte behind the encapsulation.
    assert convert(raw)[:5] == cdr[:5]
    assert convert(raw) == cdr or name == "std_msgs/msg/Empty"
    if raw:
        for cut in (1, len(raw) // 2, len(raw) - 1):
            with pytest.raises(RoboCacheError):
                convert(raw[: len(raw) - cut])


def test_types_of_ros_1_get_their_names_in_ros_2() -> None:
    assert ros2_type("sensor_msgs/JointState") == "sensor_msgs/msg/JointState"
    assert ros2_type("tf/tfMessage") == "tf2_msgs/msg/TFMessage"
    text = "byte a\nchar b\ntime t\nduration[2] d\nint32 ONE=1\nstring S=a # b\nHeader header # c\nVec[] v\n"
    definition = ros2_definition("my_msgs/Thing", f"{text}===\nMSG: my_msgs/Vec\nfloat32 posX\nfloat32 y")
    fields = dict(message_type("my_msgs/msg/Thing", {"my_msgs/msg/Thing": definition}).fields)
    assert list(fields) == ["a", "b", "t", "d", "header", "v"]
    assert (getattr(fields["a"], "name", ""), getattr(fields["b"], "name", "")) == ("int8", "uint8")


def test_messages_that_do_not_fit_their_definition_are_left_out_and_noted(tmp_path: Path) -> None:
    raw, _ = ros1_bytes("std_msgs/msg/String", data="text")
    types = {"/a": ("std_msgs/String", "string data")}
    given = [("/a", 10, raw), ("/a", 20, raw[:-1]), ("/a", 30, raw + b"more")]
    path = tmp_path / "x.mcap"
    path.write_bytes(write_mcap(types, given, McapLayout(encoding="ros1", definitions="ros1msg")))
    found, notes = read(path)
    assert [m.log_ns for m in found] == [10, 30]
    assert found[0].data == found[1].data
    assert notes == [
        "x.mcap: /a: 1 messages do not match their definition and were not read",
        "x.mcap: /a: its messages are up to 4 bytes longer than their definition, and these bytes were not read",
    ]


def test_an_mcap_file_of_ros_1_gives_the_messages_of_ros_2(tmp_path: Path) -> None:
    types = {topic: (kind.replace("/msg/", "/"), ROS1.generate_msgdef(kind)[0]) for topic, kind in TYPES.items()}
    given = [(topic, log_ns, bytes(ROS2.cdr_to_ros1(data, TYPES[topic]))) for topic, log_ns, data in messages()]
    path = tmp_path / "x.mcap"
    path.write_bytes(write_mcap(types, given, McapLayout(encoding="ros1", definitions="ros1msg")))
    assert read(path) == (messages(), [])


def test_a_type_without_a_readable_definition_is_noted(tmp_path: Path) -> None:
    types = {"/a": ("my_msgs/Thing", "no definition?"), "/b": ("std_msgs/String", "string data")}
    raw, _ = ros1_bytes("std_msgs/msg/String", data="text")
    path = tmp_path / "x.mcap"
    layout = McapLayout(encoding="ros1", definitions="ros1msg")
    path.write_bytes(write_mcap(types, [("/a", 10, raw), ("/b", 20, raw)], layout))
    found, notes = read(path)
    assert [m.topic for m in found] == ["/b"]
    assert notes == ["x.mcap: 1 messages of type my_msgs/Thing were not read: its definition cannot be parsed"]
