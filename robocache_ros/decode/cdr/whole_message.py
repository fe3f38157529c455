"""Reads whole messages as objects for inspection; streams use `field_reader`."""

from __future__ import annotations

from struct import Struct as Packed
from types import SimpleNamespace
from typing import Any

import numpy as np

from robocache_ros.decode.cdr.types import Array, Primitive, Sequence, Struct, Text, Type, describe
from robocache_ros.decode.cdr.wire import (
    PADDING,
    START,
    byte_order,
    check_count,
    read_count,
    text_end,
    too_many,
    truncated,
)
from robocache_ros.decode.payloads import Buffer
from robocache_ros.errors import RoboCacheError


def read_message(message: Struct, data: Buffer) -> Any:
    """A message with its fields as attributes: numbers, str, NumPy arrays of numbers, lists of other values.

    Errors:
        DecodeError: the message is truncated, or not of this type.
        RoboCacheError: the type has fields that are not supported.
    """
    return _Reader(data).value(message, START)[0]


def message_end(message: Struct, data: Buffer) -> int:
    """The offset after the last byte of a message of this type in `data`.

    Errors:
        DecodeError, RoboCacheError: as for `read_message`.
    """
    return _Reader(data).value(message, START)[1]


class _Reader:
    def __init__(self, data: Buffer) -> None:
        self._data, self._end, self._order = data, len(data), byte_order(data)

    def value(self, t: Type, pos: int) -> tuple[Any, int]:
        if isinstance(t, Primitive):
            pos += PADDING[t.size][pos & 7]
            if pos + t.size > self._end:
                raise truncated(pos + t.size, self._end)
            return Packed(self._order + t.code).unpack_from(self._data, pos)[0], pos + t.size
        if isinstance(t, Text):
            start, stop = text_end(self._data, pos, self._end, self._order, t.bound)
            return bytes(self._data[start : max(stop - 1, start)]).decode(errors="replace"), stop
        if isinstance(t, Struct):
            fields = {}
            for name, field in t.fields:
                fields[name], pos = self.value(field, pos)
            return SimpleNamespace(**fields), pos
        if isinstance(t, (Array, Sequence)):
            return self._elements(t, pos)
        raise RoboCacheError(f"type: {describe(t)} fields are not supported; their layout in CDR is not unique")

    def _elements(self, t: Array | Sequence, pos: int) -> tuple[Any, int]:
        if isinstance(t, Array):
            count = t.length
        else:
            count, pos = read_count(self._data, pos, self._end, self._order)
            if t.bound is not None and count > t.bound:
                raise too_many(count, t)
        if isinstance(t.element, Primitive):
            pos += PADDING[t.element.size][pos & 7] if count else 0
            stop = pos + count * t.element.size
            if stop > self._end:
                raise truncated(stop, self._end)
            return np.frombuffer(self._data, t.element.dtype(self._order), count, pos), stop
        if isinstance(t, Sequence):
            check_count(count, t, pos, self._end)
        items = []
        for _ in range(count):
            item, pos = self.value(t.element, pos)
            items.append(item)
        return items, pos
