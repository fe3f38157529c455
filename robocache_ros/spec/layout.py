"""The columns of a fused row: values; `valid` and `age_ms` per stream; sample ages of windows."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
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
class PlotColumn:
    """A column of a row as it is plotted.

    Attributes:
        name: such as `joint_position.panda_joint1`, `valid:joint_position` or `age_ms:joint_position`.
        stream: of the column.
        column: its place in the row.
        valid: the place of the stream's `valid`, without which the value is NaN; None: it always has a value.
    """

    name: str
    stream: str
    column: int
    valid: int | None


@dataclass(frozen=True)
class Layout:
    """The columns of a row, in order: values by stream, `valid` by stream, age by stream, sample ages of windows."""

    spec: FusionSpec

    @cached_property
    def slots(self) -> dict[str, slice]:
        """The value columns of each vector stream."""
        slots, start = {}, 0
        for stream in self.spec.vectors:
            slots[stream.name] = slice(start, start + stream.width)
            start += stream.width
        return slots

    @cached_property
    def sample_ages(self) -> dict[str, slice]:
        """The columns of each window that is not reduced, within the W sample age columns at the end of a row."""
        slots, start = {}, 0
        for stream in self.spec.vectors:
            if stream.rows:
                slots[stream.name] = slice(start, start + stream.rows)
                start += stream.rows
        return slots

    @cached_property
    def ages(self) -> int:
        """W: number of sample age columns."""
        return sum(stream.rows for stream in self.spec.vectors)

    @cached_property
    def widths(self) -> tuple[int, ...]:
        """Number of value columns of each vector stream."""
        return tuple([stream.width for stream in self.spec.vectors])

    @cached_property
    def width(self) -> int:
        """D: number of value columns."""
        return sum(self.widths)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of all streams, in the order of `valid` and age."""
        return tuple([stream.name for stream in self.spec.streams])

    @cached_property
    def row_width(self) -> int:
        """D + 2 N + W: number of columns: values, `valid` and `age_ms` of N streams, sample ages of windows."""
        return self.width + 2 * len(self.spec.streams) + self.ages

    @cached_property
    def columns(self) -> tuple[Column, ...]:
        """All columns of a row, in order."""
        streams = self.spec.streams
        values = [column for s in self.spec.vectors for column in _values(s)]
        valid = [Column(f"valid:{s.name}", s.name, "valid", "0 none, 1 aligned, 2 held", s.role) for s in streams]
        age = [Column(f"age_ms:{s.name}", s.name, "age", "ms", s.role) for s in streams]
        rows = [(s, row) for s in self.spec.vectors for row in range(s.rows)]
        ages = [Column(f"age_ms:{s.name}.{row}", s.name, "sample_age", "ms, -1 none", s.role) for s, row in rows]
        return (*values, *valid, *age, *ages)

    @cached_property
    def plotted(self) -> tuple[PlotColumn, ...]:
        """The columns that the node publishes on `~/plot`: values (of a window the newest sample), `valid`, ages."""
        valid = {name: self.width + index for index, name in enumerate(self.names)}
        values = [
            PlotColumn(f"{s.name}.{component}", s.name, self.slots[s.name].stop - s.dim + index, valid[s.name])
            for s in self.spec.vectors
            for index, component in enumerate(s.components)
        ]
        states = [PlotColumn(f"valid:{name}", name, column, None) for name, column in valid.items()]
        count = len(valid)
        ages = [PlotColumn(f"age_ms:{name}", name, column + count, column) for name, column in valid.items()]
        return (*values, *states, *ages)

    def vectors_of(self, role: str) -> tuple[StreamSpec, ...]:
        """The vector streams of a role that are not windows, in column order."""
        return tuple(s for s in self.spec.vectors if s.role == role and not s.rows)

    def to_dict(self) -> dict[str, Any]:
        """Return the layout as plain values."""
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
            "spec": replace(self.spec, dataset=None, run=None).to_dict(),
        }

    def to_json(self, *, use_sim_time: bool | None = None) -> str:
        """Return the layout as JSON, as published on `~/layout`. `load_spec` reads its `spec`.

        Args:
            use_sim_time: whether the ticks of a node are times of /clock.
        """
        clock = {} if use_sim_time is None else {"use_sim_time": use_sim_time}
        return json.dumps(self.to_dict() | clock, separators=(",", ":"))


def _values(stream: StreamSpec) -> list[Column]:
    rows = [f"{stream.name}.{row}" for row in range(stream.rows)] or [stream.name]
    names = (f"{row}.{component}" for row in rows for component in stream.components)
    return [Column(name, stream.name, "value", stream.unit, stream.role) for name in names]
