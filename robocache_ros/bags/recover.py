"""Read an MCAP file whose end is missing: a recorder that crashed left no index and no footer."""

from __future__ import annotations

import heapq
import mmap
import struct
import sys
from collections import Counter
from collections.abc import Collection, Iterator
from importlib import import_module
from pathlib import Path

from robocache_ros.bags.reader import RawMessage, Topic
from robocache_ros.errors import RoboCacheError

# Records of the MCAP format (https://mcap.dev/spec): an op code, a length and the content.
_MAGIC = b"\x89MCAP0\r\n"
_SCHEMA, _CHANNEL, _MESSAGE, _CHUNK, _DATA_END = 0x03, 0x04, 0x05, 0x06, 0x0F
_ZSTD = "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd"
_RECORD = struct.Struct("<BQ")
_MESSAGE_HEAD = struct.Struct("<HIQQ")  # channel, sequence, log time, publish time
_CHUNK_HEAD = struct.Struct("<QQQI")  # first and last log time, uncompressed size, checksum


class CutMcap:
    """What was written of an MCAP file before it was cut; complete chunks only.

    Errors:
        RoboCacheError: not MCAP, or cut before its first message.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("rb")
        self._map = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)
        self._view = memoryview(self._map)
        if bytes(self._view[: len(_MAGIC)]) != _MAGIC:
            self.close()
            raise RoboCacheError(f"{path}: is no MCAP file (its first bytes are not MCAP's)")
        self._schemas: dict[int, tuple[str, str]] = {}
        self._channels: dict[int, tuple[int, str]] = {}
        self._parts: list[tuple[int, int, int, int]] = []  # first and last log time, and the record's place in the file
        counts = self._scan()
        if not counts:
            self.close()
            raise RoboCacheError(f"{path}: cut before its first whole message; nothing can be recovered")
        self.start_ns = min(first for first, *_ in self._parts)
        self.stop_ns = max(last for _, last, *_ in self._parts) + 1
        self.topics = tuple(
            Topic(name, self._schemas.get(schema, ("", ""))[0], counts[key], self._schemas.get(schema, ("", ""))[1])
            for key, (schema, name) in self._channels.items()
        )
        total, lost = sum(counts.values()), len(self._view) - self._end
        self.note = f"has no end, as after a crash; {total} messages were recovered, the last {lost} bytes were not"

    def messages(self, topics: Collection[str], start_ns: int | None, stop_ns: int | None) -> Iterator[RawMessage]:
        """Messages in log order; parts that overlap in time are merged."""
        low = start_ns if start_ns is not None else 0
        high = stop_ns if stop_ns is not None else 2**63
        names = {key: name for key, (_, name) in self._channels.items() if name in topics}
        waiting: list[tuple[int, int, int, str, bytes]] = []
        parts = sorted(self._parts)
        for order, (first, _, start, stop) in enumerate(parts):
            while waiting and waiting[0][0] < first:
                yield _unpack(heapq.heappop(waiting))
            for at, (channel, log_ns, data) in enumerate(self._messages(start, stop)):
                if channel in names and low <= log_ns < high:
                    heapq.heappush(waiting, (log_ns, order, at, names[channel], bytes(data)))
        while waiting:
            yield _unpack(heapq.heappop(waiting))

    def close(self) -> None:
        """Release the file."""
        self._view.release()
        self._map.close()
        self._file.close()

    def _scan(self) -> Counter[int]:
        counts: Counter[int] = Counter()
        self._end = len(_MAGIC)
        for op, start, stop in _records(self._view, self._end):
            if op == _DATA_END:
                break
            if op in (_CHUNK, _MESSAGE):
                times = []
                try:
                    for channel, log_ns, _ in self._messages(start, stop):
                        times.append(log_ns)
                        counts[channel] += 1
                except (RoboCacheError, struct.error, UnicodeDecodeError):
                    break  # a page that never reached the disk: what comes after cannot be trusted
                if times:
                    self._parts.append((min(times), max(times), start, stop))
            else:
                self._declare(op, self._view[start:stop])
            self._end = stop
        return counts

    def _messages(self, start: int, stop: int) -> Iterator[tuple[int, int, memoryview]]:
        """Messages of a record: of a chunk, or the one it is."""
        if self._view[start - _RECORD.size] == _MESSAGE:
            yield _message(self._view[start:stop])
            return
        content = memoryview(_chunk(self._view[start:stop]))
        for op, first, last in _records(content, 0):
            if op == _MESSAGE:
                yield _message(content[first:last])
            else:
                self._declare(op, content[first:last])

    def _declare(self, op: int, body: memoryview) -> None:
        if op == _SCHEMA:
            (key,) = struct.unpack_from("<H", body)
            name, at = _string(body, 2)
            _, at = _string(body, at)
            self._schemas[key] = (name, _string(body, at)[0])
        elif op == _CHANNEL:
            key, schema = struct.unpack_from("<HH", body)
            self._channels[key] = (schema, _string(body, 4)[0])


def _records(view: memoryview, at: int) -> Iterator[tuple[int, int, int]]:
    """(op code, start, stop) of each record that is there as a whole."""
    while at + _RECORD.size <= len(view):
        op, size = _RECORD.unpack_from(view, at)
        at += _RECORD.size
        if at + size > len(view):
            return
        yield op, at, at + size
        at += size


def _message(body: memoryview) -> tuple[int, int, memoryview]:
    channel, _, log_ns, _ = _MESSAGE_HEAD.unpack_from(body)
    return channel, log_ns, body[_MESSAGE_HEAD.size :]


def _string(body: memoryview, at: int) -> tuple[str, int]:
    (size,) = struct.unpack_from("<I", body, at)
    return bytes(body[at + 4 : at + 4 + size]).decode(), at + 4 + size


def _chunk(body: memoryview) -> bytes:
    *_, size, _ = _CHUNK_HEAD.unpack_from(body)
    compression, at = _string(body, _CHUNK_HEAD.size)
    (length,) = struct.unpack_from("<Q", body, at)
    data = bytes(body[at + 8 : at + 8 + length])
    content = _decompress(compression, data)
    if len(content) != size:
        raise RoboCacheError(f"a chunk has {len(content)} bytes where it says {size}")
    return content


def _decompress(compression: str, data: bytes) -> bytes:
    if not compression:
        return data
    module = {"lz4": "lz4.frame", "zstd": _ZSTD}.get(compression, compression)
    try:
        return bytes(import_module(module).decompress(data))
    except Exception as error:  # each library has errors of its own; all of them mean that the chunk is damaged
        raise RoboCacheError(f"a {compression} chunk cannot be decompressed: {error}") from None


def _unpack(entry: tuple[int, int, int, str, bytes]) -> RawMessage:
    log_ns, _, _, topic, data = entry
    return RawMessage(topic, log_ns, data)
