"""Writes ROS 1 bags without a ROS installation."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from robocache_ros.bags.source import RawMessage


def write_ros1_bag(
    path: str | Path, types: Mapping[str, str], messages: Iterable[RawMessage | tuple[str, int, bytes]], *,
    compression: str = "none", chunk_bytes: int = 1 << 20, latched: Collection[str] = (),
) -> Path:  # fmt: skip
    """Write (topic, log time in ns, CDR bytes) messages, in this order, into a new ROS 1 bag.

    `types` are the message types of ROS 2 of each topic, which ROS 1 must have too; a chunk, which `compression` packs
    by lz4 or bz2, ends when it exceeds `chunk_bytes`. `latched` topics keep messages for late subscribers.
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
