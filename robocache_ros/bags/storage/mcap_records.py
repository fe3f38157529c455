"""The records of an MCAP file: an op code, a length and the content (https://mcap.dev/spec)."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from robocache_ros.bags.source import Data
from robocache_ros.decode.cdr.idl import msg_of_idl

MAGIC = b"\x89MCAP0\r\n"
FOOTER, SCHEMA, CHANNEL, MESSAGE, CHUNK, MESSAGE_INDEX = 0x02, 0x03, 0x04, 0x05, 0x06, 0x07
CHUNK_INDEX, STATISTICS, DATA_END = 0x08, 0x0B, 0x0F
SKIPPED = (0x01, 0x09, 0x0C)  # header, attachment, metadata: part of the data section, without messages
PRIVATE_OP = 0x80  # from here on, op codes are private to applications
RECORD = struct.Struct("<BQ")
MESSAGE_HEAD = struct.Struct("<HIQQ")  # channel, sequence, log time, publish time
_CHUNK_HEAD = struct.Struct("<QQQI")  # first and last log time, uncompressed size, checksum
_INDEX_HEAD = struct.Struct("<QQQQI")  # first and last log time, start and length of the chunk, size of the map
_STATISTICS_HEAD = struct.Struct("<QHIIIIQQI")  # counts of messages, schemas, channels, …, chunks; times; map size
_FOOTER = struct.Struct("<QQI")  # start of the summary, start of its offsets, checksum of the summary
FOOTER_SIZE = RECORD.size + _FOOTER.size + len(MAGIC)
MAX_RECORDS = 2_000_000  # per chunk; an empty message uses 160 bytes of memory


class Channel(NamedTuple):
    """A channel: the messages of one publisher."""

    key: int
    schema: int
    topic: str
    encoding: str
    metadata: dict[str, str]


class ChunkHead(NamedTuple):
    """The start of a chunk, before its compressed records."""

    size: int  # decompressed size of the records
    checksum: int  # of the decompressed records; 0: none
    compression: str
    length: int  # compressed size of the records
    data_at: int  # offset of the records from the start of the chunk's content


class ChunkIndex(NamedTuple):
    """Position and contents of a chunk."""

    first_ns: int
    last_ns: int
    start: int  # start of the record
    stop: int
    index_stop: int  # end of the message indexes after the chunk
    channels: frozenset[int]


def records(data: Data, at: int = 0) -> Iterator[tuple[int, int, int]]:
    """Yield (op code, start, stop) of the content of each complete record."""
    end = len(data)
    while at + RECORD.size <= end:
        op, size = RECORD.unpack_from(data, at)
        at += RECORD.size
        if at + size > end:
            return
        yield op, at, at + size
        at += size


def is_overfull(data: Data) -> bool:
    """Whether a chunk has more than MAX_RECORDS records."""
    return len(data) > MAX_RECORDS * RECORD.size and sum(1 for _ in records(data)) > MAX_RECORDS


def text(body: bytes, at: int) -> tuple[str, int]:
    """Return a string and its end; struct.error or UnicodeDecodeError if it is damaged."""
    (size,) = struct.unpack_from("<I", body, at)
    if at + 4 + size > len(body):
        raise struct.error("a string ends outside of its record")
    return body[at + 4 : at + 4 + size].decode(), at + 4 + size


def read_footer(data: bytes) -> tuple[int, int]:
    """Return the start of the summary and its checksum; 0: none."""
    start, _, checksum = _FOOTER.unpack_from(data, RECORD.size)
    return start, checksum


def read_schema(body: bytes) -> tuple[int, str, str]:
    """Return key, type name and message definition (empty if it is neither .msg text nor IDL)."""
    (key,) = struct.unpack_from("<H", body)
    name, at = text(body, 2)
    encoding, at = text(body, at)
    if encoding not in ("ros1msg", "ros2msg", "ros2idl"):
        return key, name, ""
    definition = text(body, at)[0]
    return key, name, msg_of_idl(name, definition) if encoding == "ros2idl" else definition


def read_channel(body: bytes) -> Channel:
    """Parse a channel record."""
    key, schema = struct.unpack_from("<HH", body)
    topic, at = text(body, 4)
    encoding, at = text(body, at)
    (size,) = struct.unpack_from("<I", body, at)
    at, end, metadata = at + 4, at + 4 + size, dict[str, str]()
    while at < end:
        name, at = text(body, at)
        metadata[name], at = text(body, at)
    return Channel(key, schema, topic, encoding, metadata)


def read_chunk_head(body: bytes) -> ChunkHead:
    """Parse the head of a chunk from the first bytes of its content."""
    _, _, size, checksum = _CHUNK_HEAD.unpack_from(body)
    compression, at = text(body, _CHUNK_HEAD.size)
    (length,) = struct.unpack_from("<Q", body, at)
    return ChunkHead(size, checksum, compression, length, at + 8)


def read_chunk_index(body: bytes) -> ChunkIndex:
    """Parse the entry of a chunk in the summary."""
    first, last, start, length, channels = _INDEX_HEAD.unpack_from(body)
    pairs = struct.iter_unpack("<HQ", body[_INDEX_HEAD.size :][:channels])
    keys = frozenset(channel for channel, _ in pairs)
    (indexes,) = struct.unpack_from("<Q", body, _INDEX_HEAD.size + channels)
    return ChunkIndex(first, last, start, start + length, start + length + indexes, keys)


def read_statistics(body: bytes) -> tuple[int, int, dict[int, int]]:
    """Return the number of messages, of chunks, and of messages by channel."""
    messages, _, _, _, _, chunks, _, _, size = _STATISTICS_HEAD.unpack_from(body)
    pairs = body[_STATISTICS_HEAD.size : _STATISTICS_HEAD.size + size]
    return messages, chunks, dict(struct.iter_unpack("<HQ", pairs))


def read_message_index(body: bytes) -> int:
    """Return the number of messages in a message index."""
    (size,) = struct.unpack_from("<I", body, 2)
    return int(size) // 16
