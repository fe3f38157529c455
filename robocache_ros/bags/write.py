"""Writes ROS 2 recordings without a ROS installation: synthetic data and excerpts of recordings."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from robocache_ros.bags.source import RawMessage
from robocache_ros.errors import RoboCacheError
from robocache_ros.extras import need

STORAGES = ("mcap", "sqlite3")
COMPRESSIONS = ("none", "message", "file", "storage")  # message: each message; file: whole files; storage: mcap chunks


def write_bag(
    path: str | Path,
    types: Mapping[str, str],
    messages: Iterable[RawMessage | tuple[str, int, bytes]],
    *,
    storage: str = "mcap",
    compression: str = "none",
    latched: Collection[str] = (),
    definitions: Mapping[str, str] | None = None,
) -> Path:
    """Write messages into a new recording.

    Args:
        path: the recording's folder; must not exist.
        types: message type of each topic; rosbags must support it, or `definitions` defines it.
        messages: (topic, log time in ns, CDR bytes), in write order.
        storage: mcap or sqlite3.
        compression: none, message, file or storage (mcap's chunks); always zstd.
        latched: topics whose publishers keep messages for late subscribers (transient_local).
        definitions: message types of one's own: name -> definition as in a .msg file.
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
    for name, text in (definitions or {}).items():
        store.register(typesys.get_types_from_msg(text, name))
    writer = rosbag2.Writer(path, version=9, storage_plugin=rosbag2.StoragePlugin[storage.upper()])
    if compression != "none":
        writer.set_compression(rosbag2.CompressionMode[compression.upper()], rosbag2.CompressionFormat.ZSTD)
    with writer:
        topics = {
            name: writer.add_connection(
                name, kind, typestore=store, offered_qos_profiles=_latched_qos() if name in latched else ()
            )
            for name, kind in types.items()
        }
        for topic, log_ns, data in messages:
            writer.write(topics[topic], log_ns, data)
    return path


def _latched_qos() -> list[Any]:
    """Return the QoS profile of latched topics: reliable and transient_local."""
    qos = need("rosbags.interfaces", "bags")
    never = qos.QosTime(0, 0)
    how = (qos.QosReliability.RELIABLE, qos.QosDurability.TRANSIENT_LOCAL)
    alive = (qos.QosLiveliness.AUTOMATIC, never, False)
    return [qos.Qos(qos.QosHistory.KEEP_LAST, 1, *how, never, never, *alive)]
