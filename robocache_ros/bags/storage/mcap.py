"""Read MCAP files (https://mcap.dev/spec): records, chunks, indexes, and the recovery of damaged files."""

from __future__ import annotations

import struct
import zlib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from robocache_ros.bags.source import PAUSE_NS, Data, Group, RawMessage, Topic, groups_of, is_latched, joined
from robocache_ros.bags.storage.codecs import MAX_BYTES, decompress
from robocache_ros.bags.storage.merge import merged_parts
from robocache_ros.decode.definitions import msg_of_idl
from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.storage.downloads import StoredFile
from robocache_ros.storage.paths import AnyPath

# The records of an MCAP file: an op code, a length and the content (https://mcap.dev/spec).

MCAP_MAGIC = b"\x89MCAP0\r\n"
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
FOOTER_SIZE = RECORD.size + _FOOTER.size + len(MCAP_MAGIC)
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


def read_text(body: bytes, at: int) -> tuple[str, int]:
    """Return a string and its end; struct.error or UnicodeDecodeError if it is damaged."""
    (size,) = struct.unpack_from("<I", body, at)
    if at + 4 + size > len(body):
        raise struct.error("a string ends outside of its record")
    return body[at + 4 : at + 4 + size].decode(), at + 4 + size


def read_schema(body: bytes) -> tuple[int, str, str]:
    """Return key, type name and message definition (empty if it is neither .msg text nor IDL)."""
    (key,) = struct.unpack_from("<H", body)
    name, at = read_text(body, 2)
    encoding, at = read_text(body, at)
    if encoding not in ("ros1msg", "ros2msg", "ros2idl"):
        return key, name, ""
    definition = read_text(body, at)[0]
    return key, name, msg_of_idl(name, definition) if encoding == "ros2idl" else definition


def read_channel(body: bytes) -> Channel:
    """Parse a channel record."""
    key, schema = struct.unpack_from("<HH", body)
    topic, at = read_text(body, 4)
    encoding, at = read_text(body, at)
    (size,) = struct.unpack_from("<I", body, at)
    at, end, metadata = at + 4, at + 4 + size, dict[str, str]()
    while at < end:
        name, at = read_text(body, at)
        metadata[name], at = read_text(body, at)
    return Channel(key, schema, topic, encoding, metadata)


def read_chunk_head(body: bytes) -> ChunkHead:
    """Parse the head of a chunk from the first bytes of its content."""
    _, _, size, checksum = _CHUNK_HEAD.unpack_from(body)
    compression, at = read_text(body, _CHUNK_HEAD.size)
    (length,) = struct.unpack_from("<Q", body, at)
    return ChunkHead(size, checksum, compression, length, at + 8)


def read_chunk_index(body: bytes) -> ChunkIndex:
    """Parse the entry of a chunk in the summary."""
    first, last, start, length, channels = _INDEX_HEAD.unpack_from(body)
    pairs = struct.iter_unpack("<HQ", body[_INDEX_HEAD.size :][:channels])
    keys = frozenset(channel for channel, _ in pairs)
    (indexes,) = struct.unpack_from("<Q", body, _INDEX_HEAD.size + channels)
    return ChunkIndex(first, last, start, start + length, start + length + indexes, keys)


_HEAD_BYTES = RECORD.size + MESSAGE_HEAD.size
_DTYPE = np.dtype({"names": ("op", "size", "channel", "log"), "formats": ("u1", "<u8", "<u2", "<u8"),
                   "offsets": (0, 1, 9, 15), "itemsize": _HEAD_BYTES})  # fmt: skip

_AT_ONCE = 1 << 16  # heads that are read at once, to bound memory

_FEW_MESSAGES = 256  # up to here, walking a chunk takes less time than the calls of NumPy

Int64 = NDArray[np.int64]
Row: TypeAlias = "tuple[int, int, int, int]"  # of a message: channel, log time, start and stop of its data


class Messages(NamedTuple):
    """The messages of a chunk in its order; `starts` and `stops` are those of their data."""

    channels: Int64
    logs_ns: NDArray[np.uint64]
    starts: Int64
    stops: Int64


