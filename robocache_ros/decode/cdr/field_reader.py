"""Reads the values at some paths of a CDR message; every length is checked against the buffer.

A layout and the wanted paths are compiled once into a list of steps for each byte order. Other values are skipped, in
one step if their size is fixed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

from robocache_ros.decode.cdr.types import (
    Array,
    Path,
    Run,
    Sequence,
    Struct,
    Text,
    Type,
    describe,
    merged,
    runs,
)
from robocache_ros.decode.cdr.wire import (
    PADDING,
    START,
    UNPACK_COUNT,
    Reader,
    Step,
    byte_order,
    check_count,
    read_count,
    text_end,
    too_many,
    truncated,
)
from robocache_ros.decode.payloads import Buffer, DecodeError
from robocache_ros.errors import RoboCacheError

Wanted: TypeAlias = "tuple[Path, Reader, int]"

_PAD4 = PADDING[4]


def spans(parts: list[Run]) -> tuple[int, ...]:
    """Bytes from a position to the end of these primitives, for each value of position & 7."""
    result = []
    for phase in range(8):
        pos = phase
        for primitive, count in parts:
            pos += PADDING[primitive.size][pos & 7] + primitive.size * count
        result.append(pos - phase)
    return tuple(result)


class Program:
    """Reads the wanted paths of a message type; returns a list of values in the order of `wanted`."""

    def __init__(self, message: Struct, wanted: list[tuple[Path, Reader]]) -> None:
        slots = [(path, reader, slot) for slot, (path, reader) in enumerate(wanted)]
        self._steps = {order: tuple(_linked(_walk(message, slots, order))) for order in "<>"}
        self._size = len(wanted)

    def read(self, data: Buffer) -> list[Any]:
        """The values; DecodeError if the message is truncated or does not have this layout.

        The whole message is walked, so that a truncation after the last value is also found. Bytes after its end are
        ignored: rclpy's serialize_message leaves some, four for each empty sequence of 8-byte elements.
        """
        steps = self._steps[byte_order(data)]
        values = [None] * self._size
        pos, end = START, len(data)
        for step in steps:
            pos = step(data, pos, end, values)
        return values


def _linked(parts: Iterator[Step | Run]) -> Iterator[Step]:
    """The steps, with neighbouring primitives that are not wanted skipped in one step."""
    pending: list[Run] = []
    for part in parts:
        if isinstance(part, tuple):
            pending.append(part)
            continue
        if pending:
            yield _skip_fixed(pending)
            pending = []
        yield part
    if pending:
        yield _skip_fixed(pending)


def _walk(t: Type, wanted: list[Wanted], order: str) -> Iterator[Step | Run]:
    here = [(reader, slot) for path, reader, slot in wanted if not path]
    if here:
        reader, slot = here[0]
        yield reader(t, order, slot)
    elif not wanted:
        yield from _skipped(t, order)
    elif isinstance(t, Struct):
        for name, field in t.fields:
            inner = [(path[1:], reader, slot) for path, reader, slot in wanted if path[0] == name]
            yield from _walk(field, inner, order)
    elif isinstance(t, (Array, Sequence)):
        yield _indexed(t, wanted, order)
    else:  # resolve() has already refused such a path
        raise RoboCacheError(f"field: {describe(t)} has no fields; leave out what follows it")


def _skipped(t: Type, order: str) -> Iterator[Step | Run]:
    fixed = runs(t)
    if fixed is not None:
        yield from fixed
    elif isinstance(t, Struct):
        for _, field in t.fields:
            yield from _skipped(field, order)
    elif isinstance(t, Text):
        yield _skip_text(t, order)
    elif isinstance(t, (Array, Sequence)):
        yield _skip_elements(t, order)
    else:
        raise RoboCacheError(f"type: {describe(t)} fields are not supported; their layout in CDR is not unique")


def _skip_fixed(parts: list[Run]) -> Step:
    sizes = spans(merged(parts))

    def step(data: Buffer, pos: int, end: int, values: list[Any]) -> int:
        pos += sizes[pos & 7]
        if pos > end:
            raise truncated(pos, end)
        return pos

    return step


def _skip_text(t: Text, order: str) -> Step:
    bound, unpack = t.bound, UNPACK_COUNT[order]

    def step(data: Buffer, pos: int, end: int, values: list[Any]) -> int:
        # Inlined: nearly every message has a frame_id before the values, and function calls dominate the cost.
        start = pos + _PAD4[pos & 7] + 4
        if start <= end:
            stop: int = start + unpack(data, start - 4)[0]
            if start < stop <= end and not data[stop - 1] and bound is None:
                return stop
        return text_end(data, pos, end, order, bound)[1]

    return step


def _skip_elements(t: Array | Sequence, order: str) -> Step:
    one_kind = runs(t.element)
    if isinstance(t, Sequence) and one_kind is not None and len(one_kind) == 1:
        return _skip_numbers(t, one_kind[0], order)
    element = tuple(_linked(_skipped(t.element, order)))
    length = t.length if isinstance(t, Array) else None

    def step(data: Buffer, pos: int, end: int, values: list[Any]) -> int:
        count, pos = _begin(t, length, data, pos, end, order)
        for _ in range(count):
            for skip in element:
                pos = skip(data, pos, end, values)
        return pos

    return step


def _begin(t: Array | Sequence, length: int | None, data: Buffer, pos: int, end: int, order: str) -> tuple[int, int]:
    if isinstance(t, Array):
        return t.length, pos
    count, pos = read_count(data, pos, end, order)
    check_count(count, t, pos, end)
    return count, pos


def _skip_numbers(t: Sequence, one_kind: Run, order: str) -> Step:
    primitive, each = one_kind
    padding, size, unpack = PADDING[primitive.size], primitive.size * each, UNPACK_COUNT[order]
    bound = t.bound

    def step(data: Buffer, pos: int, end: int, values: list[Any]) -> int:
        pos += _PAD4[pos & 7] + 4
        if pos > end:
            raise truncated(pos, end)
        count: int = unpack(data, pos - 4)[0]
        if not count:  # an empty sequence is not padded
            return pos
        if bound is not None and count > bound:
            raise too_many(count, t)
        pos += padding[pos & 7] + count * size
        if pos > end:
            raise truncated(pos, end)
        return pos

    return step


def _indexed(t: Array | Sequence, wanted: list[Wanted], order: str) -> Step:
    """Read values within some elements of an array or a sequence, and skip the other elements."""
    by_index: dict[int, list[Wanted]] = {}
    for (index, *rest), reader, slot in wanted:
        if not isinstance(index, int):
            raise RoboCacheError(f"field: name one element of {describe(t)}, such as [0]")
        by_index.setdefault(index, []).append((tuple(rest), reader, slot))
    last = max(by_index)
    skip = tuple(_linked(_skipped(t.element, order)))
    read = {index: tuple(_linked(_walk(t.element, inner, order))) for index, inner in by_index.items()}

    def step(data: Buffer, pos: int, end: int, values: list[Any]) -> int:
        count, pos = _begin(t, None, data, pos, end, order)
        if last >= count:
            raise DecodeError("too_short", f"message: no element [{last}] among {count} of {describe(t)}")
        for i in range(count):
            for one in read.get(i, skip):
                pos = one(data, pos, end, values)
        return pos

    return step
