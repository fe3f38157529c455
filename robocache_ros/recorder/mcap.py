"""Write MCAP files (https://mcap.dev/spec) chunk by chunk, complete those of a killed process, and read their metadata.

All that a file has up to its last complete chunk is readable at any time: chunks are written whole and synced, and
readers without the summary at the end scan the chunks.
"""

from __future__ import annotations

import fcntl
import os
import struct
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from robocache_ros.bags.storage import mcap
from robocache_ros.bags.storage.mcap import RECORD
from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.storage.downloads import StoredFile
from robocache_ros.storage.paths import AnyPath

CHUNK_BYTES = 1 << 20  # a chunk ends with the message that reaches this size
MAX_METADATA_BYTES = 16 << 20  # of a record of metadata that is read
HEADER, METADATA, METADATA_INDEX = 0x01, 0x0C, 0x0D
MAX_CHANNELS = 65_535
_ENDLESS = "    sec: 9223372036\n    nsec: 854775807\n"
_LATCHED = (  # offered_qos_profiles, as rosbag2 writes them
    "- history: keep_last\n  depth: 1\n  reliability: reliable\n  durability: transient_local\n"
    f"  deadline:\n{_ENDLESS}  lifespan:\n{_ENDLESS}  liveliness: automatic\n  liveliness_lease_duration:\n{_ENDLESS}"
    "  avoid_ros_namespace_conventions: false\n"
)


class _Chunk(NamedTuple):
    first_ns: int
    last_ns: int
    start: int
    length: int
    indexes: dict[int, int]  # channel -> place of its message index
    indexes_length: int
    size: int  # of its records


class _Declared(NamedTuple):
    op: int
    body: bytes


