"""CDR: reads fields, arrays and whole messages from serialized bytes, and writes messages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from struct import Struct as Packed
from struct import calcsize, pack
from types import SimpleNamespace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from robocache_ros.decode.definitions import (
    PRIMITIVES,
    Array,
    Path,
    Primitive,
    Run,
    Sequence,
    Struct,
    Text,
    Type,
    describe,
    merged,
    primitive_of,
    runs,
)
from robocache_ros.decode.payloads import (
    MAX_CACHED_NAMES,
    MAX_ELEMENTS,
    MAX_NAMES,
    MAX_TEXT_BYTES,
    Buffer,
    DecodeError,
    Vector,
)
from robocache_ros.errors import RoboCacheError
from robocache_ros.units import NS_PER_S

# The elements of CDR: encapsulation, padding, lengths and strings, each checked against the end of the message.
#
# Alignment counts from the start of the payload, after the 4 bytes of encapsulation (XCDR1, as in DDS and every
# rosbag2). https://www.omg.org/spec/DDSI-RTPS, section 10 and DDS-XTypes, 7.4.

# A step reads at `pos` of a message that ends at `end`, may write a value to its slot, and returns where it stopped.
Step: TypeAlias = "Callable[[Buffer, int, int, list[Any]], int]"
# Creates the step that reads a type in a byte order (`<` or `>`) and writes its value to a slot.
Reader: TypeAlias = "Callable[[Type, str, int], Step]"

START = 4
_REFUSED = {
    2: "PL_CDR", 3: "PL_CDR", 4: "XML", 6: "CDR2 (XCDR2)", 7: "CDR2 (XCDR2)",
    8: "D_CDR2 (XCDR2)", 9: "D_CDR2 (XCDR2)", 10: "PL_CDR2 (XCDR2)", 11: "PL_CDR2 (XCDR2)",
}  # fmt: skip

# PADDING[size][pos & 7]: bytes to the next position that is aligned for a primitive of that size.
PADDING = {size: tuple((START - phase) % size for phase in range(8)) for size in (1, 2, 4, 8)}
_PAD4 = PADDING[4]
UNPACK_COUNT = {order: Packed(f"{order}I").unpack_from for order in "<>"}


def byte_order(data: Buffer) -> str:
    """`<` or `>` from the encapsulation header; DecodeError if it is not plain CDR."""
    if len(data) < START:
        raise DecodeError("truncated", f"message: {len(data)} bytes, shorter than the encapsulation header")
    if data[0] == 0 and data[1] <= 1:
        return "<" if data[1] else ">"
    kind = data[0] << 8 | data[1]
    name = _REFUSED.get(kind, f"0x{kind:04x}")
    raise DecodeError("encapsulation", f"message: encapsulation {name} is not plain CDR; publish with XCDR1")


def truncated(pos: int, end: int) -> DecodeError:
    """The error for a message whose content reaches past its end."""
    return DecodeError("truncated", f"message: content up to byte {pos}, but it ends at {end}")


def read_count(data: Buffer, pos: int, end: int, order: str) -> tuple[int, int]:
    """The uint32 length at or after `pos`, and the position after it."""
    pos += _PAD4[pos & 7]
    if pos + 4 > end:
        raise truncated(pos + 4, end)
    return UNPACK_COUNT[order](data, pos)[0], pos + 4


def text_end(data: Buffer, pos: int, end: int, order: str, bound: int | None = None) -> tuple[int, int]:
    """Where the characters of a string start, and where the string ends, including its closing NUL."""
    size, pos = read_count(data, pos, end, order)
    if pos + size > end:
        raise truncated(pos + size, end)
    if size and data[pos + size - 1]:
        raise DecodeError("bad_string", f"message: the string at byte {pos} has no closing NUL")
    if bound is not None and size > bound + 1:
        raise DecodeError("bad_length", f"message: a string of {size - 1} bytes where {bound} are allowed")
    return pos, pos + size


def read_text(data: Buffer, pos: int, end: int, order: str) -> tuple[str, int]:
    """The string at or after `pos`, and the position after it."""
    start, stop = text_end(data, pos, end, order)
    if stop - start > MAX_TEXT_BYTES:
        raise DecodeError("bad_length", f"message: a string of {stop - start} bytes; {MAX_TEXT_BYTES} are allowed")
    try:
        return str(data[start : stop - 1] if stop > start else b"", "utf-8"), stop
    except UnicodeDecodeError:
        raise DecodeError("bad_string", f"message: the string at byte {start} is not UTF-8") from None


def too_many(count: int, sequence: Sequence) -> DecodeError:
    """The error for a sequence longer than its bound."""
    return DecodeError("bad_length", f"message: {count} elements in {describe(sequence)}")


def check_count(count: int, sequence: Sequence, pos: int, end: int, limit: int = MAX_ELEMENTS) -> None:
    """Refuse a length that takes too long to walk, or is impossible because each element takes at least a byte."""
    if sequence.bound is not None and count > sequence.bound:
        raise too_many(count, sequence)
    if count > end - pos:
        raise truncated(pos + count, end)
    if count > limit:
        raise too_many(count, sequence)


def stamp(t: Type, order: str, slot: int, *, checked: bool = True) -> Step:
    """Read a builtin_interfaces/msg/Time as int nanoseconds; DecodeError if `nanosec` is a second or more."""
    unpack, padding = Packed(f"{order}iI").unpack_from, PADDING[4]

    def step(data: Buffer, pos: int, end: int, values: list[Any]) -> int:
        pos += padding[pos & 7]
        if pos + 8 > end:
            raise truncated(pos + 8, end)
        sec, nanosec = unpack(data, pos)
        if nanosec < NS_PER_S:
            values[slot] = sec * NS_PER_S + nanosec
        elif checked:
            raise DecodeError("bad_stamp", f"header.stamp: nanosec {nanosec} is not below {NS_PER_S}")
        else:
            values[slot] = 0
        return pos + 8

    return step


def unchecked_stamp(t: Type, order: str, slot: int) -> Step:
    """Read a builtin_interfaces/msg/Time as int nanoseconds; 0 if it is not valid."""
    return stamp(t, order, slot, checked=False)


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


def integer(t: Type, order: str, slot: int) -> Step:
    """Read a single whole number as a Python int."""
    if primitive_of(t).kind not in "iu":
        raise RoboCacheError(f"type: expected a whole number, its definition has {describe(t)}")
    return scalar(t, order, slot)


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
            if len(known) > MAX_CACHED_NAMES:
                del known[0]
            return pos

        return step

    return reader


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


def to_float32(view: Numbers) -> Vector:
    """A new float32 array, each value rounded once to nearest even; DecodeError if a value is too large for float32."""
    try:
        with np.errstate(over="raise", invalid="ignore"):
            return view.astype(np.float32)
    except FloatingPointError:
        raise DecodeError("range", f"message: {np.abs(view).max()} is too large for float32") from None


# Reads the values at some paths of a CDR message; every length is checked against the buffer.
#
# A layout and the wanted paths are compiled once into a list of steps for each byte order. Other values are skipped, in
# one step if their size is fixed.

Wanted: TypeAlias = "tuple[Path, Reader, int]"


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


_MAX_SPANS = 1024  # a message with more lengths and strings is read on its own


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
        return len(self.spans) <= _MAX_SPANS

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


class CdrWriter:
    """A little-endian CDR message in the making; each method adds to it and returns the writer.

    Messages are written by hand where their classes, which need ROS, would take ten times as long.
    """

    def __init__(self) -> None:
        self._data = bytearray(b"\0\1\0\0")

    def put(self, code: str, *values: float) -> CdrWriter:
        """Add numbers of one type, by its code in `struct`, aligned to its size."""
        padding = bytes((START - len(self._data)) % calcsize(code))
        self._data += padding + pack(f"<{len(values)}{code}", *values)
        return self

    def text(self, value: str) -> CdrWriter:
        """Add a string."""
        return self.raw(value.encode() + b"\0")

    def texts(self, values: Iterable[str]) -> CdrWriter:
        """Add a sequence of strings."""
        found = list(values)
        self.put("I", len(found))
        for value in found:
            self.text(value)
        return self

    def header(self, stamp_ns: int, frame: str) -> CdrWriter:
        """Add a std_msgs/Header."""
        seconds, nanoseconds = divmod(stamp_ns, NS_PER_S)
        return self.put("i", seconds).put("I", nanoseconds).text(frame)

    def doubles(self, values: npt.NDArray[np.float64]) -> CdrWriter:
        """Add a sequence of float64."""
        self.put("I", len(values))
        return self.put("d", *values.tolist()) if len(values) else self

    def raw(self, data: bytes) -> CdrWriter:
        """Add a sequence of bytes."""
        self._data += bytes(-len(self._data) % 4) + len(data).to_bytes(4, "little")
        self._data += data
        return self

    def done(self) -> bytes:
        """The message."""
        return bytes(self._data)
