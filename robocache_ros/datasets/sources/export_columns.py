"""The streams of a dataset that this project exported: their names, roles, alignments and measured stamps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robocache_ros.alignments import NAMES
from robocache_ros.datasets.episode_source import DatasetError, Stream, Values
from robocache_ros.engine.tick_grid import period_ns
from robocache_ros.errors import printable
from robocache_ros.units import NS_PER_S

MAX_STREAMS = 1024


@dataclass(frozen=True)
class ExportedStream:
    """A stream of an exported dataset: `shape` is that of a row, empty for images and voxels."""

    role: str
    align: str
    kind: str
    shape: tuple[int, ...]

    @property
    def width(self) -> int:
        """Number of columns in the state or the action; 0 if it is not in them."""
        return self.shape[0] if len(self.shape) == 1 else 0


@dataclass(frozen=True)
class ExportColumns:
    """The streams of a dataset, in the order of `valid` and `age_ns`, and the rate of its ticks."""

    rate_hz: int
    streams: dict[str, ExportedStream]

    @property
    def names(self) -> list[str]:
        """The names of all streams, in the order of `valid` and `age_ns`."""
        return list(self.streams)

    def split(self, table: NDArray[Any], role: str, where: str) -> dict[str, NDArray[Any]]:
        """Split the columns of the state or the action by stream.

        Errors:
            DatasetError: the table has another number of columns.
        """
        found, column = {}, 0
        for name, stream in self.streams.items():
            if stream.role == role and stream.width:
                found[name] = np.ascontiguousarray(table[:, column : column + stream.width])
                column += stream.width
        if column != table.shape[1]:
            raise DatasetError(f"{where}: {table.shape[1]} columns of role {role}, not {column}; export it again")
        return found

    def stream(self, name: str, ticks: NDArray[np.int64], marks: Marks, values: Values) -> Stream:
        """Return a stream with its measured stamps. At the rate of the export, its ticks are reproduced exactly."""
        about, index = self.streams[name], self.names.index(name)
        align = (
            about.align if about.align in NAMES else "hold"
        )  # each tick of a window was computed from its own samples
        label = f"vision/{name}" if about.kind == "image" else name
        # Only neighbouring ticks are blended or held: a tick without a value stays one.
        limits = (period_ns(self.rate_hz), NS_PER_S // self.rate_hz - 1)
        valid, age_ns = marks.valid[:, index], marks.age_ns[:, index]
        return Stream(label, ticks, values, True, about.role, align, *limits, valid, age_ns)


@dataclass(frozen=True)
class Marks:
    """How the values of T ticks of N streams were made."""

    valid: NDArray[np.uint8]  # (T, N)
    age_ns: NDArray[np.int64]  # (T, N)


def read_marks(columns: ExportColumns, valid: NDArray[Any], age_ns: NDArray[Any], where: str) -> Marks:
    """Return the marks of an episode.

    Errors:
        DatasetError: their shape is not (T, N).
    """
    count = len(columns.streams)
    if valid.shape != age_ns.shape or valid.ndim != 2 or valid.shape[1] != count:
        raise DatasetError(f"{where}: valid and age_ns are not of {count} streams; export the dataset again")
    return Marks(valid.astype(np.uint8), age_ns.astype(np.int64))


def export_columns(provenance: Mapping[str, Any], where: str) -> ExportColumns:
    """Read the layout in the provenance of a dataset.

    Errors:
        DatasetError: the provenance has another structure.
    """
    try:
        layout = provenance["layout"]
        streams = {
            str(name): ExportedStream(
                str(about["role"]),
                str(about["align"]),
                str(about["kind"]),
                tuple(int(n) for n in about.get("shape", ())),
            )
            for name, about in layout["streams"].items()
        }
        rate_hz = int(layout["rate_hz"])
        if not (0 < rate_hz <= 1000 and len(streams) <= MAX_STREAMS):
            raise ValueError(f"{rate_hz} Hz, {len(streams)} streams")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DatasetError(
            f"{where}: not the provenance of an export ({printable(error, 60)}); export it again"
        ) from None
    return ExportColumns(rate_hz, streams)
