"""The columns of exports in any format, as streams and arrays by row."""

from __future__ import annotations

import io
import math
import tokenize
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robocache_ros.alignments import NAMES, in_unit
from robocache_ros.engine.tick_grid import period_ns
from robocache_ros.formats.read import DatasetError, Stream, Values, check_image_bytes, refusing
from robocache_ros.spec.dataset import DatasetOptions
from robocache_ros.spec.keys import keys_of
from robocache_ros.units import NS_PER_S

MAX_BYTES = 1 << 30  # of an array


@dataclass(frozen=True)
class ArrayRows:
    """The arrays of an episode: (X, Y, Z) or (F, X, Y, Z) voxels, or (H, W, C) images."""

    count: int  # number of rows
    read: Callable[[int], NDArray[Any]]  # returns the array of a row
    where: str  # file and stream, for errors
    is_depth: bool = True  # of images: not those of a camera in 8 bits

    def __len__(self) -> int:
        return self.count

    def frames(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        """Return the (n, ...) arrays of rising rows."""
        first = self._array(int(rows[0]))
        check_image_bytes(len(rows), (*first.shape, first.itemsize), self.where)
        found = np.empty((len(rows), *first.shape), first.dtype)
        found[0] = first
        for place, row in enumerate(rows.tolist()[1:], start=1):
            array = self._array(row)
            if array.shape != first.shape or array.dtype != first.dtype:
                raise DatasetError(f"{self.where}: row {row} is {array.dtype} {array.shape}, not {first.shape}")
            found[place] = array
        return found

    def _array(self, row: int) -> NDArray[Any]:
        # Damaged archives and files raise errors of any kind.
        with refusing(f"{self.where}: row {row}", "damaged", "export the dataset again", (Exception,)):
            return self.read(row)


@dataclass(frozen=True)
class FileRows(Sequence[bytes]):
    """The files of the images of an episode, each read when it is asked for."""

    length: int
    read: Callable[[int], bytes]  # returns the file of a row

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, row: Any) -> Any:
        return self.read(row)


def npy_array(data: bytes) -> NDArray[Any]:
    """Return the array of numbers in an .npy file, without a copy.

    Errors:
        ValueError: it is not one, or its header does not match its size, for which numpy.load would take memory.
    """
    file = io.BytesIO(data)
    if np.lib.format.read_magic(file) != (1, 0):
        raise ValueError("not an .npy file of version 1.0")
    try:
        shape, is_fortran, dtype = np.lib.format.read_array_header_1_0(file)
    except (SyntaxError, tokenize.TokenError):  # NumPy parses a header that it cannot evaluate once more
        raise ValueError("the header of an .npy file is not a dictionary") from None
    if is_fortran or dtype.kind not in "biuf" or math.prod(shape) * dtype.itemsize != len(data) - file.tell():
        raise ValueError(f"{dtype} {shape} in {len(data):,} bytes")
    return np.frombuffer(data, dtype, offset=file.tell()).reshape(shape)


def channels_last(array: NDArray[Any], kind: str) -> NDArray[Any]:
    """Return a (C, H, W) image as (H, W, C), and voxels as they are."""
    return np.moveaxis(array, 0, -1) if kind == "image" else array


MAX_STREAMS = 1024


@dataclass(frozen=True)
class ExportedStream:
    """A stream of an exported dataset: `shape` is that of a row, empty for images and voxels."""

    role: str
    align: str
    kind: str
    shape: tuple[int, ...]
    columns: tuple[str, ...] = ()  # names of the columns of a vector

    @property
    def width(self) -> int:
        """Number of columns in the state or the action; 0 if it is not in them."""
        return self.shape[0] if len(self.shape) == 1 else 0


