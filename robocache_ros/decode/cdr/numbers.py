"""Readers of numbers as arrays, which are views of the message, and their single rounding to float32."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from robocache_ros.decode.cdr.definitions import PRIMITIVES
from robocache_ros.decode.cdr.types import Run, Sequence, Type, describe, runs
from robocache_ros.decode.cdr.wire import PADDING, UNPACK_COUNT, Step, too_many, truncated
from robocache_ros.decode.payloads import Buffer, DecodeError, Vector
from robocache_ros.errors import RoboCacheError

Numbers: TypeAlias = "npt.NDArray[Any]"


def numbers(t: Type, order: str, slot: int) -> Step:
    """Read any type that consists of numbers as a 1-D array: a view of the message, or float32 if types are mixed."""
    fixed = runs(t)
    if fixed is not None:
        return _read_one_kind(fixed[0], order, slot) if len(fixed) == 1 else _read_mixed(fixed, order, slot)
    if not isinstance(t, Sequence):
        raise RoboCacheError(f"field: {describe(t)} is not numeric; name one of its numeric fields")
    return _read_sequence(t, _element(t), order, slot)


def octets(t: Type, order: str, slot: int) -> Step:
    """Read a uint8 sequence as (nbytes,) uint8, a view of the message."""
    if not isinstance(t, Sequence) or t.element not in (PRIMITIVES["uint8"], PRIMITIVES["byte"]):
        raise RoboCacheError(f"type: expected uint8[], its definition has {describe(t)}")
    return numbers(t, order, slot)


def _element(t: Sequence) -> Run:
    fixed = runs(t.element)
    if fixed is None or len(fixed) != 1:
        raise RoboCacheError(
            f"field: {describe(t)} has numbers of several types; name the field of one element, as in [0].x"
        )
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


@np.errstate(over="raise", invalid="ignore")
def _cast(view: Numbers) -> Vector:
    return view.astype(np.float32)


def to_float32(view: Numbers) -> Vector:
    """A new float32 array, each value rounded once to nearest even; DecodeError if a value is too large for float32."""
    try:
        return _cast(view)
    except FloatingPointError:
        raise DecodeError("range", f"message: {np.abs(view).max()} is too large for float32") from None
