"""Numbers of any type as arrays: views of CDR, arrays of message attributes, and their one rounding to float32."""

from __future__ import annotations

from operator import attrgetter
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from robocache_ros.decode.cdr import PADDING, UNPACK_COUNT, Step, primitive_of, too_many, truncated
from robocache_ros.decode.definitions import PRIMITIVES
from robocache_ros.decode.payloads import Buffer, DecodeError, Vector
from robocache_ros.decode.types import Array, Primitive, Run, Sequence, Struct, Type, describe, runs
from robocache_ros.decode.values import Pick
from robocache_ros.errors import RoboCacheError

Numbers: TypeAlias = "npt.NDArray[Any]"


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


def _read_one_kind(run: Run, order: str, slot: int) -> Step:
    primitive, count = run
    dtype, padding, size = primitive.dtype(order), PADDING[primitive.size], primitive.size * count
    boolean, view = primitive.kind == "b", np.frombuffer

    def step(data: Buffer, pos: int, end: int, values: list[Any]) -> int:
        pos += padding[pos & 7]
        if pos + size > end:
            raise truncated(pos + size, end)
        array = view(data, dtype, count, pos)
        values[slot] = (array != 0).view(np.uint8) if boolean else array
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

    bound, unpack, pad4, boolean, view = t.bound, UNPACK_COUNT[order], PADDING[4], primitive.kind == "b", np.frombuffer

    def step(data: Buffer, pos: int, end: int, values: list[Any]) -> int:
        pos += pad4[pos & 7] + 4
        if pos > end:
            raise truncated(pos, end)
        count: int = unpack(data, pos - 4)[0]
        if bound is not None and count > bound:
            raise too_many(count, t)
        if count:  # an empty sequence is not padded
            pos += padding[pos & 7]
        stop = pos + count * size
        if stop > end:
            raise truncated(stop, end)
        array = view(data, dtype, count * each, pos)
        values[slot] = (array != 0).view(np.uint8) if boolean else array
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


class Octets(Numeric):
    """A uint8 sequence as (nbytes,) uint8 where it lies, without a copy."""

    def reader(self, t: Type, order: str, slot: int) -> Step:
        """A view of the message."""
        if not isinstance(t, Sequence) or t.element not in (PRIMITIVES["uint8"], PRIMITIVES["byte"]):
            raise RoboCacheError(f"type: expected uint8[], its definition has {describe(t)}")
        return super().reader(t, order, slot)


NUMERIC, OCTETS = Numeric(), Octets()
