"""MCAP files of every layout that a recorder may choose, to be damaged."""

from __future__ import annotations

import struct
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from robocache_ros.bags.storage import mcap
from robocache_ros.extras import need


@dataclass(frozen=True)
class McapLayout:
    """How a file is laid out; see https://mcap.dev/spec."""

    chunk_messages: int = 20  # messages in a chunk; 0: no chunks
    compression: str = ""  # of the chunks: ``, lz4 or zstd; other text is declared only, over plain records
    summary: bool = True
    checksums: bool = True
    message_indexes: bool = True
    loose_every: int = 0  # with chunks: every n-th chunk's messages are written outside of a chunk
    encoding: str = "cdr"  # of the messages
    definitions: str = "ros2msg"  # encoding of the message definitions


def write_mcap(
    types: Mapping[str, tuple[str, str]], messages: Iterable[tuple[str, int, bytes]], layout: McapLayout | None = None
) -> bytes:
    """The bytes of a file with (topic, log time in ns, CDR bytes) messages, in the order in which they are written.

    `types` are the message type and definition of each topic.
    """
    layout = layout or McapLayout()
    given = list(messages)
    keys = {topic: index + 1 for index, topic in enumerate(types)}
    declarations = b"".join(_declared(keys[topic], topic, *kind, layout) for topic, kind in types.items())
    out = bytearray(mcap.MCAP_MAGIC + _record(0x01, _text("ros2") + _text("robocache_ros")) + declarations)
    indexes: list[bytes] = []
    size = layout.chunk_messages or len(given) or 1
    for number, start in enumerate(range(0, len(given), size)):
        part = given[start : start + size]
        if not layout.chunk_messages or (layout.loose_every and number % layout.loose_every == 1):
            out += b"".join(_message(keys, message, start + n) for n, message in enumerate(part))
        else:
            indexes.append(_write_chunk(out, keys, part, start, layout))
    out += _record(mcap.DATA_END, struct.pack("<I", zlib.crc32(out) if layout.checksums else 0))
    at = len(out)
    if layout.summary:
        out += declarations + b"".join(indexes) + _statistics(keys, given, len(indexes))
    foot = struct.pack("<BQQQ", mcap.FOOTER, 20, at if layout.summary else 0, 0)
    checksum = zlib.crc32(bytes(out[at:]) + foot) if layout.checksums and layout.summary else 0
    return bytes(out + foot + struct.pack("<I", checksum) + mcap.MCAP_MAGIC)


def write_bomb(declared: int, content: bytes, compression: str = "zstd") -> bytes:
    """The bytes of a file with one chunk whose head declares a size, without a checksum."""
    head = struct.pack("<QQQI", 1, 1, declared, 0) + _text(compression) + struct.pack("<Q", len(content))
    end = _record(mcap.DATA_END, bytes(4)) + _record(mcap.FOOTER, bytes(20)) + mcap.MCAP_MAGIC
    return mcap.MCAP_MAGIC + _record(mcap.CHUNK, head + content) + end


def _write_chunk(
    out: bytearray, keys: Mapping[str, int], part: list[tuple[str, int, bytes]], start: int, layout: McapLayout
) -> bytes:
    """Write a chunk and the indexes of its messages, and return its record in the summary."""
    content = bytearray()
    entries: dict[int, list[tuple[int, int]]] = {}
    for number, message in enumerate(part):
        entries.setdefault(keys[message[0]], []).append((message[1], len(content)))
        content += _message(keys, message, start + number)
    packed = _compressed(layout.compression, bytes(content))
    times = [log_ns for _, log_ns, _ in part]
    checksum = zlib.crc32(content) if layout.checksums else 0
    head = struct.pack("<QQQI", min(times), max(times), len(content), checksum) + _text(layout.compression)
    at = len(out)
    out += _record(mcap.CHUNK, head + struct.pack("<Q", len(packed)) + packed)
    end, indexes = len(out), b""
    for key, pairs in entries.items() if layout.message_indexes else ():
        indexes += struct.pack("<HQ", key, len(out))
        listed = b"".join(struct.pack("<QQ", *pair) for pair in pairs)
        out += _record(mcap.MESSAGE_INDEX, struct.pack("<HI", key, len(listed)) + listed)
    index = struct.pack("<QQQQI", min(times), max(times), at, end - at, len(indexes)) + indexes
    index += struct.pack("<Q", len(out) - end) + _text(layout.compression)
    return _record(mcap.CHUNK_INDEX, index + struct.pack("<QQ", len(packed), len(content)))


def _compressed(compression: str, content: bytes) -> bytes:
    if compression == "lz4":
        return bytes(need("lz4.frame", "bags").compress(content))
    if compression == "zstd":
        return bytes(need("rosbags.rosbag2.writer", "bags").zstd.compress(content))
    return content


def _declared(key: int, topic: str, kind: str, definition: str, layout: McapLayout) -> bytes:
    schema = struct.pack("<H", key) + _text(kind) + _text(layout.definitions) + _text(definition)
    channel = struct.pack("<HH", key, key) + _text(topic) + _text(layout.encoding) + struct.pack("<I", 0)
    return _record(mcap.SCHEMA, schema) + _record(mcap.CHANNEL, channel)


def _message(keys: Mapping[str, int], message: tuple[str, int, bytes], number: int) -> bytes:
    topic, log_ns, data = message
    return _record(mcap.MESSAGE, mcap.MESSAGE_HEAD.pack(keys[topic], number, log_ns, log_ns) + data)


def _statistics(keys: Mapping[str, int], messages: list[tuple[str, int, bytes]], chunks: int) -> bytes:
    counts = Counter(topic for topic, _, _ in messages)
    times = [log_ns for _, log_ns, _ in messages] or [0]
    pairs = b"".join(struct.pack("<HQ", key, counts[topic]) for topic, key in keys.items())
    numbers = (len(messages), len(keys), len(keys), 0, 0, chunks, min(times), max(times), len(pairs))
    return _record(mcap.STATISTICS, struct.pack("<QHIIIIQQI", *numbers) + pairs)


def _record(op: int, content: bytes) -> bytes:
    return mcap.RECORD.pack(op, len(content)) + content


def _text(value: str) -> bytes:
    return struct.pack("<I", len(value.encode())) + value.encode()
