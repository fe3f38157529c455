"""Read MCAP files: whole ones by their index, and what was written of one whose recorder crashed.

Records are an op code, a length and the content (https://mcap.dev/spec). One pass over a chunk copies each wanted
message once and skips the others, which is what reading a recording mostly costs.
"""

from __future__ import annotations

import mmap
import re
import struct
import sys
import zlib
from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterator
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

from robocache_ros.bags.source import RawMessage, Topic
from robocache_ros.errors import RoboCacheError

_MAGIC = b"\x89MCAP0\r\n"
_FOOTER, _SCHEMA, _CHANNEL, _MESSAGE, _CHUNK = 0x02, 0x03, 0x04, 0x05, 0x06
_CHUNK_INDEX, _STATISTICS, _DATA_END = 0x08, 0x0B, 0x0F
_ZSTD = "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd"
_RECORD = struct.Struct("<BQ")
_MESSAGE_HEAD = struct.Struct("<HIQQ")  # channel, sequence, log time, publish time
_CHUNK_HEAD = struct.Struct("<QQQI")  # first and last log time, uncompressed size, checksum
_INDEX_HEAD = struct.Struct("<QQQQI")  # first and last log time, the chunk's place and length, size of the map after it
_STATISTICS_HEAD = struct.Struct("<QHIIIIQQI")  # message, schema, channel, …, chunk count, times, size of the map
_END_SIZE = _RECORD.size + 20 + len(_MAGIC)  # footer and magic


class _Part(NamedTuple):
    """A chunk, or a message outside of chunks."""

    first_ns: int  # log times
    last_ns: int
    start: int  # of its content in the file
    stop: int
    channels: frozenset[int] | None  # those that are in it, where the index tells


