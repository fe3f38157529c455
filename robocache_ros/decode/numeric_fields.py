"""Decodes vectors: any numeric field of any message by its path, and joints by name."""

from __future__ import annotations

import math
from collections.abc import Iterable
from collections.abc import Sequence as Listed
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from robocache_ros.decode.cdr import PADDING, Numbers, Structure, byte_order, numbers, read_text, remembered, to_float32
from robocache_ros.decode.decoder import Decoder, Wanted
from robocache_ros.decode.definitions import Path, Sequence, Struct, describe, parse_path, resolve, runs
from robocache_ros.decode.payloads import MAX_CACHED_NAMES, DecodeError, Sample, Vector
from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.spec import StreamSpec
from robocache_ros.units import NS_PER_S

Take: TypeAlias = "slice | npt.NDArray[np.intp]"

Int64: TypeAlias = "npt.NDArray[np.int64]"

_FEW = 32
_TOO_LARGE = 2.0**128 - 2.0**103  # the smallest double that rounds to infinity in float32
_UNIT = 1e-6  # a squared length that differs less from 1 is that of a unit quaternion rounded to float32
_SHORTEST, _LONGEST = 0.9, 1.1  # lengths of quaternions that are normalised; others are no rotations


class Alike(NamedTuple):
    """The samples of messages with the same structure; `decode_cdr` of each message gives the same values."""

    stamps_ns: Int64 | None  # (M,); None if the type has no header
    values: npt.NDArray[np.float32]  # (M, D)
    unmatched: bool  # the messages have joints that the stream does not use


