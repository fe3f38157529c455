"""The elements of CDR: encapsulation, padding, lengths and strings, each checked against the end of the message.

Alignment counts from the start of the payload, after the 4 bytes of encapsulation (XCDR1, as in DDS and every rosbag2).
https://www.omg.org/spec/DDSI-RTPS, section 10 and DDS-XTypes, 7.4.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct as Packed
from typing import Any, TypeAlias

from robocache_ros.decode.cdr.types import Sequence, Type, describe
from robocache_ros.decode.limits import MAX_ELEMENTS, MAX_TEXT_BYTES
from robocache_ros.decode.payloads import Buffer, DecodeError

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
