"""Write rosbag2 recordings with no ROS installed: synthetic ones, and cuts of others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from robocache_ros.bags.source import RawMessage
from robocache_ros.errors import RoboCacheError
from robocache_ros.extras import need

STORAGES = ("mcap", "sqlite3")
COMPRESSIONS = ("none", "message", "file", "storage")  # of each message, of the files, of the storage's own chunks


def write_bag(
    path: str | Path,
    types: Mapping[str, str],
    messages: Iterable[RawMessage | tuple[str, int, bytes]],
    *,
    storage: str = "mcap",
    compression: str = "none",
) -> Path:
    """Write messages into a new recording.

    Args:
        path: its folder, new.
        types: message type of each topic; one that rosbags knows.
        messages: (topic, log time in ns, CDR bytes), in the order in which they are written.
        storage: mcap or sqlite3.
        compression: none, message, file or storage (mcap's chunks); always zstd.
    """
    for name, value, choices in (("storage", storage, STORAGES), ("compression", compression, COMPRESSIONS)):
        if value not in choices:
            raise RoboCacheError(f"{name}: {value!r} is not one of {', '.join(choices)}")
    path = Path(path)
    if path.exists():
        raise RoboCacheError(f"{path}: exists; give a new folder")
    rosbag2 = need("rosbags.rosbag2", "bags")
    typesys = need("rosbags.typesys", "bags")
    store: Any = typesys.get_typestore(typesys.Stores.LATEST)
    writer = rosbag2.Writer(path, version=9, storage_plugin=rosbag2.StoragePlugin[storage.upper()])
    if compression != "none":
        writer.set_compression(rosbag2.CompressionMode[compression.upper()], rosbag2.CompressionFormat.ZSTD)
    with writer:
        topics = {name: writer.add_connection(name, kind, typestore=store) for name, kind in types.items()}
        for topic, log_ns, data in messages:
            writer.write(topics[topic], log_ns, data)
    return path