@dataclass(frozen=True)
class ExportColumns:
    """The streams of a dataset, in the order of `valid` and `age_ns`, and the rate of its ticks.

    `spec` is the spec of the export as plain values, with the options of the export as its section `dataset`.
    """

    rate_hz: int
    streams: dict[str, ExportedStream]
    spec: dict[str, Any] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        """The names of all streams, in the order of `valid` and `age_ns`."""
        return list(self.streams)

    def split(self, table: NDArray[Any], role: str, where: str) -> dict[str, NDArray[Any]]:
        """Split the columns of the state or the action by stream."""
        found, column = {}, 0
        for name, stream in self.streams.items():
            if stream.role == role and stream.width:
                found[name] = np.ascontiguousarray(table[:, column : column + stream.width])
                column += stream.width
        if column != table.shape[1]:
            raise DatasetError(f"{where}: {table.shape[1]} columns of role {role}, not {column}; export it again")
        return found

    def episode_streams(
        self, ticks: NDArray[np.int64], marks: Marks, values: Mapping[str, Values], rewards: Any, where: str
    ) -> dict[str, Stream]:
        """Return the streams of an episode with their measured stamps. At the export's rate, its ticks are reproduced.

        Args:
            ticks: (T,) int64.
            marks: of the ticks.
            values: vectors, (T, D) float32, images and voxels, by the stream's name; depth images have `is_depth`.
            rewards: (T,) float32: the stream of role reward, or what the export computed without one; None: not stored.
            where: file and record, for errors.
        """
        if ticks.ndim != 1 or ticks.dtype.kind not in "iu":
            raise DatasetError(f"{where}: its ticks are {ticks.dtype} {ticks.shape}, not (T,) int64; export it again")
        streams = []
        for name, about in self.streams.items():
            if name in values:
                image = "depth/" if getattr(values[name], "is_depth", False) else "vision/"
                folder = {"cloud": "voxels/", "image": image}.get(about.kind, "")
                streams.append(self._stream(name, folder + name, ticks, marks, values[name]))
        if rewards is not None:
            table = np.array(rewards, np.float32).reshape(-1, 1)  # a copy, because torch needs it to be writable
            of_role = [name for name, about in self.streams.items() if about.role == "reward" and about.width]
            if of_role:
                streams.append(self._stream(of_role[0], "rewards", ticks, marks, table))
            else:
                streams.append(Stream("rewards", ticks, table, True, "reward", "hold", *self._limits))
        return {stream.name: stream for stream in streams}

    @property
    def _limits(self) -> tuple[int, int]:
        """Only neighbouring ticks are blended or held: a tick without a value stays one."""
        return period_ns(self.rate_hz), NS_PER_S // self.rate_hz - 1

    def _stream(self, name: str, label: str, ticks: NDArray[np.int64], marks: Marks, values: Values) -> Stream:
        about, index = self.streams[name], self.names.index(name)
        # Each tick of a window was computed from its own samples.
        align = about.align if about.align in NAMES else "hold"
        valid, age_ns = marks.valid[:, index], marks.age_ns[:, index]
        return Stream(label, ticks, values, True, about.role, align, *self._limits, valid, age_ns, about.columns)


@dataclass(frozen=True)
class Marks:
    """How the values of T ticks of N streams were made."""

    valid: NDArray[np.uint8]  # (T, N)
    age_ns: NDArray[np.int64]  # (T, N)


def read_marks(columns: ExportColumns, valid: NDArray[Any], age_ns: NDArray[Any], where: str) -> Marks:
    """Return the marks of an episode."""
    count = len(columns.streams)
    if {valid.dtype.kind, age_ns.dtype.kind} - set("biu"):
        raise DatasetError(f"{where}: valid or age_ns are not whole numbers; export the dataset again")
    if valid.shape != age_ns.shape or valid.ndim != 2 or valid.shape[1] != count:
        raise DatasetError(f"{where}: valid and age_ns are not of {count} streams; export the dataset again")
    return Marks(valid.astype(np.uint8), age_ns.astype(np.int64))


def successes(provenance: Mapping[str, Any], episodes: int, where: str) -> list[bool | None]:
    """Return whether each episode succeeded, as the provenance of a dataset says; None where it is not known."""
    with refusing(where, "not the provenance of this dataset", "export it again"):
        recordings = provenance["recordings"]
        found = [
            recordings[about["recording"]]["success"] if about["success"] is None else about["success"]
            for about in provenance["episodes"]
        ]
        if len(found) != episodes or not all(one is None or isinstance(one, bool) for one in found):
            raise ValueError(f"{len(found)} episodes, not {episodes}")
    return found


def export_columns(provenance: Mapping[str, Any], where: str) -> ExportColumns:
    """Read the layout in the provenance of a dataset."""
    with refusing(where, "not the provenance of an export", "export it again"):
        layout = provenance["layout"]
        # Some formats sort the keys of objects, so the order is that of the columns.
        names = [str(column["stream"]) for column in layout["columns"] if column["quantity"] == "valid"]
        columns: dict[str, list[str]] = {}
        for column in layout["columns"]:
            if column["quantity"] == "value":
                name = str(column["stream"])
                columns.setdefault(name, []).append(str(column["name"]).removeprefix(f"{name}."))
        streams = {
            name: ExportedStream(
                str(about["role"]),
                in_unit(str(about["align"]), str(about.get("unit", ""))),
                str(about["kind"]),
                tuple(int(n) for n in about.get("shape", ())),
                tuple(columns.get(name, ())),
            )
            for name, about in ((name, layout["streams"][name]) for name in names)
        }
        rate_hz = int(layout["rate_hz"])
        if not (0 < rate_hz <= 1000 and len(streams) <= MAX_STREAMS):
            raise ValueError(f"{rate_hz} Hz, {len(streams)} streams")
        stated, known = provenance.get("options", {}), keys_of(DatasetOptions, in_files=True)
        options = {name: value for name, value in stated.items() if name in known and value not in ("", None, [])}
        spec = {**layout.get("spec", {}), **({"dataset": options} if options else {})}
    return ExportColumns(rate_hz, streams, spec)