def indexed_messages(content: Data, indexes: bytes) -> tuple[Messages | None, bool]:
    """Find the messages with the message indexes after a chunk.

    Returns:
        All messages of the chunk; None if the indexes do not list the place of each one. Whether the indexes list
        exactly these messages, with their channels and log times.
    """
    bodies = _index_bodies(indexes)
    listed = [np.frombuffer(body, "<u8", offset=6).reshape(-1, 2) for body in bodies]
    keys = np.repeat([int.from_bytes(body[:2], "little") for body in bodies], [len(pairs) for pairs in listed])
    pairs = np.concatenate(listed) if listed else np.empty((0, 2), np.uint64)
    if len(pairs) * _HEAD_BYTES > len(content) or (len(pairs) and int(pairs[:, 1].max()) > len(content) - _HEAD_BYTES):
        return None, False
    order = np.argsort(pairs[:, 1], kind="stable")
    places = pairs[order, 1].astype(np.int64)
    heads = _heads(content, places)
    sizes = heads["size"]
    if not ((heads["op"] == MESSAGE) & (sizes >= MESSAGE_HEAD.size) & (sizes <= len(content))).all():
        return None, False
    stops = places + RECORD.size + sizes.astype(np.int64)
    if not _holds_no_other_messages(content, places, stops):
        return None, False
    found = Messages(heads["channel"].astype(np.int64), heads["log"], places + _HEAD_BYTES, stops)
    return found, bool((heads["channel"] == keys[order]).all() and (heads["log"] == pairs[order, 0]).all())


def _heads(content: Data, places: Int64) -> NDArray[np.void]:
    """Return the heads of the records at some places, as a structured array."""
    data, within = np.frombuffer(content, np.uint8), np.arange(_HEAD_BYTES)
    parts = [data[places[at : at + _AT_ONCE, None] + within] for at in range(0, len(places), _AT_ONCE)]
    rows = np.concatenate(parts) if parts else np.empty((0, _HEAD_BYTES), np.uint8)
    heads: NDArray[np.void] = rows.view(_DTYPE).reshape(-1)
    return heads


def _holds_no_other_messages(content: Data, places: Int64, stops: Int64) -> bool:
    """Whether the records [place, stop) and complete records of other kinds fill the content."""
    ends = np.concatenate([[0], stops])
    starts = np.concatenate([places, [len(content)]])
    for end, start in zip(ends[ends != starts].tolist(), starts[ends != starts].tolist(), strict=True):
        at = end
        for op, _, stop in records(content[end:start]):
            if op == MESSAGE:
                return False
            at = end + stop
        if at != start:
            return False
    return True


def walked_messages(content: Data) -> tuple[list[Row], bool]:
    """Find the messages record by record; the second value tells whether the last record is complete."""
    found: list[Row] = []
    at, end = 0, len(content)
    record, head = RECORD.unpack_from, MESSAGE_HEAD.unpack_from
    try:
        while at < end:
            op, size = record(content, at)
            start = at + RECORD.size
            if start + size > end:
                break
            if op == MESSAGE:
                channel, _, log_ns, _ = head(content, start)
                found.append((channel, log_ns, start + MESSAGE_HEAD.size, start + size))
            at = start + size
    except struct.error:
        pass
    return found, at == end


def are_indexed(rows: Sequence[Row], indexes: bytes) -> bool:
    """Whether the message indexes after a chunk list exactly these messages, with their channels and log times."""
    listed = [
        (place + _HEAD_BYTES, int.from_bytes(body[:2], "little"), log_ns)
        for body in _index_bodies(indexes)
        for log_ns, place in struct.iter_unpack("<QQ", body[6:])
    ]
    return sorted(listed) == [(start, channel, log_ns) for channel, log_ns, start, _ in rows]


def _index_bodies(indexes: bytes) -> list[bytes]:
    """Return the contents of the message indexes; those that are damaged are left out."""
    bodies = [indexes[start:stop] for op, start, stop in records(indexes) if op == MESSAGE_INDEX]
    return [body for body in bodies if len(body) >= 6 and (len(body) - 6) % 16 == 0]


