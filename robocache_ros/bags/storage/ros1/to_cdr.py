"""Converts messages from ROS 1 serialization to CDR: with padding, NUL-terminated strings, headers without `seq`.

ROS 1 writes the same values in the same order, little endian, without padding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from struct import Struct as Packed
from typing import TypeAlias

from robocache_ros.decode.cdr.definitions import EMPTY_FIELD, HEADER
from robocache_ros.decode.cdr.types import Array, Primitive, Sequence, Struct, Text, Type, describe, runs
from robocache_ros.decode.cdr.wire import PADDING, check_count, truncated
from robocache_ros.errors import RoboCacheError

# Reads from a position of a message, appends to the CDR, and returns the end position.
Step: TypeAlias = "Callable[[bytes, int, bytearray], int]"

_ENCAPSULATION = b"\0\1\0\0"  # CDR, little endian
_SEQ_BYTES = 4
_COUNT = Packed("<I")
_ZEROS = [bytes(size) for size in range(8)]


class ToCdr:
    """Converts the messages of one type.

    Attributes:
        rest: maximum number of bytes after the end of a message according to its definition; they are omitted.
            librealsense writes four bytes after an image that are not in the definition.

    Args:
        message: the ROS 2 type.
    """

    def __init__(self, message: Struct) -> None:
        self._steps = tuple(_steps(message))
        self.rest = 0

    def __call__(self, data: bytes) -> bytes:
        """Return the message in CDR; RoboCacheError if it does not match its type."""
        out, at = bytearray(_ENCAPSULATION), 0
        for step in self._steps:
            at = step(data, at, out)
        if at > len(data):
            raise truncated(at, len(data))
        self.rest = max(self.rest, len(data) - at)
        return bytes(out)


def _steps(t: Type) -> Iterator[Step]:
    if isinstance(t, Primitive):
        yield _numbers(t, 1)
    elif isinstance(t, Text):
        yield _text
    elif isinstance(t, Struct):
        if t.name == HEADER:
            yield _seq
        for name, field in t.fields:
            yield from (_empty,) if name == EMPTY_FIELD else _steps(field)
    elif isinstance(t, (Array, Sequence)):
        yield _elements(t)
    else:
        raise RoboCacheError(f"type: {describe(t)} is not a type of ROS 1")


def _numbers(primitive: Primitive, count: int) -> Step:
    padding, size = PADDING[primitive.size], primitive.size * count

    def step(data: bytes, at: int, out: bytearray) -> int:
        stop = at + size
        if stop > len(data):
            raise truncated(stop, len(data))
        out += _ZEROS[padding[len(out) & 7]]
        out += data[at:stop]
        return stop

    return step


def _text(data: bytes, at: int, out: bytearray) -> int:
    size, at = _count(data, at)
    if at + size > len(data):
        raise truncated(at + size, len(data))
    out += _ZEROS[PADDING[4][len(out) & 7]]
    out += _COUNT.pack(size + 1)
    out += data[at : at + size]
    out += b"\0"
    return at + size


def _seq(data: bytes, at: int, _out: bytearray) -> int:
    return at + _SEQ_BYTES


def _empty(_data: bytes, at: int, out: bytearray) -> int:
    out += b"\0"  # an empty message has one byte in ROS 2, none in ROS 1
    return at


def _elements(t: Array | Sequence) -> Step:
    one_kind = None if _has_empty(t.element) else runs(t.element)
    block = one_kind[0] if one_kind is not None and len(one_kind) == 1 else None
    if isinstance(t, Array) and block:
        return _numbers(block[0], block[1] * t.length)
    inner = () if block else tuple(_steps(t.element))

    def step(data: bytes, at: int, out: bytearray) -> int:
        if isinstance(t, Array):
            count = t.length
        else:
            count, at = _count(data, at)
            out += _ZEROS[PADDING[4][len(out) & 7]]
            out += _COUNT.pack(count)
        if block:
            return _numbers(block[0], block[1] * count)(data, at, out) if count else at
        if isinstance(t, Sequence):
            check_count(count, t, at, len(data))
        for _ in range(count):
            for one in inner:
                at = one(data, at, out)
        return at

    return step


def _has_empty(t: Type) -> bool:
    if isinstance(t, Struct):
        return any(name == EMPTY_FIELD or _has_empty(field) for name, field in t.fields)
    return isinstance(t, (Array, Sequence)) and _has_empty(t.element)


def _count(data: bytes, at: int) -> tuple[int, int]:
    if at + 4 > len(data):
        raise truncated(at + 4, len(data))
    return int(_COUNT.unpack_from(data, at)[0]), at + 4