class VectorDecoder(Decoder):
    """A numeric field, a composite (x y z w of a quaternion) or an array, as (D,) float32.

    A NaN or an infinity is not a value: its message is refused, or the number of the stream's `fill` replaces it.
    `filled` counts the messages in which values were replaced. For slerp, a quaternion of a length from 0.9 to 1.1 is
    normalised in float64 and rounded once, unless rounding explains its length; others are refused.
    """

    def __init__(self, stream: StreamSpec, message: Struct, first: Wanted | None = None) -> None:
        """Compile the stream's field; the paths `first` are read before it."""
        paths = _numeric_paths(stream, message)
        super().__init__(stream, message, [*(first or []), *((path, numbers) for path in paths)], near=_shared(paths))
        self._field, self._width = printable(", ".join(stream.paths), 60), stream.dim
        self._paths = paths
        self._offset = np.array(stream.offset, np.float64) if stream.offset else None
        self._fill = np.array(stream.fill, np.float32) if stream.fill else None
        self._rotates = stream.align == "slerp"

    def decode_alike(self, first: bytes, others: Listed[bytes]) -> Alike | None:
        """The samples of the leading messages among `others` that differ from `first` only in their numbers.

        Stops at a message that `decode_cdr` refuses, or that needs more than a conversion of its numbers.

        Args:
            first: a message that `decode_cdr` has just read.
            others: the messages after it.

        Returns:
            None if messages of this structure must be read one by one.
        """
        values = self._program.read(first)
        view: Numbers = values[-1]
        order = self._order_of(values)
        at = _address(view) - _address(np.frombuffer(first, np.uint8))
        if (
            order is None or len(self._paths) > 1 or view.dtype.kind != "f" or not 0 <= at <= len(first) - view.nbytes
        ):  # else it is not a view
            return None
        structure = Structure(self._message, first, self._stamp_path or ())
        if not structure.known:
            return None
        differ = np.flatnonzero(np.fromiter(map(len, others), np.int64, len(others)) != len(first))
        same_length = int(differ[0]) if len(differ) else len(others)
        rows = np.frombuffer(b"".join(others[:same_length]), np.uint8).reshape(same_length, len(first))
        where = np.concatenate([np.arange(*span) for span in structure.spans])
        good = (rows[:, where] == np.frombuffer(first, np.uint8)[where]).all(axis=1)
        numbers_of = np.ascontiguousarray(rows[:, at : at + view.nbytes]).view(view.dtype)[:, order.take]
        if self._offset is not None:
            numbers_of = numbers_of.astype(np.float64) - self._offset
        with np.errstate(invalid="ignore", over="ignore"):  # the limit is infinite in float32
            good &= (np.abs(numbers_of) < _TOO_LARGE).all(axis=1)  # also False for NaN
        stamps = None
        if self._stamp_path and structure.found_at is not None:
            start = structure.found_at + PADDING[4][structure.found_at & 7]
            order_of_bytes, parts = byte_order(first), np.ascontiguousarray(rows[:, start : start + 8])
            seconds, nanoseconds = parts.view(f"{order_of_bytes}i4")[:, 0], parts.view(f"{order_of_bytes}u4")[:, 1]
            good &= nanoseconds < NS_PER_S
            stamps = seconds.astype(np.int64) * NS_PER_S + nanoseconds
        count = same_length if good.all() else int(good.argmin())
        floats = numbers_of[:count].astype(np.float32)
        if self._rotates:
            exact = floats.astype(np.float64)
            x, y, z, w = exact.T
            squares = ((x * x + y * y) + z * z) + w * w  # as in `_rotation`
            good = (squares >= _SHORTEST**2) & (squares <= _LONGEST**2)
            count = count if good.all() else int(good.argmin())
            off = np.flatnonzero(np.abs(squares[:count] - 1) > _UNIT)
            floats = floats[:count]
            floats[off] = exact[off] / np.sqrt(squares[off])[:, None]
        return Alike(None if stamps is None else stamps[:count], floats, bool(order.unmatched))

    def _order_of(self, values: list[Any]) -> JointOrder | None:
        """The order in which the stream uses the values of a message; None if the message is dropped."""
        return _ALL if len(values[-1]) == self._width else None

    def _sample(self, stamp_ns: int | None, /, *values: Any) -> Sample:
        view: Numbers = values[0] if len(values) == 1 else self._together(values)
        if len(view) != self._width:
            cause = "dim" if len(view) else "empty"
            raise DecodeError(cause, f"{self._field}: {len(view)} values, the stream has {self._width}")
        return Sample(stamp_ns, self._value(view))

    def _together(self, values: tuple[Any, ...]) -> Numbers:
        """Several fields as one array; if their types differ, each value is rounded once."""
        return np.concatenate(values if self._offset is not None else [to_float32(value) for value in values])

    def _value(self, view: Numbers) -> Vector:
        value = self._finite(view)
        return self._rotation(value) if self._rotates else value

    def _finite(self, view: Numbers) -> Vector:
        if self._offset is not None:
            view = view.astype(np.float64) - self._offset
        if view.dtype.kind == "f" and self._width <= _FEW:
            # Few values are rounded and checked faster as Python floats: 7 joints take a third of the time.
            few = view.tolist()
            if math.isfinite(sum(few)) and max(few) < _TOO_LARGE and min(few) > -_TOO_LARGE:
                return np.array(few, np.float32)
        value = to_float32(view)
        finite = np.isfinite(value)
        if finite.all():
            return value
        if self._fill is None:
            column = int(finite.argmin())
            hint = "with hold or nearest, `fill` can replace it"
            raise DecodeError("not_finite", f"{self._field}: value {column} is {value[column]}; {hint}")
        self.filled += 1
        return np.where(finite, value, self._fill)

    def _rotation(self, value: Vector) -> Vector:
        """A quaternion normalised to length 1; DecodeError if its length is far from it."""
        x, y, z, w = value.tolist()
        square = ((x * x + y * y) + z * z) + w * w
        if abs(square - 1) <= _UNIT:
            return value
        if not _SHORTEST**2 <= square <= _LONGEST**2:
            text = f"{self._field}: a quaternion of length {math.sqrt(square):.3g}; slerp needs unit quaternions"
            raise DecodeError("not_unit", text)
        return (value.astype(np.float64) / math.sqrt(square)).astype(np.float32)


class JointOrder(NamedTuple):
    """How the values for one list of joint names become the stream's values."""

    names: frozenset[str]
    take: Take
    unmatched: tuple[str, ...]
    error: DecodeError | None


_ALL = JointOrder(frozenset(), slice(None), (), None)