class McapWriter:
    """Writes a new file; for one thread. The file is locked while it is written.

    Args:
        path: of the file, which must not exist.
        metadata: records of names and values by their name, which begin the file.

    Errors:
        RoboCacheError: the file exists.
        OSError: it cannot be written.
    """

    def __init__(self, path: Path, metadata: Mapping[str, Mapping[str, str]]) -> None:
        try:
            self._open(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644), path)
        except FileExistsError:
            raise RoboCacheError(f"{printable(path)}: exists; give a new file") from None
        try:
            self._append(mcap.MCAP_MAGIC + _record(HEADER, _text("ros2") + _text("robocache_ros")))
            for name, values in metadata.items():
                self.add_metadata(name, values)
            os.fdatasync(self._fd)
        except BaseException:
            self.abandon()
            raise

    def _open(self, fd: int, path: Path) -> None:
        self._fd, self.path = fd, path
        self._size = 0  # of the file, up to its last complete record
        self._declared: list[_Declared] = []
        self._metadata: list[tuple[int, int, str]] = []  # place, length and name
        self._chunks: list[_Chunk] = []
        self._counts: Counter[int] = Counter()
        self._content = bytearray()  # records of the open chunk
        self._entries: dict[int, list[tuple[int, int]]] = {}  # channel -> log time and place in the open chunk
        self._span: tuple[int, int] | None = None  # first and last log time of the open chunk
        self._sequence = 0
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.abandon()
            raise RoboCacheError(f"{printable(path)}: another process writes it; wait until it ends") from None

    @property
    def messages(self) -> int:
        """Number of messages in complete chunks."""
        return sum(self._counts.values())

    @property
    def metadata_names(self) -> set[str]:
        """Names of the metadata in the file."""
        return {name for _, _, name in self._metadata}

    @property
    def pending(self) -> bool:
        """Whether a chunk is open."""
        return bool(self._content)

    def add_metadata(self, name: str, values: Mapping[str, str]) -> None:
        """Write names and values under a name."""
        pairs = b"".join(_text(key) + _text(value) for key, value in values.items())
        record = _record(METADATA, _text(name) + struct.pack("<I", len(pairs)) + pairs)
        at = self._size
        self._append(record)
        self._metadata.append((at, len(record), name))

    def add_channel(
        self,
        topic: str,
        kind: str,
        definition: str,
        *,
        encoding: str = "cdr",
        latched: bool = False,
    ) -> int:
        """Declare the messages of a topic, by their type and `definition_text`; returns the channel for `write`.

        `latched`: whether publishers keep messages for late subscribers (transient_local).
        """
        key = len(self._declared) // 2 + 1
        if key > MAX_CHANNELS:
            raise RoboCacheError(f"{printable(topic)}: a file has {MAX_CHANNELS:,} topics at most; record fewer")
        pairs = _text("offered_qos_profiles") + _text(_LATCHED) if latched else b""
        schema = struct.pack("<H", key) + _text(kind) + _text("ros2msg" if definition else "") + _text(definition)
        head = struct.pack("<HH", key, key) + _text(topic) + _text(encoding)
        made = [_Declared(mcap.SCHEMA, schema), _Declared(mcap.CHANNEL, head + struct.pack("<I", len(pairs)) + pairs)]
        self._append(b"".join(_record(*one) for one in made))
        self._declared += made
        return key

    def write(self, channel: int, log_ns: int, publish_ns: int, data: bytes | memoryview) -> None:
        """Add a message to the open chunk; write the chunk if it has `CHUNK_BYTES`."""
        self._entries.setdefault(channel, []).append((log_ns, len(self._content)))
        self._content += RECORD.pack(mcap.MESSAGE, mcap.MESSAGE_HEAD.size + len(data))
        self._content += mcap.MESSAGE_HEAD.pack(channel, self._sequence & 0xFFFFFFFF, log_ns, publish_ns)
        self._content += data
        self._sequence += 1
        first_ns, last_ns = self._span or (log_ns, log_ns)
        self._span = min(first_ns, log_ns), max(last_ns, log_ns)
        if len(self._content) >= CHUNK_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write the open chunk, if there is one, and wait until it is on the disk.

        Errors:
            OSError: it cannot be written. The chunk is lost; the file has all chunks before it.
        """
        if not self._content:
            return
        content, entries, span = self._content, self._entries, self._span
        self._content, self._entries, self._span = bytearray(), {}, None
        assert span
        head = struct.pack("<QQQI", *span, len(content), zlib.crc32(content)) + _text("")
        head += struct.pack("<Q", len(content))
        start = self._size
        tail, indexes = _message_indexes(entries, start + RECORD.size + len(head) + len(content))
        self._append(RECORD.pack(mcap.CHUNK, len(head) + len(content)) + head, content, tail)
        os.fdatasync(self._fd)
        length = RECORD.size + len(head) + len(content)
        self._chunks.append(_Chunk(*span, start, length, indexes, len(tail), len(content)))
        self._counts.update({key: len(pairs) for key, pairs in entries.items()})

    def close(self) -> None:
        """Write the open chunk and the summary, and close the file.

        Errors:
            OSError: they cannot be written. The file is closed, and has all chunks before.
        """
        try:
            self.flush()
            end = _record(mcap.DATA_END, struct.pack("<I", 0))
            summary = b"".join(self._summary())
            foot = RECORD.pack(mcap.FOOTER, 20) + struct.pack("<QQ", self._size + len(end), 0)
            checksum = struct.pack("<I", zlib.crc32(summary + foot))
            self._append(end, summary + foot + checksum + mcap.MCAP_MAGIC)
            os.fsync(self._fd)
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Close the file as it is."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _append(self, *parts: bytes | bytearray) -> None:
        size = self._size
        try:
            for part in parts:
                view = memoryview(part)
                while view:
                    count = os.pwrite(self._fd, view, size)
                    view, size = view[count:], size + count
        except OSError:
            os.ftruncate(self._fd, self._size)
            raise
        self._size = size

    def _summary(self) -> Iterator[bytes]:
        for op in (mcap.SCHEMA, mcap.CHANNEL):
            yield from (_record(*one) for one in self._declared if one.op == op)
        pairs = b"".join(struct.pack("<HQ", *item) for item in sorted(self._counts.items()))
        channels = len(self._declared) // 2
        first_ns = min((chunk.first_ns for chunk in self._chunks), default=0)
        last_ns = max((chunk.last_ns for chunk in self._chunks), default=0)
        counts = (self.messages, channels, channels, 0, len(self._metadata), len(self._chunks))
        yield _record(mcap.STATISTICS, struct.pack("<QHIIIIQQI", *counts, first_ns, last_ns, len(pairs)) + pairs)
        for chunk in self._chunks:
            pairs = b"".join(struct.pack("<HQ", *item) for item in chunk.indexes.items())
            head = struct.pack("<QQQQI", chunk.first_ns, chunk.last_ns, chunk.start, chunk.length, len(pairs))
            tail = struct.pack("<Q", chunk.indexes_length) + _text("") + struct.pack("<QQ", chunk.size, chunk.size)
            yield _record(mcap.CHUNK_INDEX, head + pairs + tail)
        for at, length, name in self._metadata:
            yield _record(METADATA_INDEX, struct.pack("<QQ", at, length) + _text(name))

    @classmethod
    def reopen(cls, path: Path) -> McapWriter:
        """Open a file that its writer did not close, at the end of its last complete chunk.

        Errors:
            RoboCacheError: it has no complete record, or another process writes it.
            OSError: it cannot be read or written.
        """
        made = cls.__new__(cls)
        made._open(os.open(path, os.O_RDWR | os.O_CLOEXEC), path)
        try:
            made._scan()
        except BaseException:
            made.abandon()
            raise
        return made

    def _scan(self) -> None:
        self._size = len(mcap.MCAP_MAGIC)
        with closing(StoredFile(self.path)) as file:
            last: dict[int, list[tuple[int, int]]] = {}  # of the last chunk, whose indexes may be incomplete
            for op, start, stop in mcap.file_records(file, len(mcap.MCAP_MAGIC), file.size):
                at = start - RECORD.size
                if op in (mcap.SCHEMA, mcap.CHANNEL):
                    self._declared.append(_Declared(op, file.exact(start, stop)))
                elif op == METADATA:
                    name, _ = _read_metadata(file.exact(start, min(stop, start + MAX_METADATA_BYTES)))
                    self._metadata.append((at, stop - at, name))
                elif op == mcap.CHUNK:
                    try:
                        content, _ = mcap.chunk_records(file, start, stop)
                    except RoboCacheError:
                        break  # a disk that lost power may have parts of it
                    last = _entries_of(content)
                    times = [log_ns for pairs in last.values() for log_ns, _ in pairs]
                    tail, indexes = _message_indexes(last, stop)
                    self._chunks.append(_Chunk(min(times), max(times), at, stop - at, indexes, len(tail), len(content)))
                    self._counts.update({key: len(pairs) for key, pairs in last.items()})
                elif op not in (HEADER, mcap.MESSAGE_INDEX):
                    break
                self._size = stop
        if self._size == len(mcap.MCAP_MAGIC):
            raise RoboCacheError(f"{printable(self.path)}: has no complete record; remove it")
        if self._chunks:
            chunk = self._chunks[-1]
            end = chunk.start + chunk.length
            if self._size < end + chunk.indexes_length:
                self._size = end
                self._append(_message_indexes(last, end)[0])
        os.ftruncate(self._fd, self._size)


def read_metadata(path: AnyPath) -> dict[str, dict[str, str]]:
    """Return the records of metadata at the start of an MCAP file, and those in its summary, by their name.

    A few records are read, whatever the size of the file. A file of another kind, or a damaged one, has none.

    Errors:
        RoboCacheError: it cannot be opened.
    """
    found: dict[str, dict[str, str]] = {}
    with closing(StoredFile(path)) as file:
        if file.read(0, len(mcap.MCAP_MAGIC)) != mcap.MCAP_MAGIC:
            return {}
        try:
            for op, start, stop in mcap.file_records(file, len(mcap.MCAP_MAGIC), file.size):
                if op == METADATA and stop - start <= MAX_METADATA_BYTES:
                    found.setdefault(*_read_metadata(file.exact(start, stop)))
                elif op != HEADER:
                    break
            for start, stop in _indexed_metadata(file):
                found.setdefault(*_read_metadata(file.exact(start, stop)))
        except (struct.error, UnicodeDecodeError):
            pass  # what is intact is used
    return found


def definition_text(kind: str, definitions: Mapping[str, str]) -> str:
    """Return the definition of a type with those of the types that it needs, as MCAP schemas have it."""
    needed = {name: text for name, text in definitions.items() if name != kind}
    others = [f"{'=' * 80}\nMSG: {name.replace('/msg/', '/')}\n{text}" for name, text in needed.items()]
    return "\n".join([definitions[kind], *others])


def _indexed_metadata(file: StoredFile) -> Iterator[tuple[int, int]]:
    """Yield start and stop of the metadata that the summary of a complete file lists."""
    at = file.size - mcap.FOOTER_SIZE
    end = file.read(max(at, 0), file.size)
    if at < 0 or not end.endswith(mcap.MCAP_MAGIC) or end[0] != mcap.FOOTER:
        return
    (start,) = struct.unpack_from("<Q", end, RECORD.size)
    for op, begin, stop in mcap.file_records(file, start, at) if 0 < start < at else ():
        if op == METADATA_INDEX and stop - begin >= 16:
            place, length = struct.unpack("<QQ", file.read(begin, begin + 16))
            if RECORD.size < length <= MAX_METADATA_BYTES and place + length <= file.size:
                yield place + RECORD.size, place + length


def _read_metadata(body: bytes) -> tuple[str, dict[str, str]]:
    name, at = mcap.read_text(body, 0)
    (size,) = struct.unpack_from("<I", body, at)
    at, end, values = at + 4, at + 4 + size, dict[str, str]()
    while at < min(end, len(body)):
        key, at = mcap.read_text(body, at)
        values[key], at = mcap.read_text(body, at)
    return name, values


def _entries_of(content: bytes | memoryview) -> dict[int, list[tuple[int, int]]]:
    entries: dict[int, list[tuple[int, int]]] = {}
    for op, start, _ in mcap.records(content):
        if op == mcap.MESSAGE:
            channel, _, log_ns, _ = mcap.MESSAGE_HEAD.unpack_from(content, start)
            entries.setdefault(channel, []).append((log_ns, start - RECORD.size))
    return entries


def _message_indexes(entries: Mapping[int, list[tuple[int, int]]], at: int) -> tuple[bytes, dict[int, int]]:
    """Return the message indexes of a chunk that ends at a place, and the place of that of each channel."""
    tail, places = bytearray(), dict[int, int]()
    for key, pairs in entries.items():
        places[key] = at + len(tail)
        listed = b"".join(struct.pack("<QQ", *pair) for pair in pairs)
        tail += _record(mcap.MESSAGE_INDEX, struct.pack("<HI", key, len(listed)) + listed)
    return bytes(tail), places


def _record(op: int, content: bytes) -> bytes:
    return RECORD.pack(op, len(content)) + content


def _text(value: str) -> bytes:
    data = value.encode("utf-8", "backslashreplace")
    return struct.pack("<I", len(data)) + data
