"""The columns of a fused row: a column per component, then `valid` and `age_ms` per stream."""

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
    quantity: str  # value | valid | age
    unit: str
    role: str


@dataclass(frozen=True)
class Layout:
    """The columns of a fused row, in order: values by stream, then valid, then age of every stream."""

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
        """D + 2 N: columns of a row with `valid` and `age_ms` of the N streams."""
        return self.width + 2 * len(self.spec.streams)

    @cached_property
    def columns(self) -> tuple[Column, ...]:
        """Every column of a row, in order."""
        streams = self.spec.streams
        values = [_value(s, component) for s in self.spec.vectors for component in s.components]
        valid = [Column(f"valid:{s.name}", s.name, "valid", "0 none, 1 aligned, 2 held", s.role) for s in streams]
        age = [Column(f"age_ms:{s.name}", s.name, "age", "ms", s.role) for s in streams]
        return (*values, *valid, *age)

    def to_dict(self) -> dict[str, Any]:
        """The layout as plain values."""
        shown = ("topic", "type", "kind", "stamp", "align", "role", "unit")
        streams = {s.name: {key: getattr(s, key) for key in shown} for s in self.spec.streams}
        for name, slot in self.slots.items():
            streams[name]["columns"] = [slot.start, slot.stop]
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


def _value(stream: StreamSpec, component: str) -> Column:
    return Column(f"{stream.name}.{component}", stream.name, "value", stream.unit, stream.role)
