"""The numeric features of a dataset, computed from the columns of its pieces. Names follow LeRobot."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robocache_ros.export.dataset.row_columns import Rows
from robocache_ros.spec import StreamSpec
from robocache_ros.spec.layout import Layout

STATE, ACTION = "observation.state", "action"
# A policy may read the values. The others are not below `observation.`, so that a policy does not use them as input.
WINDOW, MASK, AGES = "observation.window.{}", "robocache.mask.{}", "robocache.sample_age_ms.{}"
TICK, STAMP, VALID, AGE = "robocache.tick_ns", "robocache.stamp_ns", "robocache.valid", "robocache.age_ns"


@dataclass(frozen=True)
class Feature:
    """A numeric feature: K numbers per row in a shape."""

    name: str
    dtype: str  # float32 or int64
    shape: tuple[int, ...]
    names: tuple[str, ...]  # a label for each number or, for windows, for each value of a sample; empty: no labels
    columns: tuple[int, ...]  # of the column `source`
    source: str  # a column of the piece
    present: Callable[[Rows, int], NDArray[np.bool_]] | None = None  # of number k: (T,) whether it is a value

    def values(self, rows: Rows) -> NDArray[Any]:
        """Return the (T, *shape) values; missing ones are zero."""
        table = rows[self.source].reshape(len(rows[self.source]), -1)
        first, last = self.columns[0], self.columns[-1]
        adjacent = last - first == len(self.columns) - 1
        chosen = table[:, first : last + 1] if adjacent else table[:, self.columns]
        return self._converted(chosen).reshape(len(table), *self.shape)

    def column(self, rows: Rows, k: int) -> NDArray[Any]:
        """Return the (T,) values of number k for statistics, with NaN for missing ones."""
        table = rows[self.source].reshape(len(rows[self.source]), -1)
        values = self._converted(table[:, self.columns[k]])
        return values if self.present is None else np.where(self.present(rows, k), values, np.float32(np.nan))

    def _converted(self, values: NDArray[Any]) -> NDArray[Any]:
        if self.name.startswith(MASK.format("")):  # the age of a sample is negative where there is none
            return (values >= 0).astype(np.int64)
        return values.astype(self.dtype, copy=False)


def features_of(layout: Layout) -> dict[str, Feature]:
    """Return all numeric features by name."""
    features = []
    for name, role in ((STATE, "observation"), (ACTION, "action")):
        if streams := layout.vectors_of(role):
            features.append(_vector(name, layout, streams))
    for stream in layout.spec.vectors:
        if stream.rows:
            features += _window(layout, stream)
    names = layout.names
    features.append(Feature(TICK, "int64", (1,), (), (0,), "ticks_ns"))
    for name, source in ((STAMP, "stamps_ns"), (VALID, "valid"), (AGE, "age_ns")):
        features.append(Feature(name, "int64", (len(names),), names, tuple(range(len(names))), source))
    return {feature.name: feature for feature in features}


def _vector(name: str, layout: Layout, streams: Sequence[StreamSpec]) -> Feature:
    labels = tuple(f"{s.name}.{component}" for s in streams for component in s.components)
    columns = tuple(k for s in streams for k in range(layout.slots[s.name].start, layout.slots[s.name].stop))
    row = [layout.names.index(s.name) for s in streams for _ in range(s.width)]
    return Feature(
        name, "float32", (len(columns),), labels, columns, "fused", lambda rows, k: rows["valid"][:, row[k]] > 0
    )


def _window(layout: Layout, stream: StreamSpec) -> list[Feature]:
    values, ages = layout.slots[stream.name], layout.sample_ages[stream.name]
    columns, rows = tuple(range(values.start, values.stop)), tuple(range(ages.start, ages.stop))

    def present(table: Rows, k: int) -> NDArray[np.bool_]:
        found: NDArray[np.bool_] = table["sample_age_ms"][:, ages.start + k // stream.dim] >= 0
        return found

    name, n = stream.name, stream.rows
    return [
        Feature(WINDOW.format(name), "float32", stream.shape, stream.components, columns, "fused", present),
        Feature(MASK.format(name), "int64", (n,), (), rows, "sample_age_ms"),
        Feature(AGES.format(name), "float32", (n,), (), rows, "sample_age_ms"),
    ]
