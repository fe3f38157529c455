"""The kinds of values that decoders ask for, each read from CDR and picked from a message object with equal results."""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct as Packed
from typing import Any, Protocol, TypeAlias

from robocache_ros.decode.cdr import PADDING, Step, check_count, primitive_of, read_count, read_text, truncated
from robocache_ros.decode.payloads import Buffer, DecodeError
from robocache_ros.decode.types import Sequence, Type, describe
from robocache_ros.errors import RoboCacheError

Pick: TypeAlias = "Callable[[Any], Any]"
_NS_PER_S = 1_000_000_000


class Kind(Protocol):
    """A kind of value: how it is read from CDR, and how it is made of a message object's attribute."""

    def reader(self, t: Type, order: str, slot: int) -> Step:
        """The step that reads a value of type `t` into its slot."""

    def picker(self, t: Type) -> Pick:
        """The function that makes the same value of the attribute."""


def stamp_ns(sec: int, nanosec: int) -> int:
    """Nanoseconds of a Time; DecodeError where `nanosec` is a second or more."""
    if not 0 <= nanosec < _NS_PER_S:
        raise DecodeError("bad_stamp", f"header.stamp: nanosec {nanosec} is not below {_NS_PER_S}")
    return sec * _NS_PER_S + nanosec


class Stamp:
    """A builtin_interfaces/msg/Time as int nanoseconds."""

    def reader(self, t: Type, order: str, slot: int) -> Step:
        """Int32 seconds and uint32 nanoseconds."""
        unpack, padding = Packed(f"{order}iI").unpack_from, PADDING[4]

        def step(data: Buffer, pos: int, end: int, values: list[Any]) -> int:
            pos += padding[pos & 7]
            if pos + 8 > end:
                raise truncated(pos + 8, end)
            sec, nanosec = unpack(data, pos)
            if nanosec >= _NS_PER_S:
                stamp_ns(sec, nanosec)
            values[slot] = sec * _NS_PER_S + nanosec
            return pos + 8

        return step

    def picker(self, t: Type) -> Pick:
        """From a message's `sec` and `nanosec`."""
        return lambda time: stamp_ns(int(time.sec), int(time.nanosec))


class Scalar:
    """A single number as a Python int or float."""

    def reader(self, t: Type, order: str, slot: int) -> Step:
        """One primitive."""
        primitive = primitive_of(t)
        unpack, padding, size = Packed(order + primitive.code).unpack_from, PADDING[primitive.size], primitive.size

        def step(data: Buffer, pos: int, end: int, values: list[Any]) -> int:
            pos += padding[pos & 7]
            if pos + size > end:
                raise truncated(pos + size, end)
            values[slot] = unpack(data, pos)[0]
            return pos + size

        return step

    def picker(self, t: Type) -> Pick:
        """The same number; one that the wire could not carry is refused."""
        primitive = primitive_of(t)
        if primitive.kind == "f":
            return float
        bits = 8 * primitive.size
        allowed = range(-(1 << bits - 1), 1 << bits - 1) if primitive.kind == "i" else range(1 << bits)

        def pick(value: Any) -> int:
            number = int(value)
            if number not in allowed:
                raise OverflowError(f"{number} is no {primitive.name}")
            return number

        return pick


class String:
    """A string as str."""

    def reader(self, t: Type, order: str, slot: int) -> Step:
        """UTF-8 with a closing NUL."""

        def step(data: Buffer, pos: int, end: int, values: list[Any]) -> int:
            values[slot], pos = read_text(data, pos, end, order)
            return pos

        return step

    def picker(self, t: Type) -> Pick:
        """The string itself."""
        return str


class Items:
    """A sequence, as a tuple of what `read_one` makes of each element; it is remembered by its bytes.

    Joint names and point fields are the same in every message. Reading them each time would cost more than all the
    rest, so the last few are found again by comparing the raw bytes. Nothing in them is aligned wider than 4 bytes.
    """

    _REMEMBERED = 8

    def __init__(
        self, read_one: Callable[[Buffer, int, int, str], tuple[Any, int]], pick_one: Callable[[Any], Any]
    ) -> None:
        self._read_one = read_one
        self._pick_one = pick_one

    def reader(self, t: Type, order: str, slot: int) -> Step:
        """A uint32 length and the elements."""
        if not isinstance(t, Sequence):
            raise RoboCacheError(f"type: expected a sequence, its definition has {describe(t)}")
        sequence, read_one, padding = t, self._read_one, PADDING[4]
        known: list[tuple[bytes, tuple[Any, ...]]] = []

        def step(data: Buffer, pos: int, end: int, values: list[Any]) -> int:
            pos += padding[pos & 7]
            for raw, items in known:
                if data.startswith(raw, pos) if isinstance(data, bytes) else data[pos : pos + len(raw)] == raw:
                    values[slot] = items
                    return pos + len(raw)
            start = pos
            count, pos = read_count(data, pos, end, order)
            check_count(count, sequence, pos, end)
            fresh = []
            for _ in range(count):
                item, pos = read_one(data, pos, end, order)
                fresh.append(item)
            values[slot] = tuple(fresh)
            known.append((bytes(data[start:pos]), tuple(fresh)))
            if len(known) > self._REMEMBERED:
                del known[0]
            return pos

        return step

    def picker(self, t: Type) -> Pick:
        """A tuple of the elements."""
        pick_one = self._pick_one
        return lambda items: tuple([pick_one(item) for item in items])


STAMP, SCALAR, STRING = Stamp(), Scalar(), String()