class McapFile:
    """An open MCAP file.

    Attributes:
        note: what was recovered, of a file without an end; empty of a whole one.

    Errors:
        RoboCacheError: not MCAP, or cut before its first message.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb")
        self._map = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)
        self._schemas: dict[int, tuple[str, str]] = {}
        self._channels: dict[int, tuple[int, str, bool]] = {}
        self._parts: list[_Part] = []
        self.note = ""
        try:
            counts = self._open(path)
        except BaseException:
            self.close()
            raise
        self.start_ns = min((part.first_ns for part in self._parts), default=2**63 - 1)
        self.stop_ns = max((part.last_ns + 1 for part in self._parts), default=0)
        self.topics = tuple(
            Topic(name, kind, counts[key], definition, latched)
            for key, (schema, name, latched) in self._channels.items()
            for kind, definition in [self._schemas.get(schema, ("", ""))]
        )

    def messages(self, topics: Collection[str], start_ns: int | None, stop_ns: int | None) -> Iterator[RawMessage]:
        """Messages in log order; chunks that overlap in time are merged."""
        low = start_ns if start_ns is not None else 0
        high = stop_ns if stop_ns is not None else 2**63
        names = {key: name for key, (_, name, _) in self._channels.items() if name in topics}
        parts = sorted(
            part
            for part in self._parts
            if part.last_ns >= low and part.first_ns < high and (part.channels is None or names.keys() & part.channels)
        )
        log_ns = attrgetter("log_ns")
        waiting: list[RawMessage] = []
        for part, after in zip(parts, [*parts[1:], None], strict=True):
            waiting += self._part(part, names, low, high)
            waiting.sort(key=log_ns)
            ready = bisect_left(waiting, after.first_ns, key=log_ns) if after else len(waiting)
            yield from waiting[:ready]
            del waiting[:ready]

    def close(self) -> None:
        """Release the file."""
        self._map.close()
        self._file.close()

    def _open(self, path: Path) -> Counter[int]:
        if self._map[: len(_MAGIC)] != _MAGIC:
            raise RoboCacheError(f"{path}: is no MCAP file (its first bytes are not MCAP's)")
        counts = self._index()
        if counts is not None:
            return counts
        whole = self._map[-len(_MAGIC) :] == _MAGIC and len(self._map) > 2 * len(_MAGIC)
        counts, end = self._scan()
        if not whole:
            if not counts:
                raise RoboCacheError(f"{path}: cut before its first whole message; nothing can be recovered")
            lost = len(self._map) - end
            self.note = (
                f"has no end, as after a crash; {sum(counts.values())} messages were recovered, "
                f"the last {lost} bytes were not"
            )
        return counts

    def _index(self) -> Counter[int] | None:
        """Read the summary at the end: counts by channel; None where there is none, or it leaves messages out."""
        size = len(self._map)
        at = size - _END_SIZE
        if at < len(_MAGIC) or self._map[-len(_MAGIC) :] != _MAGIC or self._map[at] != _FOOTER:
            return None
        (summary,) = struct.unpack_from("<Q", self._map, at + _RECORD.size)
        if not len(_MAGIC) <= summary < at:
            return None
        counts: Counter[int] = Counter()
        chunks = -1
        try:
            for op, start, stop in _records(self._map, summary):
                if op == _CHUNK_INDEX:
                    self._parts.append(self._indexed(start))
                elif op == _STATISTICS:
                    _, _, _, _, _, chunks, _, _, length = _STATISTICS_HEAD.unpack_from(self._map, start)
                    pairs = struct.iter_unpack("<HQ", self._map[start + _STATISTICS_HEAD.size :][:length])
                    counts.update(dict(pairs))
                else:
                    self._declare(op, self._map[start:stop])
        except (struct.error, UnicodeDecodeError):
            chunks = -1
        if chunks == len(self._parts) and chunks > 0 and all(part.stop <= size for part in self._parts):
            return counts
        self._parts.clear()
        return None

    def _indexed(self, at: int) -> _Part:
        first, last, place, length, channels = _INDEX_HEAD.unpack_from(self._map, at)
        pairs = struct.iter_unpack("<HQ", self._map[at + _INDEX_HEAD.size :][:channels])
        # Without an index of its messages a chunk may hold any channel.
        known = frozenset(channel for channel, _ in pairs) or None
        return _Part(first, last, place + _RECORD.size, place + length, known)

    def _scan(self) -> tuple[Counter[int], int]:
        """Go through the file record by record, as far as it goes; counts by channel, and where it ended."""
        counts: Counter[int] = Counter()
        end = len(_MAGIC)
        for op, start, stop in _records(self._map, end):
            if op == _DATA_END:
                break
            if op in (_CHUNK, _MESSAGE):
                try:
                    content = self._content(start, stop)
                    heads = []
                    for kind, at, to in _records(content, 0):
                        if kind == _MESSAGE:
                            heads.append(_MESSAGE_HEAD.unpack_from(content, at))
                        else:
                            self._declare(kind, content[at:to])
                except (RoboCacheError, struct.error, UnicodeDecodeError):
                    break  # a page that never reached the disk: what comes after cannot be trusted
                if heads:
                    times = [log_ns for _, _, log_ns, _ in heads]
                    counts.update(channel for channel, *_ in heads)
                    self._parts.append(_Part(min(times), max(times), start, stop, None))
            else:
                self._declare(op, self._map[start:stop])
            end = stop
        return counts, end

    def _part(self, part: _Part, names: dict[int, str], low: int, high: int) -> list[RawMessage]:
        content = self._content(part.start, part.stop)
        found = []
        at, end = 0, len(content)
        record, head, skip = _RECORD.unpack_from, _MESSAGE_HEAD.unpack_from, _MESSAGE_HEAD.size
        while at < end:
            op, size = record(content, at)
            at += 9
            if op == _MESSAGE:
                channel, _, log_ns, _ = head(content, at)
                if channel in names and low <= log_ns < high:
                    found.append(RawMessage(names[channel], log_ns, content[at + skip : at + size]))
            at += size
        if at != end:
            raise RoboCacheError(f"a chunk at byte {part.start} ends inside a record")
        return found

    def _content(self, start: int, stop: int) -> bytes:
        """The records of a chunk, or the one message that stands outside of chunks."""
        if self._map[start - _RECORD.size] == _MESSAGE:
            return self._map[start - _RECORD.size : stop]
        _, _, size, checksum = _CHUNK_HEAD.unpack_from(self._map, start)
        compression, at = _string(self._map[start : start + 64], _CHUNK_HEAD.size)
        (length,) = struct.unpack_from("<Q", self._map, start + at)
        data = self._map[start + at + 8 : min(start + at + 8 + length, stop)]
        content = _decompress(compression, data)
        if len(content) != size or (checksum and zlib.crc32(content) != checksum):
            raise RoboCacheError(f"the chunk at byte {start} does not hold what it says")
        return content

    def _declare(self, op: int, body: bytes) -> None:
        if op == _SCHEMA:
            (key,) = struct.unpack_from("<H", body)
            name, at = _string(body, 2)
            encoding, at = _string(body, at)
            self._schemas[key] = (name, _string(body, at)[0] if encoding == "ros2msg" else "")
        elif op == _CHANNEL:
            key, schema = struct.unpack_from("<HH", body)
            name, at = _string(body, 4)
            encoding, at = _string(body, at)
            if encoding == "cdr":
                self._channels[key] = (schema, name, is_latched(_map(body, at).get("offered_qos_profiles", "")))


def _records(data: bytes | mmap.mmap, at: int) -> Iterator[tuple[int, int, int]]:
    """(op code, start, stop) of each record that is there as a whole."""
    end = len(data)
    while at + _RECORD.size <= end:
        op, size = _RECORD.unpack_from(data, at)
        at += _RECORD.size
        if at + size > end:
            return
        yield op, at, at + size
        at += size


def _string(body: bytes, at: int) -> tuple[str, int]:
    (size,) = struct.unpack_from("<I", body, at)
    return body[at + 4 : at + 4 + size].decode(), at + 4 + size


def _map(body: bytes, at: int) -> dict[str, str]:
    (size,) = struct.unpack_from("<I", body, at)
    at, end, found = at + 4, at + 4 + size, dict[str, str]()
    while at < end:
        key, at = _string(body, at)
        found[key], at = _string(body, at)
    return found


def is_latched(profiles: str) -> bool:
    """Whether one of rosbag2's offered_qos_profiles (YAML) keeps messages for later subscribers; a number in Humble."""
    return bool(re.search(r"^[\s-]*durability:\s*(1|transient_local)\s*$", profiles, re.MULTILINE))


def _decompress(compression: str, data: bytes) -> bytes:
    if not compression:
        return data
    module = {"lz4": "lz4.frame", "zstd": _ZSTD}.get(compression, compression)
    try:
        return bytes(import_module(module).decompress(data))
    except Exception as error:  # each library has errors of its own; all of them mean that the chunk is damaged
        raise RoboCacheError(f"a {compression} chunk cannot be decompressed: {error}") from None
