"""Vectors: any numeric field of any message by its path, and joints by name."""

from __future__ import annotations

import math
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from robocache_ros.decode.cdr import read_text
from robocache_ros.decode.decoder import Decoder, Wanted
from robocache_ros.decode.numeric import NUMERIC, Numbers, to_float32
from robocache_ros.decode.payloads import DecodeError, Sample, Vector
from robocache_ros.decode.types import Path, Sequence, Struct, describe, parse_path, resolve, runs
from robocache_ros.decode.values import Items
from robocache_ros.errors import RoboCacheError
from robocache_ros.spec import StreamSpec

Take: TypeAlias = "slice | npt.NDArray[np.intp]"

NAMES = Items(read_text, str)  # joint names
_BLENDED = ("linear", "slerp", "angle")
_MOST_PLANS = 64
_FEW = 32
_TOO_LARGE = 2.0**128 - 2.0**103  # the smallest double that rounds beyond float32


class VectorDecoder(Decoder):
    """A numeric field, a composite (x y z w of a quaternion) or an array, as (D,) float32.

    A NaN or infinite value is refused where samples are blended: it would spread into ticks marked as aligned.
    """

    def __init__(self, stream: StreamSpec, message: Struct, first: Wanted | None = None) -> None:
        """Compile the stream's field; `first` are paths wanted before it."""
        path = _numeric_path(stream, message)
        super().__init__(stream, message, [*(first or []), (path, NUMERIC)], near=path)
        self._field, self._width = stream.field, stream.width
        self._finite = stream.align in _BLENDED

    def _sample(self, stamp_ns: int | None, /, *values: Any) -> Sample:
        view: Numbers = values[0]
        if len(view) != self._width:
            cause = "dim" if len(view) else "empty"
            raise DecodeError(cause, f"{self._field}: {len(view)} values, the stream has {self._width}")
        return Sample(stamp_ns, self._value(view))

    def _value(self, view: Numbers) -> Vector:
        if view.dtype.kind == "f" and self._width <= _FEW:
            # So few values are rounded and checked faster as Python's floats: of 7 joints in a third of the time.
            numbers = view.tolist()
            if math.isfinite(sum(numbers)) and max(numbers) < _TOO_LARGE and min(numbers) > -_TOO_LARGE:
                return np.array(numbers, np.float32)
        value = to_float32(view)
        if self._finite and not np.isfinite(value).all():
            raise DecodeError("not_finite", f"{self._field}: {value[~np.isfinite(value)][0]} cannot be blended")
        return value


class _Plan(NamedTuple):
    """How the values of one list of joint names become the stream's."""

    names: frozenset[str]
    take: Take
    unmatched: tuple[str, ...]
    error: DecodeError | None


class JointDecoder(VectorDecoder):
    """Joint values by name, whatever their order in the message and whatever other joints it carries."""

    def __init__(self, stream: StreamSpec, message: Struct) -> None:
        super().__init__(stream, message, [(("name",), NAMES)])
        if not isinstance(resolve(message, parse_path(stream.field)), Sequence):
            raise RoboCacheError(f"field: {stream.field!r} is not one value a joint; use position, velocity or effort")
        self._names = stream.names
        self._plans: dict[tuple[str, ...], _Plan] = {}
        self._before: frozenset[str] | None = None

    def _sample(self, stamp_ns: int | None, /, *values: Any) -> Sample:
        names: tuple[str, ...] = values[0]
        view: Numbers = values[1]
        plan = self._plans.get(names) or self._plan(names)
        if plan.names is not self._before:
            self.changed_sets += self._before is not None and plan.names != self._before
            self._before = plan.names
        if plan.error is not None:
            raise DecodeError(plan.error.cause, str(plan.error))
        if len(view) != len(names):
            raise self._wrong_count(len(view), len(names))
        return Sample(stamp_ns, self._value(view[plan.take]), plan.unmatched)

    def _wrong_count(self, count: int, joints: int) -> DecodeError:
        if not count:
            return DecodeError("empty", f"{self._field}: empty, the publisher does not fill it; use another field")
        return DecodeError("dim", f"{self._field}: {count} values for {joints} joint names")

    def _plan(self, names: tuple[str, ...]) -> _Plan:
        place = {name: i for i, name in enumerate(names)}
        missing = [name for name in self._names if name not in place]
        twice = [name for name in self._names if names.count(name) > 1]
        error = None
        if missing:
            error = DecodeError("joint_missing", f"names: no {', '.join(missing)} among {', '.join(names) or 'none'}")
        elif twice:
            error = DecodeError("joint_twice", f"names: {', '.join(twice)} stands twice in the message")
        order = [place.get(name, 0) for name in self._names]
        in_a_row = order == list(range(order[0], order[0] + len(order)))
        take = slice(order[0], order[0] + len(order)) if in_a_row else np.array(order, np.intp)
        unmatched = tuple(name for name in names if name not in self._names)
        if len(self._plans) >= _MOST_PLANS:  # names that keep changing must not fill the memory
            self._plans.clear()
        return self._plans.setdefault(names, _Plan(frozenset(names), take, unmatched, error))


def _numeric_path(stream: StreamSpec, message: Struct) -> Path:
    """The path of a stream's field; RoboCacheError where it is not numeric or not as wide as the stream."""
    path = parse_path(stream.field)
    t = resolve(message, path)
    if "header" in path:
        raise RoboCacheError(f"field: {stream.field!r} is part of the header, which stamps the sample; name another")
    fixed = runs(t)
    width = sum(count for _, count in fixed) if fixed is not None else stream.width
    if width != stream.width:
        raise RoboCacheError(f"dim: {stream.width}, but {stream.field} of {message.name} ({describe(t)}) holds {width}")
    return path