RUN_BYTES = 1 << 20  # bytes per read of messages outside of chunks
_MAX_DECLARATION = 16 << 20  # bytes of one schema or channel
_DAMAGE = (RoboCacheError, struct.error, UnicodeDecodeError)


class Part(NamedTuple):
    """A chunk, or consecutive messages outside of chunks."""

    first_ns: int  # log time
    last_ns: int
    start: int  # start of a chunk's content, or of the first record
    stop: int
    index_stop: int  # end of the message indexes after a chunk
    is_chunk: bool
    channels: frozenset[int]  # channels in the part; empty: not known

    @property
    def nbytes(self) -> int:
        """Bytes of the part and of its indexes."""
        return self.index_stop - self.start


@dataclass
class Contents:
    """Contents of a file.

    Attributes:
        counts: number of messages by channel, from the summary, or else from the scan.
        total: number of messages in the file, as far as known.
        chunks: number of chunks in the file.
        damaged: start of each damaged chunk, and its number of messages (None: not known).
        notes: errors of the file, except damaged chunks.
        verified: whether the checksum of all its data was read and matches.
    """

    schemas: dict[int, tuple[str, str]] = field(default_factory=dict)  # type and definition
    channels: dict[int, Channel] = field(default_factory=dict)
    parts: list[Part] = field(default_factory=list)
    counts: Counter[int] = field(default_factory=Counter)
    total: int = 0
    chunks: int = 0
    damaged: dict[int, int | None] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    verified: bool = False

    def declare(self, op: int, body: bytes) -> None:
        """Add a schema or a channel; struct.error or UnicodeDecodeError if it is damaged."""
        if op == SCHEMA:
            key, name, definition = read_schema(body)
            self.schemas.setdefault(key, (name, definition))
        elif op == CHANNEL:
            channel = read_channel(body)
            self.channels.setdefault(channel.key, channel)


def chunk_records(file: StoredFile, start: int, stop: int) -> tuple[Data, bool]:
    """Return the records of the chunk with the content [start, stop); RoboCacheError if it is damaged.

    The second value tells whether the chunk has a checksum, which was verified.
    """
    try:
        first = file.exact(start - RECORD.size, min(start + 64, stop))
        op, size = RECORD.unpack_from(first)
        head = read_chunk_head(first[RECORD.size :])
    except (struct.error, UnicodeDecodeError):
        raise RoboCacheError("its header is damaged") from None
    if op != CHUNK or size != stop - start or head.data_at + head.length > size or head.length > MAX_BYTES:
        raise RoboCacheError("its header is damaged")
    data = file.block(start + head.data_at, start + head.data_at + head.length)
    content = decompress(head.compression, data, head.size)
    if head.checksum and zlib.crc32(content) != head.checksum:
        raise RoboCacheError("its checksum does not match")
    if len(content) > MAX_RECORDS * RECORD.size and sum(1 for _ in records(content)) > MAX_RECORDS:
        raise RoboCacheError(f"it has more than {MAX_RECORDS:,} records")
    return content, bool(head.checksum)


def has_checksum(file: StoredFile, part: Part) -> bool:
    """Whether a part is a chunk with a checksum, which is verified when the chunk is read."""
    try:
        return part.is_chunk and bool(read_chunk_head(file.read(part.start, part.start + 64)).checksum)
    except (struct.error, UnicodeDecodeError):
        return False


def messages_indexed(file: StoredFile, at: int, end: int) -> int | None:
    """Return the number of messages in the indexes after a chunk; None if there are no indexes."""
    indexes = ((start, stop) for op, start, stop in file_records(file, at, end) if op == MESSAGE_INDEX)
    try:
        counts = [_listed(file, start, stop) for start, stop in indexes]
    except struct.error:
        return None
    return sum(counts) if counts else None


def _listed(file: StoredFile, start: int, stop: int) -> int:
    (size,) = struct.unpack_from("<I", file.read(start, start + 6), 2)
    count = int(size) // 16
    if stop - start != 6 + 16 * count:
        raise struct.error("a message index that does not fit its record")
    return count


