"""The arguments of a launch as a named structure: `ctypes` in Python, a struct of the same fields in a kernel's header.

Setting the fields of a ctypes structure one by one takes four times as long as packing all values at once. A launch
therefore packs its values with a `struct.Struct` that is built from the structure's fields.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Collection, Iterator
from functools import cache
from typing import Any, NamedTuple


class Field(NamedTuple):
    """A number of a structure."""

    path: str  # as C++ writes it: job.pitch, streams[2].limits.max_gap
    name: str  # the last part of the path, without an index
    offset: int  # bytes
    letter: str  # of `struct`


def fields_of(structure: Any, path: str = "", offset: int = 0) -> Iterator[Field]:
    """Every number of a structure, with those of nested structures and arrays, in memory order."""
    for name, kind in structure._fields_:
        yield from _numbers(kind, path + name, name, offset + getattr(structure, name).offset)


def _numbers(kind: Any, path: str, name: str, offset: int) -> Iterator[Field]:
    if issubclass(kind, ctypes.Structure):
        yield from fields_of(kind, f"{path}.", offset)
    elif issubclass(kind, ctypes.Array):
        size = ctypes.sizeof(kind._type_)
        for index in range(kind._length_):
            yield from _numbers(kind._type_, f"{path}[{index}]", name, offset + index * size)
    else:
        yield Field(path, name, offset, kind._type_)


@cache
def packer(structure: type[ctypes.Structure]) -> struct.Struct:
    """The `struct.Struct` that packs all numbers of a structure, in the order of `fields_of`."""
    return _packer(fields_of(structure), ctypes.sizeof(structure))


def _packer(pieces: Iterator[Field], size: int) -> struct.Struct:
    letters, end = "@", 0
    for piece in pieces:
        letters += f"{piece.offset - end}x{piece.letter}"
        end = piece.offset + struct.calcsize(piece.letter)
    return struct.Struct(f"{letters}{size - end}x")


def filled_packer(template: ctypes.Structure, given: Collection[str]) -> tuple[struct.Struct, tuple[bytes, ...]]:
    """The packer of the fields whose names are `given` and of the bytes between them, which are the template's.

    Returns:
        The packer, which takes the given numbers and the bytes between them in memory order; and these bytes.
    """
    memory, size = bytes(template), ctypes.sizeof(template)
    pieces: list[Field] = []
    between: list[bytes] = []
    end = 0
    for field in (*(f for f in fields_of(type(template)) if f.name in given), Field("", "", size, "")):
        if field.offset > end:
            between.append(memory[end : field.offset])
            pieces.append(Field("", "", end, f"{field.offset - end}s"))
        if field.letter:
            pieces.append(field)
            end = field.offset + struct.calcsize(field.letter)
    return _packer(iter(pieces), size), tuple(between)
