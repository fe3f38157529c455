"""The records of a ROS 1 bag: a header of named fields, and data (http://wiki.ros.org/Bags/Format/2.0)."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import NamedTuple

from robocache_ros.units import NS_PER_S

MAGIC = b"#ROSBAG V2.0\n"
ANY_VERSION = b"#ROSBAG V"
MESSAGE, BAG_HEADER, INDEX, CHUNK, CHUNK_INFO, CONNECTION = range(2, 8)
MAX_HEADER = 1 << 20  # bytes of a record's header
INDEX_VERSION = 1
_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")
_TIME = struct.Struct("<II")

Fields = dict[bytes, bytes]
Read = Callable[[int, int], bytes]  # returns the bytes of [start, stop), or fewer at the end of the file


class Record(NamedTuple):
    """One record: op code, fields, and the positions of the record and its data."""

    op: int
    fields: Fields
    start: int
    data_at: int
    stop: int


class Connection(NamedTuple):
    """A connection: the messages of one publisher."""

    topic: str
    type: str  # in ROS 1 form: sensor_msgs/Imu
    definition: str
    latched: bool


def read_record(read: Read, at: int, end: int) -> Record:
    """Read the record at a position; struct.error if it is damaged or ends after `end`."""
    (length,) = _U32.unpack(read(at, at + 4))
    data_at = at + 8 + length
    if length > MAX_HEADER or data_at > end:
        raise struct.error("a header that does not fit")
    header = read(at + 4, data_at)
    fields = read_fields(header[:length])
    (size,) = _U32.unpack(header[length:])
    if data_at + size > end:
        raise struct.error("data that does not fit")
    op = fields.get(b"op", b"")
    if len(op) != 1:
        raise struct.error("a record without its kind")
    return Record(op[0], fields, at, data_at, data_at + size)


def records(content: bytes, at: int = 0) -> Iterator[Record]:
    """Yield the records of a chunk; struct.error if one is damaged or incomplete."""
    end = len(content)
    while at < end:
        record = read_record(lambda start, stop: content[start:stop], at, end)
        yield record
        at = record.stop


def read_fields(header: bytes) -> Fields:
    """Parse the fields of a header; struct.error if it is damaged."""
    found, at, end = {}, 0, len(header)
    while at < end:
        (size,) = _U32.unpack_from(header, at)
        at += 4
        name, equals, value = header[at : at + size].partition(b"=")
        if not equals or at + size > end:
            raise struct.error("a field that does not fit")
        found[name] = value
        at += size
    return found


def u32(fields: Fields, name: bytes) -> int:
    """Return a uint32 field; struct.error if it is missing."""
    return int(_U32.unpack(fields.get(name, b""))[0])


def u64(fields: Fields, name: bytes) -> int:
    """Return a uint64 field; struct.error if it is missing."""
    return int(_U64.unpack(fields.get(name, b""))[0])


def time_ns(fields: Fields, name: bytes) -> int:
    """Return a time in nanoseconds; struct.error if it is missing."""
    seconds, nanoseconds = _TIME.unpack(fields.get(name, b""))
    return int(seconds) * NS_PER_S + int(nanoseconds)


def read_connection(fields: Fields, data: bytes) -> tuple[int, Connection]:
    """Return the key and contents of a connection record; struct.error or UnicodeDecodeError if it is damaged."""
    about = read_fields(data)
    topic = "/" + "/".join(filter(None, fields[b"topic"].decode().split("/"))) if b"topic" in fields else ""
    kind, definition = about.get(b"type", b"").decode(), about.get(b"message_definition", b"")
    if not topic or not kind:
        raise struct.error("a connection without topic or type")
    # Comments in a definition may use any encoding.
    text = definition.decode(errors="replace")
    return u32(fields, b"conn"), Connection(topic, kind, text, about.get(b"latching", b"") == b"1")
