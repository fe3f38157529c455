"""Message types as data: primitives, strings, arrays, sequences and structs, and paths into them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.spec.problems import suggestion


@dataclass(frozen=True)
class Primitive:
    """A number on the wire: `kind` is NumPy's letter (i, u, f), or b for a boolean of one byte."""

    name: str
    kind: str
    size: int

    def dtype(self, order: str) -> np.dtype[np.generic]:
        """Its NumPy dtype for byte order `<` or `>`; a boolean is read as a byte."""
        return np.dtype(f"{order}{'u' if self.kind == 'b' else self.kind}{self.size}")

    @property
    def code(self) -> str:
        """Its format character in `struct`."""
        letter = {1: "b", 2: "h", 4: "i", 8: "q"}[self.size]
        return {"f": "f" if self.size == 4 else "d", "i": letter}.get(self.kind, letter.upper())


@dataclass(frozen=True)
class Text:
    """A string of at most `bound` bytes."""

    bound: int | None = None


@dataclass(frozen=True)
class Unsupported:
    """A type that can be declared but not read, such as wstring."""

    name: str


@dataclass(frozen=True)
class Array:
    """`length` elements, without a length on the wire."""

    element: Type
    length: int


@dataclass(frozen=True)
class Sequence:
    """Up to `bound` elements after a uint32 length."""

    element: Type
    bound: int | None = None


@dataclass(frozen=True)
class Struct:
    """A message type: its fields in wire order."""

    name: str
    fields: tuple[tuple[str, Type], ...]


Type: TypeAlias = "Primitive | Text | Unsupported | Array | Sequence | Struct"
Path: TypeAlias = "tuple[str | int, ...]"
Run: TypeAlias = "tuple[Primitive, int]"  # a primitive, and how often it is repeated

_UNROLLED = 64  # longer arrays of mixed structs are walked, not laid out
_MOST_RUNS = 4096  # the limit for nested arrays of them


def runs(t: Type) -> list[Run] | None:
    """The primitives of a type of fixed layout, with equal neighbours merged; None if the layout varies."""
    if isinstance(t, Primitive):
        return [(t, 1)]
    if isinstance(t, Array):
        inner = runs(t.element)
        if inner is None or (len(inner) > 1 and (t.length > _UNROLLED or t.length * len(inner) > _MOST_RUNS)):
            return None
        return [(inner[0][0], inner[0][1] * t.length)] if len(inner) == 1 else merged(inner * t.length)
    if isinstance(t, Struct):
        every: list[Run] = []
        for _, field in t.fields:
            inner = runs(field)
            if inner is None:
                return None
            every += inner
        return merged(every)
    return None


def primitive_of(t: Type) -> Primitive:
    """The primitive that a type of fixed layout is, or that all its elements are."""
    fixed = runs(t)
    if fixed is None or len(fixed) != 1:
        raise RoboCacheError(f"field: {describe(t)} has no numbers of a single type; name a field in it")
    return fixed[0][0]


def merged(parts: list[Run]) -> list[Run]:
    """The same primitives, with equal neighbours merged."""
    result: list[Run] = []
    for primitive, count in parts:
        if result and result[-1][0] == primitive:
            result[-1] = (primitive, result[-1][1] + count)
        else:
            result.append((primitive, count))
    return result


def parse_path(path: str) -> Path:
    """`points[0].positions` -> `("points", 0, "positions")`."""
    steps: list[str | int] = []
    for part in path.split("."):
        match = re.fullmatch(r"([A-Za-z_]\w*)((?:\[\d+\])*)", part)
        if match is None:
            raise RoboCacheError(
                f"field: {printable(path)!r} is not a path; write it as pose.orientation or points[0].positions"
            )
        steps += [match[1], *(int(index) for index in re.findall(r"\d+", match[2]))]
    return tuple(steps)


def resolve(t: Type, path: Path) -> Type:
    """The type at a path; the `RoboCacheError` lists the available fields."""
    for step in path:
        if isinstance(step, int):
            if not isinstance(t, (Array, Sequence)):
                raise RoboCacheError(f"field: [{step}] of {describe(t)}, which is not an array; leave out the index")
            if isinstance(t, Array) and step >= t.length:
                raise RoboCacheError(f"field: [{step}] of an array of {t.length}; the last is [{t.length - 1}]")
            t = t.element
            continue
        fields = dict(t.fields) if isinstance(t, Struct) else {}
        if step not in fields:
            choices = f"the fields are {printable(', '.join(fields))}" if fields else "it has no fields"
            choices = f"{suggestion(step, fields)} {choices}".strip()
            raise RoboCacheError(f"field: {describe(t)} has no field {printable(step, 30)!r}; {choices}")
        t = fields[step]
    return t


def describe(t: Type) -> str:
    """A type as written in a .msg file, in at most 80 characters."""
    if isinstance(t, Array):
        return f"{describe(t.element)}[{t.length}]"
    if isinstance(t, Sequence):
        return f"{describe(t.element)}[{'' if t.bound is None else f'<={t.bound}'}]"
    return "string" if isinstance(t, Text) else printable(t.name)
