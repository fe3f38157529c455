"""Finds the lengths and strings of a serialized message; if they agree, the numbers are at the same offsets."""

from __future__ import annotations

from robocache_ros.decode.cdr.field_reader import spans
from robocache_ros.decode.cdr.types import Array, Path, Sequence, Struct, Text, Type, runs
from robocache_ros.decode.cdr.wire import PADDING, START, byte_order, read_count, text_end
from robocache_ros.decode.payloads import Buffer

_MOST_SPANS = 1024  # a message with more lengths and strings is read on its own


class Structure:
    """The structure of one message that its decoder has read.

    Attributes:
        spans: [start, stop) of each length and string, and of the first two bytes of the encapsulation.
        found_at: where the value at `path` starts, before its padding; None if the message does not have it.

    Args:
        message: type of the message.
        data: the message.
        path: path of the value to find.
    """

    def __init__(self, message: Struct, data: Buffer, path: Path) -> None:
        self.spans: list[tuple[int, int]] = [(0, 2)]
        self.found_at: int | None = None
        self._data, self._end, self._order = data, len(data), byte_order(data)
        self._walk(message, START, path)

    @property
    def known(self) -> bool:
        """Whether `spans` is complete."""
        return len(self.spans) <= _MOST_SPANS

    def _walk(self, t: Type, pos: int, path: Path | None) -> int:
        """Where a value of type `t` ends; `path` is the rest of the path to find, None if the path leads elsewhere."""
        if not self.known:
            return pos
        if path == ():
            self.found_at, path = pos, None
        fixed = runs(t) if path is None else None
        if fixed is not None:
            return pos + spans(fixed)[pos & 7]
        if isinstance(t, Struct):
            for name, field in t.fields:
                pos = self._walk(field, pos, path[1:] if path and path[0] == name else None)
        elif isinstance(t, Text):
            start, stop = text_end(self._data, pos, self._end, self._order)
            self.spans.append((start - 4, stop))
            pos = stop
        elif isinstance(t, (Array, Sequence)):
            pos = self._elements(t, pos, path)
        return pos

    def _elements(self, t: Array | Sequence, pos: int, path: Path | None) -> int:
        if isinstance(t, Array):
            count = t.length
        else:
            count, pos = read_count(self._data, pos, self._end, self._order)
            self.spans.append((pos - 4, pos))
        one_kind = runs(t.element)
        if path is None and one_kind is not None and len(one_kind) == 1:
            primitive, each = one_kind[0]
            return pos + (PADDING[primitive.size][pos & 7] + count * each * primitive.size if count else 0)
        for i in range(count):
            pos = self._walk(t.element, pos, path[1:] if path and path[0] == i else None)
            if not self.known:
                break
        return pos