def file_records(file: StoredFile, at: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield (op code, start, stop) of the records between two positions, until one is damaged or incomplete."""
    head = RECORD
    while at + head.size <= end:
        data = file.read(at, at + head.size)
        if len(data) < head.size:
            return
        op, size = head.unpack(data)
        at += head.size
        if at + size > end or not (0 < op <= DATA_END or op >= PRIVATE_OP):
            return
        yield op, at, at + size
        at += size


class Scan:
    """Scans records and adds them to the contents."""

    def __init__(self, file: StoredFile, contents: Contents) -> None:
        self._file = file
        self._contents = contents
        self._data_end = self._checksum = 0
        self._lost_at = -1  # start of the damaged chunk to which message indexes belong
        self._run: list[tuple[int, int, int, int]] = []  # channel, log time, start and stop of the record
        self.counts: Counter[int] = Counter()  # messages found, by channel
        self.private = 0  # number of skipped records with private op codes
        self.ended = False  # whether the end of the data section was reached

    def walk(self, at: int, end: int) -> int:
        """Read the records between two positions; return the end of the last readable record."""
        for op, start, stop in file_records(self._file, at, end):
            try:
                self._record(op, start, stop)
            except (struct.error, UnicodeDecodeError):
                break
            at = stop
            if op == DATA_END:
                break
        self._flush()
        return at

    def check_data(self) -> None:
        """Verify the checksum of the data section, unless all messages are in chunks with checksums."""
        found, file = self._contents, self._file
        if not self._checksum or found.damaged or found.notes or not found.parts:
            return
        if all(part.is_chunk for part in found.parts) and has_checksum(file, found.parts[0]):
            return
        checksum = 0
        for at in range(0, self._data_end, RUN_BYTES):
            checksum = zlib.crc32(file.read(at, min(at + RUN_BYTES, self._data_end)), checksum)
        found.verified = checksum == self._checksum
        if not found.verified:
            found.notes.append("the checksum of its data does not match; some messages may be altered")

    def _record(self, op: int, start: int, stop: int) -> None:
        if op == MESSAGE:
            channel, _, log_ns, _ = MESSAGE_HEAD.unpack(self._file.read(start, start + MESSAGE_HEAD.size))
            if not MESSAGE_HEAD.size <= stop - start <= MAX_BYTES:
                raise struct.error("a message without its head, or of many megabytes")
            self._run.append((channel, log_ns, start - RECORD.size, stop))
            if stop - self._run[0][2] > RUN_BYTES:
                self._flush()
            return
        self._flush()
        if op == CHUNK:
            self._chunk(start, stop)
        elif op == MESSAGE_INDEX:
            listed = _listed(self._file, start, stop)
            if self._lost_at in self._contents.damaged:
                self._contents.damaged[self._lost_at] = (self._contents.damaged[self._lost_at] or 0) + listed
        elif op in (SCHEMA, CHANNEL):
            if stop - start > _MAX_DECLARATION:
                raise struct.error("a declaration of many megabytes")
            self._contents.declare(op, self._file.read(start, stop))
        elif op == DATA_END:
            (self._checksum,) = struct.unpack("<I", self._file.read(start, start + 4))
            self._data_end = start - RECORD.size
            self.ended = True
        elif op >= PRIVATE_OP:
            self.private += 1
        elif op not in SKIPPED:
            raise struct.error("a record that has no place among the data")

    def _chunk(self, start: int, stop: int) -> None:
        found = self._contents
        found.chunks += 1
        times: list[int] = []
        keys: list[int] = []
        try:
            content, _ = chunk_records(self._file, start, stop)
            at = 0
            for op, begin, end in records(content):
                if op == MESSAGE:
                    channel, _, log_ns, _ = MESSAGE_HEAD.unpack_from(content, begin)
                    times.append(log_ns)
                    keys.append(channel)
                elif op in (SCHEMA, CHANNEL):
                    found.declare(op, bytes(content[begin:end]))
                at = end
            if at != len(content):
                raise RoboCacheError("it ends inside a record")
        except _DAMAGE:
            found.damaged[start] = None
            self._lost_at = start
            return
        self._lost_at = -1
        self.counts.update(keys)
        if times:
            found.parts.append(Part(min(times), max(times), start, stop, stop, True, frozenset(keys)))

    def _flush(self) -> None:
        if self._run:
            keys, times, starts, stops = zip(*self._run, strict=True)
            part = Part(min(times), max(times), starts[0], stops[-1], stops[-1], False, frozenset(keys))
            self._contents.parts.append(part)
            self.counts.update(keys)
            self._run = []


# Finds the contents of an MCAP file from its summary, or from its records if the summary is missing or damaged.
#
# The summary is used if its checksum and its entries match the file. Data outside of the listed chunks is read record
# by record, so that messages that the summary does not list are found too.

MAX_SAMPLED = 8 << 20  # bytes of a sample of chunks; chunks with topics that no other one has may exceed it
SPREAD = 8  # chunks of a sample, evenly spaced
MAX_SUMMARY = 64 << 20  # bytes; enough for the indexes of 400,000 chunks


class _Summary(NamedTuple):
    start: int
    indexes: list[ChunkIndex]
    messages: int | None  # None: no statistics
    counts: dict[int, int]
    declarations: list[tuple[int, bytes]]


def read_contents(file: StoredFile) -> Contents:
    """Return the contents of a file; RoboCacheError if it has no readable message."""
    summary, wrong = _read_summary(file)
    found = _from_summary(file, summary) if summary else None
    return found or _from_records(file, summary, wrong)


def sampled_parts(parts: Sequence[Part], channels: Collection[int]) -> list[Part]:
    """Return chunks in which each channel has a message, and others evenly spaced, in the order of the file.

    Args:
        parts: of the file.
        channels: that have messages.
    """
    chosen: dict[int, Part] = {}
    missing = set(channels)
    nbytes = 0

    def take(part: Part) -> None:
        nonlocal nbytes
        if part.start not in chosen:
            chosen[part.start] = part
            nbytes += part.nbytes
            missing.difference_update(part.channels)

    for number in range(SPREAD):
        part = parts[number * (len(parts) - 1) // max(SPREAD - 1, 1)]
        if nbytes + part.nbytes <= MAX_SAMPLED:
            take(part)
    while missing and (part := max(parts, key=lambda each: (len(missing & each.channels), -each.nbytes))):
        if not missing & part.channels:
            break
        take(part)
    return sorted(chosen.values(), key=lambda each: each.start)


def _read_summary(file: StoredFile) -> tuple[_Summary | None, str]:
    """Return the summary, and the reason if a summary exists but cannot be used."""
    at = file.size - FOOTER_SIZE
    end = file.read(max(at, 0), file.size)
    if at < len(MCAP_MAGIC) or not end.endswith(MCAP_MAGIC):
        return None, ""
    damaged = "its summary is damaged, so its records were read one by one"
    try:
        if RECORD.unpack_from(end) != (FOOTER, FOOTER_SIZE - RECORD.size - len(MCAP_MAGIC)):
            return None, damaged
        start, _, checksum = _FOOTER.unpack_from(end, RECORD.size)
        if not start:
            known = zlib.crc32(end[: RECORD.size + 16]) if checksum else 0
            return None, damaged if checksum != known else ""
        fits = len(MCAP_MAGIC) <= start < at <= start + MAX_SUMMARY
        data = file.read(start, file.size - len(MCAP_MAGIC) - 4) if fits else b""
        if not data or (checksum and zlib.crc32(data) != checksum):
            return None, damaged
        found = _Summary(start, [], None, {}, [])
        reached = start
        for op, begin, stop in file_records(file, start, at):
            body, reached = data[begin - start : stop - start], stop
            if op == CHUNK_INDEX:
                found.indexes.append(read_chunk_index(body))
            elif op == STATISTICS:
                messages, *_, size = _STATISTICS_HEAD.unpack_from(body)
                counts = struct.iter_unpack("<HQ", body[_STATISTICS_HEAD.size :][:size])
                found = found._replace(messages=messages, counts=dict(counts))
            elif op in (SCHEMA, CHANNEL):
                found.declarations.append((op, body))
        return (found, "") if reached == at else (None, damaged)
    except (struct.error, UnicodeDecodeError):
        return None, damaged


def _from_summary(file: StoredFile, summary: _Summary) -> Contents | None:
    """Return the contents according to the summary; None if it is incomplete or does not match the file."""
    indexes = sorted(summary.indexes, key=lambda index: index.start)
    ends = [len(MCAP_MAGIC), *(index.index_stop for index in indexes)]
    starts = [*(index.start for index in indexes), summary.start]
    if summary.messages is None or sum(summary.counts.values()) != summary.messages or not indexes:
        return None
    if any(end > start for end, start in zip(ends, starts, strict=True)):
        return None
    if any(index.stop > index.index_stop or index.first_ns > index.last_ns for index in indexes):
        return None
    found = Contents(chunks=len(indexes))
    try:
        for op, body in summary.declarations:
            found.declare(op, body)
    except (struct.error, UnicodeDecodeError):
        return None
    for index in indexes:
        where = (index.start + RECORD.size, index.stop, index.index_stop)
        found.parts.append(Part(index.first_ns, index.last_ns, *where, True, index.channels))
    scan = Scan(file, found)
    for at, end in zip(ends, starts, strict=True):
        reached = scan.walk(at, end)
        if reached < end:
            found.notes.append(f"{end - reached:,} bytes between its chunks are damaged and were not read")
    scan.check_data()
    if not found.channels.keys() >= summary.counts.keys() | scan.counts.keys():
        return None
    if not found.schemas.keys() >= {channel.schema for channel in found.channels.values() if channel.schema}:
        return None
    found.counts = Counter(summary.counts)
    found.total = summary.messages
    return found


def _from_records(file: StoredFile, summary: _Summary | None, wrong: str) -> Contents:
    """Return the contents from a scan of all records, and compare them with the statistics of the summary."""
    file.fetch_all()
    found = Contents()
    scan = Scan(file, found)
    end = summary.start if summary else file.size
    reached = scan.walk(len(MCAP_MAGIC), end)
    count = sum(scan.counts.values())
    found.counts = scan.counts
    lost = found.damaged.values()
    found.total = max(count + sum(n or 0 for n in lost), (summary and summary.messages) or 0)
    if wrong:
        found.notes.append(wrong)
    if not scan.ended:
        if not count and not found.damaged:
            raise RoboCacheError("truncated before its first complete message; nothing can be recovered")
        has_end = file.read(file.size - len(MCAP_MAGIC), file.size) == MCAP_MAGIC
        why = f"is damaged at byte {reached:,}" if has_end else "has no footer, as after a crash of the recorder"
        found.notes.append(f"{why}; {count} messages were recovered, the last {end - reached} bytes were not")
    elif summary and summary.messages is not None and summary.messages != count and not found.damaged:
        found.notes.append(f"{count:,} of {summary.messages:,} messages were found")
    unknown = sum(n for key, n in scan.counts.items() if key not in found.channels)
    if unknown:
        found.notes.append(f"{unknown:,} messages belong to no declared topic")
    if scan.private and not (summary and summary.messages is not None):
        found.notes.append(f"{scan.private:,} records of unknown kinds were skipped")
    scan.check_data()
    return found


# Reads MCAP files: complete files by their index, and the remaining data of truncated or damaged files.
#
# A pass over a chunk skips the messages that are not selected. Small messages are copied. Large messages are views of
# the chunk if most of it is selected, so that they do not keep other data in memory.

READ = ("cdr", "ros1")  # encodings of messages
NOT_ROS = "are not ROS messages (cdr, ros1)"
LARGE_BYTES = 64 << 10


class McapFile:
    """An open MCAP file.

    Args:
        path: the file.
        sampled: give only the messages of a few chunks; what the index says is that of the whole file.

    Attributes:
        topics: topics with CDR or ROS 1 messages.
        start_ns: lower bound of the log times of all messages.

    Errors:
        RoboCacheError: not MCAP, or no readable data.
    """

    def __init__(self, path: AnyPath, *, sampled: bool = False) -> None:
        self._file = StoredFile(path)
        with self._file.closed_on_error():
            if self._file.read(0, len(MCAP_MAGIC)) != MCAP_MAGIC:
                raise RoboCacheError("not an MCAP file (wrong first bytes); copy it again")
            self._contents = read_contents(self._file)
        found = self._contents
        self._read_notes: dict[str, None] = {}  # found while reading; dict keys, to keep the order
        others = {c.key: c.encoding for c in found.channels.values() if c.encoding not in READ and found.counts[c.key]}
        if others:
            count = sum(found.counts[key] for key in others)
            encodings = printable(", ".join(sorted(set(others.values()))))
            found.notes.append(f"{count:,} messages {NOT_ROS} but {encodings!r}, and were not read")
        self._parts = sampled_parts(found.parts, found.counts.keys()) if sampled and found.parts else found.parts
        self.start_ns = min((part.first_ns for part in found.parts), default=0)
        self.topics = tuple(
            Topic(c.topic, kind, found.counts[c.key], definition, _is_latched(c), c.encoding)
            for c in found.channels.values()
            if c.encoding in READ
            for kind, definition in [found.schemas.get(c.schema, ("", ""))]
        )

    @property
    def share(self) -> float:
        """The share of the chunks that are read."""
        return len(self._parts) / len(self._contents.parts) if self._parts else 1.0

    @property
    def spans(self) -> dict[str, tuple[int, int]]:
        """First and last log time of the chunks with a topic, by topic; without topics whose chunks are not known."""
        found: dict[str, tuple[int, int]] = {}
        for part in self._contents.parts:
            for key in part.channels & self._contents.channels.keys():
                name = self._contents.channels[key].topic
                first_ns, last_ns = found.get(name, (part.first_ns, part.last_ns))
                found[name] = min(first_ns, part.first_ns), max(last_ns, part.last_ns)
        return found

    @property
    def notes(self) -> list[str]:
        """Notes on lost or damaged data; complete after all messages have been read."""
        found = self._contents
        damage = []
        if found.damaged:
            lost = list(found.damaged.values())
            known = sum(n for n in lost if n is not None)
            count = f"{known:,} of {found.total:,}" if None not in lost else "their"
            damage = [f"{len(lost):,} of {found.chunks:,} chunks are damaged; {count} messages could not be read"]
        return [*found.notes, *damage, *self._read_notes]

    @property
    def has_checksums(self) -> bool:
        """Whether checksums cover all messages."""
        found = self._contents
        return found.verified or all(has_checksum(self._file, part) for part in self._parts)

    def log_times(self) -> list[Group]:
        """The log times of the file as groups, separated by long pauses; damage is noted."""
        parts = self._contents.parts
        groups = joined(Group(part.first_ns, part.last_ns, 1) for part in parts)
        if self.share < 1:
            return groups
        if len(groups) == 1 and all(part.last_ns - part.first_ns <= PAUSE_NS for part in parts):
            return [groups[0]._replace(size=max(self._contents.total, 1))]
        times: list[np.ndarray[tuple[int], np.dtype[np.uint64]]] = []
        for part in parts:  # a chunk may contain a wrong time among valid ones, so each message is checked
            content, _ = self._content(part)
            heads = (MESSAGE_HEAD.unpack_from(content, at) for op, at, _ in records(content) if op == MESSAGE)
            times.append(np.fromiter((log_ns for _, _, log_ns, _ in heads), np.uint64))
        return groups_of(np.concatenate(times)) if times else []

    def messages(self, topics: Collection[str], start_ns: int, stop_ns: int) -> Iterator[RawMessage]:
        """Yield messages in log order. Chunks that overlap in time are merged."""
        found = self._contents
        names = {key: c.topic for key, c in found.channels.items() if c.encoding in READ and c.topic in topics}
        wanted = [part for part in self._parts if not part.channels or names.keys() & part.channels]
        parts = sorted(part for part in wanted if part.last_ns >= start_ns and part.first_ns < stop_ns)
        seen = 0

        def read(part: Part) -> tuple[int, list[RawMessage]]:
            nonlocal seen
            content, listed = self._content(part)
            count, messages = self._messages(content, listed, names, start_ns, stop_ns)
            nbytes = len(content)
            del content  # free it before the next read: each may be 192 MB
            seen += count
            if count != len(messages) and start_ns <= part.first_ns and part.last_ns < stop_ns:
                self._read_notes["some messages were left out: their times differ from those in the index"] = None
            return nbytes, messages

        yield from merged_parts(parts, read, lambda note: self._read_notes.setdefault(note))
        promised = sum(found.counts[key] for key in names)
        if len(parts) == len(wanted) and self.share == 1 and seen != promised and not found.damaged:
            self._read_notes[f"{seen:,} of {promised:,} messages of the selected topics were found"] = None

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _content(self, part: Part) -> tuple[Data, Messages | list[Row] | None]:
        """Return the records of a part, empty if they are damaged, which is noted; and its messages, if they are known.

        A chunk without a checksum is damaged if its messages are not exactly those in the indexes after it.
        """
        if not part.is_chunk:
            return self._file.block(part.start, part.stop), None
        try:
            content, verified = chunk_records(self._file, part.start, part.stop)
            if part.index_stop <= part.stop:
                return content, None
            indexes = self._file.exact(part.stop, min(part.index_stop, part.stop + MAX_BYTES))
            found: Messages | list[Row] | None = None
            if len(indexes) <= 16 * _FEW_MESSAGES:
                rows, complete = walked_messages(content)
                found, exactly = (rows, are_indexed(rows, indexes)) if complete else (None, False)
            else:
                found, exactly = indexed_messages(content, indexes)
            if not (verified or exactly):
                raise RoboCacheError("its messages are not those in its indexes")
        except RoboCacheError:
            lost = messages_indexed(self._file, part.stop, part.index_stop)
            self._contents.damaged.setdefault(part.start, lost)
            return b"", None
        return content, found

    def _messages(
        self, content: Data, found: Messages | list[Row] | None, names: dict[int, str], low: int, high: int
    ) -> tuple[int, list[RawMessage]]:
        """Return the number of messages of the channels `names`, and the messages within a time range."""
        if found is None:
            found, complete = walked_messages(content)
            if not complete:
                self._read_notes["some messages are truncated inside a chunk and could not be read"] = None
        rows: Iterable[Row]
        if isinstance(found, Messages):
            named = np.zeros(1 << 16, bool)
            named[list(names)] = True
            selected = named[found.channels]
            chosen = np.flatnonzero(selected & (found.logs_ns >= low) & (found.logs_ns < high))
            columns = [column[chosen] for column in found]
            sizes = columns[3] - columns[2]
            count, large_bytes = int(selected.sum()), int(sizes[sizes >= LARGE_BYTES].sum())
            rows = zip(*(column.tolist() for column in columns), strict=True)
        else:
            mine = [row for row in found if row[0] in names]
            rows = [row for row in mine if low <= row[1] < high]
            count = len(mine)
            large_bytes = sum(stop - start for _, _, start, stop in rows if stop - start >= LARGE_BYTES)
        shared = LARGE_BYTES if large_bytes and 2 * large_bytes >= len(content) else MAX_BYTES + 1
        whole = memoryview(content)
        # As `RawMessage(topic, log_ns, data)`, which takes three times as long.
        make = partial(tuple.__new__, RawMessage)
        return count, [
            make((names[channel], log_ns, data if stop - start >= shared else bytes(data)))
            for channel, log_ns, start, stop in rows
            for data in (whole[start:stop],)
        ]


def _is_latched(channel: Channel) -> bool:
    return is_latched(channel.metadata.get("offered_qos_profiles", "")) or channel.metadata.get("latching") == "1"


_CHECKSUM_AT = 3 * 8  # in a chunk: after its first and last log time and its size


def add_checksums(path: Path) -> None:
    """Store the checksum of each chunk in a complete file, so that readers detect altered messages.

    Errors:
        RoboCacheError: a chunk is damaged.
    """
    with path.open("r+b") as output, closing(StoredFile(path)) as file:
        for op, start, stop in file_records(file, len(MCAP_MAGIC), file.size):
            if op == CHUNK:
                output.seek(start + _CHECKSUM_AT)
                output.write(struct.pack("<I", zlib.crc32(chunk_records(file, start, stop)[0])))
