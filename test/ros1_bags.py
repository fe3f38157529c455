"""Writes ROS 1 bags without a ROS installation."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from robocache_ros.bags.source import RawMessage


def write_ros1_bag(
    path: str | Path,
    types: Mapping[str, str],
    messages: Iterable[RawMessage | tuple[str, int, bytes]],
    *,
    compression: str = "none",
    chunk_bytes: int = 1 << 20,
    latched: Collection[str] = (),
) -> Path:
    """Write messages into a new ROS 1 bag.

    Args:
        path: the bag file; must not exist.
        types: message type of each topic, such as `sensor_msgs/msg/Imu`; rosbags must support it in ROS 1 and ROS 2.
        messages: (topic, log time in ns, CDR bytes), in write order.
        compression: of chunks: none, lz4 or bz2.
        chunk_bytes: a chunk ends when it exceeds this size.
        latched: topics whose publishers keep messages for late subscribers.
    """
    rosbag1: Any = import_module("rosbags.rosbag1")
    typesys: Any = import_module("rosbags.typesys")
    ros1: Any = typesys.get_typestore(typesys.Stores.ROS1_NOETIC)
    ros2: Any = typesys.get_typestore(typesys.Stores.LATEST)
    writer = rosbag1.Writer(path)
    writer.chunk_threshold = chunk_bytes
    if compression != "none":
        writer.set_compression(rosbag1.Writer.CompressionFormat[compression.upper()])
    with writer:
        topics = {
            name: writer.add_connection(name, kind, typestore=ros1, latching=int(name in latched))
            for name, kind in types.items()
        }
        for topic, log_ns, data in messages:
            writer.write(topics[topic], log_ns, ros2.cdr_to_ros1(data, types[topic]))
    return Path(path)