class JointDecoder(VectorDecoder):
    """Joint values by name, in any order and among any other joints of the message."""

    def __init__(self, stream: StreamSpec, message: Struct) -> None:
        super().__init__(stream, message, [(("name",), remembered(read_text))])
        if not isinstance(resolve(message, self._paths[0]), Sequence):
            raise RoboCacheError(f"field: {self._field!r} is not one value per joint; use position, velocity or effort")
        self._names = stream.names
        self._orders: dict[tuple[str, ...], JointOrder] = {}
        self._before: frozenset[str] | None = None

    def _sample(self, stamp_ns: int | None, /, *values: Any) -> Sample:
        names: tuple[str, ...] = values[0]
        view: Numbers = values[1]
        order = self._orders.get(names) or self._order(names)
        if order.names is not self._before:
            self.changed_sets += self._before is not None and order.names != self._before
            self._before = order.names
        if order.error is not None:
            raise DecodeError(order.error.cause, str(order.error))
        if len(view) != len(names):
            raise self._wrong_count(len(view), len(names))
        return Sample(stamp_ns, self._value(view[order.take]), order.unmatched)

    def _order_of(self, values: list[Any]) -> JointOrder | None:
        names, view = values[-2:]
        order = self._orders.get(names)
        return order if order and order.error is None and len(view) == len(names) else None

    def _wrong_count(self, count: int, joints: int) -> DecodeError:
        if not count:
            return DecodeError("empty", f"{self._field}: empty, the publisher does not set it; use another field")
        return DecodeError("dim", f"{self._field}: {count} values for {joints} joint names")

    def _order(self, names: tuple[str, ...]) -> JointOrder:
        place = {name: i for i, name in enumerate(names)}
        missing = [name for name in self._names if name not in place]
        twice = [name for name in self._names if names.count(name) > 1]
        error = None
        if missing:
            error = DecodeError("joint_missing", f"names: {_listed(missing)} missing among {_listed(names) or 'none'}")
        elif twice:
            error = DecodeError("joint_twice", f"names: {_listed(twice)} appears twice; publish each joint once")
        places = [place.get(name, 0) for name in self._names]
        in_a_row = places == list(range(places[0], places[0] + len(places)))
        take = slice(places[0], places[0] + len(places)) if in_a_row else np.array(places, np.intp)
        wanted = set(self._names)
        unmatched = tuple(name for name in names if name not in wanted)
        if len(self._orders) >= MAX_CACHED_NAMES:  # names that keep changing must not fill the memory
            self._orders.clear()
        return self._orders.setdefault(names, JointOrder(frozenset(names), take, unmatched, error))


def _address(array: Numbers) -> int:
    return int(array.__array_interface__["data"][0])


def _listed(names: Iterable[str]) -> str:
    return printable(", ".join(names), 70)


def _numeric_paths(stream: StreamSpec, message: Struct) -> tuple[Path, ...]:
    """The paths of a stream's fields; RoboCacheError if one is not numeric, or their width is not the stream's."""
    paths = tuple(parse_path(path) for path in stream.paths)
    types = [resolve(message, path) for path in paths]
    for path, text in zip(paths, stream.paths, strict=True):
        if "header" in path:
            raise RoboCacheError(f"field: {text!r} is part of the header, which gives the stamp; name another")
        if sum(path == other[: len(path)] for other in paths) > 1:
            raise RoboCacheError(f"field: {text!r} contains another field of the list; name one of the two")
    fixed = [runs(t) for t in types]
    width = sum(count for parts in fixed for _, count in parts or ())
    if width > stream.dim or (None not in fixed and width != stream.dim):
        kind = describe(types[0]) if len(types) == 1 else f"{len(types)} fields"
        fields = printable(", ".join(stream.paths), 60)
        raise RoboCacheError(f"dim: {stream.dim}, but {fields} of {message.name} ({kind}) have {width} values")
    if stream.offset and any(len(parts or ()) > 1 for parts in fixed):
        raise RoboCacheError("offset: needs numbers of one type; list the fields one by one")
    return paths


def _shared(paths: Listed[Path]) -> Path:
    """The path of the innermost message that contains all paths; for a single path, the path itself."""
    shared = paths[0]
    for path in paths[1:]:
        alike = (one == other for one, other in zip(shared, path, strict=False))
        shared = shared[: next((index for index, same in enumerate(alike) if not same), min(len(shared), len(path)))]
    return shared
