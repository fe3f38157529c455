"""Decompress chunks, files and messages within limits."""

from __future__ import annotations

import bz2
import importlib
import sys
from collections.abc import Callable, Collection, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from robocache_ros.bags.source import ConvertedSource, Data, RawMessage, Source
from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.storage.paths import AnyPath

MAX_BYTES = 192 << 20  # of one chunk or one message after decompression; five together are less than 1 GB
MAX_FILE_RATIO = 200  # a file that exceeds both this ratio and MAX_FILE_BYTES after decompression is refused
MAX_FILE_BYTES = 1 << 30
_BLOCK = 1 << 20
_ARROW = 26  # pyarrow 10 decompresses some damaged zstd data to other bytes, without an error; 26 is tested
_AT_ONCE = 64 << 10  # from this size on, data is decompressed into memory of its declared size
_TOGETHER, _TOGETHER_BYTES = 256, 1 << 20  # compressed messages, and their bytes, that are read ahead


def decompress(codec: str, data: Data, size: int | None = None) -> Data:
    """Return the decompressed bytes.

    Args:
        codec: the name in MCAP and ROS 1: `` (none), `lz4`, `zstd` or `bz2`.
        data: compressed bytes.
        size: expected number of decompressed bytes; None: any number up to MAX_BYTES.

    Errors:
        RoboCacheError: unknown codec, damaged data, or more bytes than `size` or MAX_BYTES.
        ImportError: the extra `bags` is not installed. It is no RoboCacheError, which readers count as damaged data.
    """
    limit = MAX_BYTES if size is None else size
    if limit > MAX_BYTES:
        raise RoboCacheError(f"{limit:,} bytes are declared, the limit is {MAX_BYTES:,}")
    if not codec:
        found = data
    elif codec in _CODECS:
        found = _at_once(codec, data, size) or _decompress(_CODECS[codec], codec, data, limit)
    else:
        raise RoboCacheError(f"compression {printable(codec, 40)!r} is not one of {', '.join(_CODECS)}")
    if len(found) > limit or (size is not None and len(found) != size):
        raise RoboCacheError(f"decompresses to {len(found):,} bytes or more, {limit:,} are declared or allowed")
    return found


def decompress_file(source: AnyPath, target: Path) -> str:
    """Decompress a zstd file to another file; return a description of damage, empty if there is none.

    Errors:
        RoboCacheError: the decompressed data exceeds the limits.
    """
    limit = max(MAX_FILE_BYTES, MAX_FILE_RATIO * source.stat().st_size)
    written = 0
    with source.open("rb") as packed, target.open("wb") as out:
        decoder = _zstd()
        while True:
            if decoder.eof:
                rest = decoder.unused_data or packed.read(_BLOCK)
                if not rest:
                    return ""
                decoder, block = _zstd(), rest
            else:
                block = packed.read(_BLOCK) if decoder.needs_input else b""
                if not block and decoder.needs_input:
                    return f"its compressed data ends early; {written:,} bytes of it were recovered"
            try:
                data = decoder.decompress(block, _BLOCK)
            except _errors():
                return f"its compressed data is damaged; {written:,} bytes before the damage were recovered"
            out.write(data)
            written += len(data)
            if written > limit:
                raise RoboCacheError(f"{source}: decompresses to more than {limit:,} bytes; decompress it first")


def _at_once(codec: str, data: Data, size: int | None) -> memoryview | None:
    """Decompress into memory of `size` bytes: nearly twice as fast for zstd, and three times for lz4.

    None if pyarrow is not installed, or if the data is damaged or has another size: `_decompress` finds the reason.
    """
    if codec == "zstd" and size is None:
        size = _zstd_size(data)
    arrow = _arrow() if size and _AT_ONCE <= size <= MAX_BYTES and codec in ("lz4", "zstd") else None
    if arrow is None:
        return None
    try:
        if codec == "zstd":
            return memoryview(arrow.Codec(codec).decompress(data, size))
        # Not with a Codec, which ignores that lz4 data is shorter than declared.
        with arrow.CompressedInputStream(arrow.BufferReader(data), codec) as stream:
            found = stream.read_buffer(size)
            return memoryview(found) if len(found) == size and not stream.read(1) else None
    except (OSError, ValueError, MemoryError):
        return None


def _zstd_size(data: Data) -> int | None:
    """Return the size that the header of a zstd frame declares, if it does."""
    zstd = _zstd_library()
    try:
        size: int | None = zstd.get_frame_info(data).decompressed_size
    except zstd.ZstdError:
        return None
    return size


