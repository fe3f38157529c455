"""Scans the records of an MCAP file sequentially, and reads its chunks."""

from __future__ import annotations

import struct
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from robocache_ros.bags.source import Data
from robocache_ros.bags.storage import mcap_records as mcap
from robocache_ros.bags.storage.codecs import MAX_BYTES, decompress
from robocache_ros.errors import RoboCacheError
from robocache_ros.remote.held_files import StoredFile

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
    channels: dict[int, mcap.Channel] = field(default_factory=dict)
    parts: list[Part] = field(default_factory=list)
    counts: Counter[int] = field(default_factory=Counter)
    total: int = 0
    chunks: int = 0
    damaged: dict[int, int | None] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    verified: bool = False

    def declare(self, op: int, body: bytes) -> None:
        """Add a schema or a channel; struct.error or UnicodeDecodeError if it is damaged."""
        if op == mcap.SCHEMA:
            key, name, definition = mcap.read_schema(body)
            self.schemas.setdefault(key, (name, definition))
        elif op == mcap.CHANNEL:
            channel = mcap.read_channel(body)
            self.channels.setdefault(channel.key, channel)


def chunk_records(file: StoredFile, start: int, stop: int) -> tuple[Data, bool]:
    """Return the records of the chunk with the content [start, stop); RoboCacheError if it is damaged.

    The second value tells whether the chunk has a checksum, which was verified.
    """
    try:
        first = file.exact(start - mcap.RECORD.size, min(start + 64, stop))
        op, size = mcap.RECORD.unpack_from(first)
        head = mcap.read_chunk_head(first[mcap.RECORD.size :])
    except (struct.error, UnicodeDecodeError):
        raise RoboCacheError("its header is damaged") from None
    if op != mcap.CHUNK or size != stop - start or head.data_at + head.length > size or head.length > MAX_BYTES:
        raise RoboCacheError("its header is damaged")
    data = file.block(start + head.data_at, start + head.data_at + head.length)
    content = decompress(head.compression, data, head.size)
    if head.checksum and zlib.crc32(content) != head.checksum:
        raise RoboCacheError("its checksum does not match")
    if mcap.is_overfull(content):
        raise RoboCacheError(f"it has more than {mcap.MAX_RECORDS:,} records")
    return content, bool(head.checksum)


def index_records(file: StoredFile, start: int, stop: int) -> bytes:
    """Return the message indexes after a chunk."""
    return file.exact(start, min(stop, start + MAX_BYTES))


def has_checksum(file: StoredFile, part: Part) -> bool:
    """Whether a part is a chunk with a checksum, which is verified when the chunk is read."""
    try:
        return part.is_chunk and bool(mcap.read_chunk_head(file.read(part.start, part.start + 64)).checksum)
    except (struct.error, UnicodeDecodeError):
        return False


def messages_indexed(file: StoredFile, at: int, end: int) -> int | None:
    """Return the number of messages in the indexes after a chunk; None if there are no indexes."""
    indexes = ((start, stop) for op, start, stop in file_records(file, at, end) if op == mcap.MESSAGE_INDEX)
    try:
        counts = [_listed(file, start, stop) for start, stop in indexes]
    except struct.error:
        return None
    return sum(counts) if counts else None


def _listed(file: StoredFile, start: int, stop: int) -> int:
    count = mcap.read_message_index(file.read(start, start + 6))
    if stop - start != 6 + 16 * count:
        raise struct.error("a message index that does not fit its record")
    return count


def file_records(file: StoredFile, at: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield (op code, start, stop) of the records between two positions, until one is damaged or incomplete."""
    head = mcap.RECORD
    while at + head.size <= end:
        data = file.read(at, at + head.size)
        if len(data) < head.size:
            return
        op, size = head.unpack(data)
        at += head.size
        if at + size > end or not (0 < op <= mcap.DATA_END or op >= mcap.PRIVATE_OP):
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
            if op == mcap.DATA_END:
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
        if op == mcap.MESSAGE:
            channel, _, log_ns, _ = mcap.MESSAGE_HEAD.unpack(self._file.read(start, start + mcap.MESSAGE_HEAD.size))
            if not mcap.MESSAGE_HEAD.size <= stop - start <= MAX_BYTES:
                raise struct.error("a message without its head, or of many megabytes")
            self._run.append((channel, log_ns, start - mcap.RECORD.size, stop))
            if stop - self._run[0][2] > RUN_BYTES:
                self._flush()
            return
        self._flush()
        if op == mcap.CHUNK:
            self._chunk(start, stop)
        elif op == mcap.MESSAGE_INDEX:
            listed = _listed(self._file, start, stop)
            if self._lost_at in self._contents.damaged:
                self._contents.damaged[self._lost_at] = (self._contents.damaged[self._lost_at] or 0) + listed
        elif op in (mcap.SCHEMA, mcap.CHANNEL):
            if stop - start > _MAX_DECLARATION:
                raise struct.error("a declaration of many megabytes")
            self._contents.declare(op, self._file.read(start, stop))
        elif op == mcap.DATA_END:
            (self._checksum,) = struct.unpack("<I", self._file.read(start, start + 4))
            self._data_end = start - mcap.RECORD.size
            self.ended = True
        elif op >= mcap.PRIVATE_OP:
            self.private += 1
        elif op not in mcap.SKIPPED:
            raise struct.error("a record that has no place among the data")

    def _chunk(self, start: int, stop: int) -> None:
        found = self._contents
        found.chunks += 1
        times: list[int] = []
        keys: list[int] = []
        try:
            content, _ = chunk_records(self._file, start, stop)
            at = 0
            for op, begin, end in mcap.records(content):
                if op == mcap.MESSAGE:
                    channel, _, log_ns, _ = mcap.MESSAGE_HEAD.unpack_from(content, begin)
                    times.append(log_ns)
                    keys.append(channel)
                elif op in (mcap.SCHEMA, mcap.CHANNEL):
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
