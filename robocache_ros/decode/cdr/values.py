"""Readers of single values: stamps, numbers, strings, and lists that are the same in every message."""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct as Packed
from typing import Any

from robocache_ros.decode.cdr.types import Sequence, Type, describe, primitive_of
from robocache_ros.decode.cdr.wire import PADDING, Reader, Step, check_count, read_count, read_text, truncated
from robocache_ros.decode.limits import MAX_MEMORY, MAX_NAMES
from robocache_ros.decode.payloads import Buffer, DecodeError
from robocache_ros.errors import RoboCacheError
from robocache_ros.units import NS_PER_S


def stamp(t: Type, order: str, slot: int) -> Step:
    """Read a builtin_interfaces/msg/Time as int nanoseconds; DecodeError if `nanosec` is a second or more."""
    unpack, padding = Packed(f"{order}iI").unpack_from, PADDING[4]

    def step(data: Buffer, pos: int, end: int, values: list[Any]) -> int:
        pos += padding[pos & 7]
        if pos + 8 > end:
            raise truncated(pos + 8, end)
        sec, nanosec = unpack(data, pos)
        if nanosec >= NS_PER_S:
            raise DecodeError("bad_stamp", f"header.stamp: nanosec {nanosec} is not below {NS_PER_S}")
        values[slot] = sec * NS_PER_S + nanosec
        return pos + 8

    return step


def unchecked_stamp(t: Type, order: str, slot: int) -> Step:
    """Read a builtin_interfaces/msg/Time as int nanoseconds; 0 if it is not valid."""
    unpack, padding = Packed(f"{order}iI").unpack_from, PADDING[4]

    def step(data: Buffer, pos: int, end: int, values: list[Any]) -> int:
        pos += padding[pos & 7]
        if pos + 8 > end:
            raise truncated(pos + 8, end)
        sec, nanosec = unpack(data, pos)
        values[slot] = sec * NS_PER_S + nanosec if nanosec < NS_PER_S else 0
        return pos + 8

    return step


def scalar(t: Type, order: str, slot: int) -> Step:
    """Read a single number as a Python int or float."""
    primitive = primitive_of(t)
    unpack, padding, size = Packed(order + primitive.code).unpack_from, PADDING[primitive.size], primitive.size

    def step(data: Buffer, pos: int, end: int, values: list[Any]) -> int:
        pos += padding[pos & 7]
        if pos + size > end:
            raise truncated(pos + size, end)
        values[slot] = unpack(data, pos)[0]
        return pos + size

    return step


def string(t: Type, order: str, slot: int) -> Step:
    """Read a string, UTF-8 with a closing NUL, as str."""

    def step(data: Buffer, pos: int, end: int, values: list[Any]) -> int:
        values[slot], pos = read_text(data, pos, end, order)
        return pos

    return step


def remembered(read_one: Callable[[Buffer, int, int, str], tuple[Any, int]]) -> Reader:
    """Make a reader of a sequence; it returns a tuple of the results of `read_one` for each element.

    Joint names and point fields are the same in every message. Reading them each time would take longer than the rest
    of the message, so the last few lists are cached by their raw bytes. No element has an alignment above 4.
    """

    def reader(t: Type, order: str, slot: int) -> Step:
        if not isinstance(t, Sequence):
            raise RoboCacheError(f"type: expected a sequence, its definition has {describe(t)}")
        sequence, padding = t, PADDING[4]
        known: list[tuple[bytes, tuple[Any, ...]]] = []

        def step(data: Buffer, pos: int, end: int, values: list[Any]) -> int:
            pos += padding[pos & 7]
            for raw, items in known:
                if data.startswith(raw, pos) if isinstance(data, bytes) else data[pos : pos + len(raw)] == raw:
                    values[slot] = items
                    return pos + len(raw)
            start = pos
            count, pos = read_count(data, pos, end, order)
            check_count(count, sequence, pos, end, MAX_NAMES)
            fresh = []
            for _ in range(count):
                item, pos = read_one(data, pos, end, order)
                fresh.append(item)
            values[slot] = tuple(fresh)
            known.append((bytes(data[start:pos]), tuple(fresh)))
            if len(known) > MAX_MEMORY:
                del known[0]
            return pos

        return step

    return reader