@cache
def _arrow() -> Any:
    """Return pyarrow, which exports require; None if it is not installed, or too old to notice damage."""
    try:
        arrow = importlib.import_module("pyarrow")
    except ImportError:
        return None
    return arrow if int(arrow.__version__.partition(".")[0]) >= _ARROW else None


def _decompress(make: Callable[[], Any], codec: str, data: Data, limit: int) -> bytes:
    found: list[bytes] = []
    length = 0
    try:
        while data:
            decoder = make()
            block = decoder.decompress(data, limit + 1 - length)
            while True:
                found.append(block)
                length += len(block)
                if decoder.eof or length > limit:
                    break
                if decoder.needs_input or not block:
                    raise RoboCacheError(f"its {codec} data ends early")
                block = decoder.decompress(b"", limit + 1 - length)
            data = (decoder.unused_data or b"") if length <= limit else b""
    except RoboCacheError:
        raise
    except _errors() as error:
        raise RoboCacheError(f"its {codec} data is damaged: {printable(error, 60)}") from None
    return found[0] if len(found) == 1 else b"".join(found)


def _zstd_library() -> Any:
    if sys.version_info >= (3, 14):
        from compression import zstd
    else:
        from backports import zstd
    return zstd


def _zstd() -> Any:
    return _zstd_library().ZstdDecompressor()


# A fixed table, so that text in a file cannot select a Python module.
_CODECS: dict[str, Callable[[], Any]] = {
    "lz4": lambda: importlib.import_module("lz4.frame").LZ4FrameDecompressor(),
    "zstd": _zstd,
    "bz2": bz2.BZ2Decompressor,
}


@cache
def _errors() -> tuple[type[Exception], ...]:
    """Return the exception types that the libraries raise for damaged data."""
    return (_zstd_library().ZstdError, OSError, RuntimeError, EOFError, ValueError, MemoryError)


class CompressedMessages(ConvertedSource):
    """A storage file with zstd messages; messages that cannot be decompressed are omitted and noted."""

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        self._lost: dict[tuple[str, int], None] = {}

    @property
    def notes(self) -> list[str]:
        """Notes of the file reader, and notes on lost messages."""
        lost = [f"{len(self._lost):,} messages cannot be decompressed and were not read"] if self._lost else []
        return [*self._source.notes, *lost]

    def messages(self, topics: Collection[str], start_ns: int, stop_ns: int) -> Iterator[RawMessage]:
        """Yield the decompressed messages of a range of log times."""
        ahead: list[RawMessage] = []
        nbytes = 0
        try:
            for message in self._source.messages(topics, start_ns, stop_ns):
                ahead.append(message)
                nbytes += len(message.data)
                if len(ahead) == _TOGETHER or nbytes >= _TOGETHER_BYTES:
                    yield from self._decompressed(ahead)
                    ahead, nbytes = [], 0
        except RoboCacheError:
            yield from self._decompressed(ahead)
            raise
        yield from self._decompressed(ahead)

    def _decompressed(self, messages: list[RawMessage]) -> Iterator[RawMessage]:
        small = _small_frames([message.data for message in messages])
        for message, data in zip(messages, small, strict=True):
            try:
                yield message._replace(data=decompress("zstd", message.data) if data is None else data)
            except RoboCacheError:
                self._lost[message.topic, message.log_ns] = None


def _small_frames(frames: list[Data]) -> list[bytes | None]:
    """Decompress small zstd frames with one call, since the start of each takes 15 us; None for the other frames.

    Only complete frames that declare their size are joined. If any of them is damaged, all are None.
    """
    found: list[bytes | None] = [None] * len(frames)
    sizes = {place: size for place, frame in enumerate(frames) if (size := _whole_frame_size(frame)) is not None}
    arrow, total = _arrow(), sum(sizes.values())
    if arrow is None or not total:
        return found
    try:
        joined = memoryview(arrow.Codec("zstd").decompress(b"".join([frames[place] for place in sizes]), total))
    except (OSError, ValueError, MemoryError):
        return found
    start = 0
    for place, size in sizes.items():
        found[place] = bytes(joined[start : start + size])
        start += size
    return found


def _whole_frame_size(data: Data) -> int | None:
    """Return the decompressed size of data that is one complete zstd frame, below `_AT_ONCE`; else None."""
    size = _zstd_size(data)
    if size is None or size >= _AT_ONCE:
        return None
    try:
        whole = _zstd_library().get_frame_size(data) == len(data)
    except _zstd_library().ZstdError:
        return None
    return size if whole else None
