"""The kinds of values that decoders ask for, each read from CDR and picked from a message object with equal results."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from struct import Struct as Packed
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from robocache_ros.decode.cdr import PADDING, Step, check_count, primitive_of, read_count, read_text, truncated
from robocache_ros.decode.payloads import Buffer, DecodeError, Vector
from robocache_ros.decode.types import Array, Primitive, Run, Sequence, Struct, Type, describe, runs
from robocache_ros.errors import RoboCacheError

Numbers: TypeAlias = "npt.NDArray[Any]"
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
        """The same number."""
        return float if primitive_of(t).kind == "f" else int


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
            known.insert(0, (bytes(data[start:pos]), tuple(fresh)))
            del known[self._REMEMBERED :]
            return pos

        return step

    def picker(self, t: Type) -> Pick:
        """A tuple of the elements."""
        pick_one = self._pick_one
        return lambda items: tuple([pick_one(item) for item in items])


class Octets:
    """A uint8 sequence as (nbytes,) uint8 where it lies, without a copy."""

    def reader(self, t: Type, order: str, slot: int) -> Step:
        """A view of the message."""
        return Numeric().reader(t, order, slot)

    def picker(self, t: Type) -> Pick:
        """A view of the attribute's buffer."""
        return _pick_array(primitive_of(t.element if isinstance(t, Sequence) else t), None)


class Numeric:
    """Any type made of numbers as a 1-D array; of the type on the wire, or float32 where there are several."""

    def reader(self, t: Type, order: str, slot: int) -> Step:
        """A view of the message wherever the numbers are of one kind."""
        fixed = runs(t)
        if fixed is not None:
            return _read_one_kind(fixed[0], order, slot) if len(fixed) == 1 else _read_mixed(fixed, order, slot)
        if not isinstance(t, Sequence):
            raise RoboCacheError(f"field: {describe(t)} is not numeric; name one of its numeric fields")
        return _read_sequence(t, _element(t), order, slot)

    def picker(self, t: Type) -> Pick:
        """The same numbers out of attributes."""
        return _pick_numbers(t)


def _element(t: Sequence) -> Run:
    fixed = runs(t.element)
    if fixed is None or len(fixed) != 1:
        raise RoboCacheError(f"field: {describe(t)} is not numbers of one kind; name one element's field, as in [0].x")
    return fixed[0]


def _view(data: Buffer, dtype: np.dtype[Any], count: int, pos: int, kind: str) -> Numbers:
    view = np.frombuffer(data, dtype, count, pos)
    return (view != 0).view(np.uint8) if kind == "b" else view


def _read_one_kind(run: Run, order: str, slot: int) -> Step:
    primitive, count = run
    dtype, padding, size = primitive.dtype(order), PADDING[primitive.size], primitive.size * count

    def step(data: Buffer, pos: int, end: int, values: list[Any]) -> int:
        pos += padding[pos & 7]
        if pos + size > end:
            raise truncated(pos + size, end)
        values[slot] = _view(data, dtype, count, pos, primitive.kind)
        return pos + size

    return step


def _read_mixed(fixed: list[Run], order: str, slot: int) -> Step:
    steps = [_read_one_kind(run, order, i) for i, run in enumerate(fixed)]

    def step(data: Buffer, pos: int, end: int, values: list[Any]) -> int:
        parts: list[Any] = [None] * len(steps)
        for one in steps:
            pos = one(data, pos, end, parts)
        values[slot] = np.concatenate([to_float32(part) for part in parts])
        return pos

    return step


def _read_sequence(t: Sequence, run: Run, order: str, slot: int) -> Step:
    primitive, each = run
    dtype, padding, size = primitive.dtype(order), PADDING[primitive.size], primitive.size * each

    def step(data: Buffer, pos: int, end: int, values: list[Any]) -> int:
        count, pos = read_count(data, pos, end, order)
        if count:  # an empty sequence is not padded
            check_count(count, t, pos, end)
            pos += padding[pos & 7]
        stop = pos + count * size
        if stop > end:
            raise truncated(stop, end)
        values[slot] = _view(data, dtype, count * each, pos, primitive.kind)
        return stop

    return step


def _pick_array(primitive: Primitive, length: int | None) -> Pick:
    dtype = np.dtype(bool) if primitive.kind == "b" else primitive.dtype("=")

    def pick(value: Any) -> Numbers:
        if primitive.name == "byte" and not isinstance(value, (bytes, np.ndarray)):
            value = b"".join(value)  # rclpy keeps a byte array as a list of bytes
        if isinstance(value, (bytes, bytearray, memoryview)):
            array = np.frombuffer(value, dtype)
        else:
            array = np.asarray(value, dtype).reshape(-1)
        if length is not None and len(array) != length:
            raise DecodeError("dim", f"message: an array of {len(array)} values where the type has {length}")
        return array.view(np.uint8) if primitive.kind == "b" else array

    return pick


def _pick_numbers(t: Type) -> Pick:
    """Attributes to numbers; structs of plain numbers of one kind in one go, others part by part."""
    if isinstance(t, Primitive):
        array = _pick_array(t, 1)
        return lambda value: array(value if isinstance(value, bytes) else [value])
    if isinstance(t, (Array, Sequence)) and isinstance(t.element, Primitive):
        return _pick_array(t.element, t.length if isinstance(t, Array) else None)
    if isinstance(t, (Array, Sequence)):
        one = _pick_numbers(t.element)
        return lambda items: _joined([one(item) for item in items])
    if not isinstance(t, Struct):
        raise RoboCacheError(f"field: {describe(t)} is not numeric")
    names = _plain_leaves(t)
    if len(names) > 1 and len(runs(t) or ()) == 1:
        get, dtype = attrgetter(*names), primitive_of(t).dtype("=")
        return lambda value: np.array(get(value), dtype)
    parts = [(name, _pick_numbers(field)) for name, field in t.fields]
    return lambda value: _joined([pick(getattr(value, name)) for name, pick in parts])


def _plain_leaves(t: Struct) -> list[str]:
    """Dotted names of the numbers of a struct; none if it holds anything else, or booleans or bytes."""
    names: list[str] = []
    for name, field in t.fields:
        if isinstance(field, Struct):
            inner = _plain_leaves(field)
            names += [f"{name}.{leaf}" for leaf in inner]
        elif isinstance(field, Primitive) and field.name not in ("bool", "byte"):
            inner = [name]
            names += inner
        else:
            inner = []
        if not inner:
            return []
    return names


def _joined(parts: list[Numbers]) -> Numbers:
    same = len({part.dtype for part in parts}) == 1
    return np.concatenate(parts if same else [to_float32(part) for part in parts]) if parts else np.empty(0, np.float32)


@np.errstate(over="raise", invalid="ignore")
def _cast(view: Numbers) -> Vector:
    return view.astype(np.float32)


def to_float32(view: Numbers) -> Vector:
    """A new float32 array, each value rounded once to nearest even; DecodeError where one is too large for it."""
    try:
        return _cast(view)
    except FloatingPointError:
        raise DecodeError("range", f"message: {np.abs(view).max()} does not fit float32") from None


STAMP, SCALAR, STRING, OCTETS, NUMERIC = Stamp(), Scalar(), String(), Octets(), Numeric()
