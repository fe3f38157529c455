"""The columns of a fused row: values; `valid` and `age_ms` per stream; the ages of the samples of windows."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from robocache_ros.spec.fusion import FusionSpec
from robocache_ros.spec.stream import StreamSpec


@dataclass(frozen=True)
class Column:
    """One column of a fused row."""

    name: str  # `joint_position.panda_joint1`, `valid:joint_position`, `age_ms:joint_position`
    stream: str
    quantity: str  # value | valid | age | sample_age
    unit: str
    role: str


@dataclass(frozen=True)
class Layout:
    """The columns of a row, in order: values by stream, valid, then age of every stream, ages of windows' samples."""

    spec: FusionSpec

    @cached_property
    def slots(self) -> dict[str, slice]:
        """The columns of each vector stream."""
        slots, start = {}, 0
        for stream in self.spec.vectors:
            slots[stream.name] = slice(start, start + stream.width)
            start += stream.width
        return slots

    @cached_property
    def sample_ages(self) -> dict[str, slice]:
        """The columns of each window that is not reduced, among the W columns of samples' ages that end a row."""
        slots, start = {}, 0
        for stream in self.spec.vectors:
            if stream.rows:
                slots[stream.name] = slice(start, start + stream.rows)
                start += stream.rows
        return slots

    @cached_property
    def ages(self) -> int:
        """W: columns of samples' ages."""
        return sum(stream.rows for stream in self.spec.vectors)

    @cached_property
    def widths(self) -> tuple[int, ...]:
        """Columns of each vector stream."""
        return tuple([stream.width for stream in self.spec.vectors])

    @cached_property
    def width(self) -> int:
        """D: columns of values."""
        return sum(self.widths)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Every stream's name, in the order of `valid` and age."""
        return tuple([stream.name for stream in self.spec.streams])

    @cached_property
    def row_width(self) -> int:
        """D + 2 N + W: columns of a row with `valid` and `age_ms` of N streams, and the ages of windows' samples."""
        return self.width + 2 * len(self.spec.streams) + self.ages

    @cached_property
    def columns(self) -> tuple[Column, ...]:
        """Every column of a row, in order."""
        streams = self.spec.streams
        values = [column for s in self.spec.vectors for column in _values(s)]
        valid = [Column(f"valid:{s.name}", s.name, "valid", "0 none, 1 aligned, 2 held", s.role) for s in streams]
        age = [Column(f"age_ms:{s.name}", s.name, "age", "ms", s.role) for s in streams]
        rows = [(s, row) for s in self.spec.vectors for row in range(s.rows)]
        ages = [Column(f"age_ms:{s.name}.{row}", s.name, "sample_age", "ms, -1 none", s.role) for s, row in rows]
        return (*values, *valid, *age, *ages)

    def to_dict(self) -> dict[str, Any]:
        """The layout as plain values."""
        shown = ("topic", "type", "kind", "stamp", "align", "role", "unit")
        streams: dict[str, dict[str, Any]] = {s.name: {k: getattr(s, k) for k in shown} for s in self.spec.streams}
        for s in self.spec.vectors:
            slot = self.slots[s.name]
            streams[s.name] |= {"columns": [slot.start, slot.stop], "shape": list(s.shape)}
            if s.rows:
                ages, first = self.sample_ages[s.name], self.row_width - self.ages
                streams[s.name]["sample_age_columns"] = [first + ages.start, first + ages.stop]
        return {
            "robocache": 1,
            "rate_hz": self.spec.rate_hz,
            "horizon": self.spec.horizon,
            "delay_ms": self.spec.delay_ms,
            "row_width": self.row_width,
            "columns": [asdict(column) for column in self.columns],
            "streams": streams,
            "spec": self.spec.to_dict(),
        }

    def to_json(self) -> str:
        """The layout as JSON: what `~/layout` carries; its `spec` reads back with `load_spec`."""
        return json.dumps(self.to_dict(), separators=(",", ":"))


def _values(stream: StreamSpec) -> list[Column]:
    rows = [f"{stream.name}.{row}" for row in range(stream.rows)] or [stream.name]
    names = (f"{row}.{component}" for row in rows for component in stream.components)
    return [Column(name, stream.name, "value", stream.unit, stream.role) for name in names]
