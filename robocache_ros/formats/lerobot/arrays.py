"""The folder arrays/ of a LeRobot dataset: voxels and images that are not 8-bit, dense or sparse."""

from __future__ import annotations

import glob
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.extras import need
from robocache_ros.formats.columns import MAX_BYTES, ArrayRows, channels_last
from robocache_ros.formats.dataset import Episode, ExportedDataset
from robocache_ros.formats.lerobot.schema import PROVENANCE
from robocache_ros.formats.parquet import column, read_parquet, row_group, write_table
from robocache_ros.formats.pieces import ArrayInfo, runs
from robocache_ros.formats.read import DatasetError, check_image_bytes, read_object, refusing
from robocache_ros.formats.write import FileTask, media_bytes
from robocache_ros.storage.paths import AnyPath
from robocache_ros.untrusted_files import DatasetFile, file_below, files_below


def to_sparse(grid: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the voxels of a grid, (X, Y, Z) or with features (F, X, Y, Z), that are not empty, in C order of x, y, z.

    Returns:
        (K, 3) uint8 or uint16 indices x, y, z, and (K, F) values, F = 1 without features. A voxel is empty if all
        bits of all its values are zero.
    """
    grids = np.ascontiguousarray(grid if grid.ndim == 4 else grid[None])
    bits = grids.view(f"u{grids.itemsize}")
    x, y, z = np.nonzero(bits.any(axis=0))
    coordinates = np.stack([x, y, z], axis=1).astype("uint8" if max(grid.shape[-3:]) <= 1 << 8 else "uint16")
    return coordinates, np.ascontiguousarray(grids[:, x, y, z].T)


def to_dense(coordinates: NDArray[Any], values: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """Return the grid with these voxels: the inverse of `to_sparse`."""
    grids = np.zeros(shape if len(shape) == 4 else (1, *shape), values.dtype)
    x, y, z = coordinates.T.astype(np.intp)
    grids[:, x, y, z] = values.T
    return grids.reshape(shape)


ARRAYS_PATH = "arrays/{name}/chunk-{{chunk_index:03d}}/file-{{file_index:03d}}.parquet"
ARRAYS_FILE_MB = 100


OPEN_FILES = 32


@dataclass(frozen=True)
class StoredArrays:
    """The arrays of a stream: the files by `name` below `root`."""

    root: AnyPath
    name: str
    info: ArrayInfo
    is_sparse: bool
    kind: str  # image or cloud

    def of_episode(self, episode: int, valid: NDArray[np.uint8], where: str) -> ArrayRows:
        """Return the arrays of an episode; `valid` is 0 in the rows that have none."""
        return ArrayRows(len(valid), partial(self._read, episode, valid), f"{where}: {self.name}")

    def _read(self, episode: int, valid: NDArray[np.uint8], row: int) -> NDArray[Any]:
        for path in _files(self.root, self.name, os.getpid()):
            episodes, starts, stops = _index(path, os.getpid())
            found = np.flatnonzero((episodes == episode) & (starts <= row) & (row < stops))
            if len(found):
                table, place = row_group(path, int(found[0]), ("coords", "values") if self.is_sparse else ("data",))
                return channels_last(self.array(table, place), self.kind)
        if valid[row]:
            folder = printable(self.root / "arrays" / self.name)
            raise DatasetError(f"{folder}: no file has row {row} of episode {episode}; get its files again")
        return channels_last(np.zeros(self.info.shape, self.info.numpy_dtype), self.kind)

    def array(self, table: Any, row: int) -> NDArray[Any]:
        """Return the array in a row of a table of a file."""
        if not self.is_sparse:
            return self.info.array(table["data"][row].as_py())
        shape = self.info.shape
        coords, values = (
            table[name][row].values.flatten().to_numpy().reshape(-1, width)
            for name, width in (("coords", 3), ("values", shape[0] if len(shape) == 4 else 1))
        )
        return to_dense(coords, values, shape)


def stored_arrays(
    folder: AnyPath, stated: Mapping[str, Any], kinds: Mapping[str, str], where: str
) -> dict[str, StoredArrays]:
    """Return the arrays of a dataset by stream, as its provenance describes them."""
    found = {}
    with refusing(where, "arrays are malformed", "export it again"):
        for name, about in stated.items():
            info = ArrayInfo(tuple(int(n) for n in about["shape"]), str(about["dtype"]))
            nbytes = math.prod(info.shape) * info.numpy_dtype.itemsize
            if not 0 < nbytes <= MAX_BYTES or min(info.shape) < 1 or Path(name).name != name:
                raise ValueError(f"{name}: {info.shape} {info.dtype}")
            found[name] = StoredArrays(folder, name, info, about.get("layout") == "sparse", kinds[name])
    return found


@lru_cache(maxsize=OPEN_FILES)
def _files(root: AnyPath, name: str, process: int) -> tuple[DatasetFile, ...]:
    return tuple(files_below(root, f"arrays/{glob.escape(name)}/chunk-*/file-*.parquet"))


@lru_cache(maxsize=OPEN_FILES)
def _index(path: DatasetFile, process: int) -> tuple[NDArray[np.int64], ...]:
    """(K,) the episode of each array of a file, its first row, and the row after its last one."""
    names = ("episode_index", "frame_from", "frame_to")
    table = read_parquet(path, list(names))
    return tuple(table.column(name).to_numpy().astype(np.int64) for name in names)


def read_arrays(dataset: str | Path, stream: str, episode: int = 0) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """Read the arrays of a stream in an episode of a dataset.

    Returns:
        (K, 2) int64 [start, stop) frames for which each array is valid; (K, ...) the arrays, occupancy as uint8.

    Errors:
        RoboCacheError: the dataset has no arrays of this stream, or they are damaged or too large.
    """
    folder = Path(dataset)
    stated, where = read_object(file_below(folder, PROVENANCE)).get("arrays", {}), printable(folder / PROVENANCE)
    if stream not in stated:
        raise RoboCacheError(f"{stream}: {dataset} has no arrays of it; it has those of {', '.join(stated) or 'none'}")
    stored = stored_arrays(folder, {stream: stated[stream]}, {stream: "cloud"}, where)[stream]
    files = files_below(folder, f"arrays/{glob.escape(stream)}/chunk-*/file-*.parquet")
    tables = [read_parquet(file, equal=("episode_index", episode)) for file in files]
    shape, dtype = stored.info.shape, stored.info.numpy_dtype
    check_image_bytes(sum(map(len, tables)), (*shape, dtype.itemsize), f"{where}: {stream}")
    with refusing(f"{where}: {stream}", "damaged", "export the dataset again"):
        frames = [np.stack([table["frame_from"], table["frame_to"]], axis=1) for table in tables]
        arrays = [stored.array(table, row) for table in tables for row in range(len(table))]
        found = np.stack(arrays) if arrays else np.zeros((0, *shape), dtype)
        return np.concatenate([np.zeros((0, 2), np.int64), *frames]), found


def array_tasks(dataset: ExportedDataset, chunk_files: int, depth_videos: Sequence[str] = ()) -> list[FileTask]:
    """Return the tasks that write the voxels and the images that are not 8-bit (depth) of a dataset, one per stream.

    The depth images of `depth_videos`, which the dataset stores as videos, are left out.

    Arrays are not in the data table, because LeRobot's statistics and checks would treat each number as a dimension.
    Columns: episode_index, frame_from, frame_to (exclusive), stamp_ns, data (the bytes of the array in C order,
    little endian; occupancy as bits, least significant bit first). With the option `voxels` sparse, grids have instead
    of data: coords (the indices x, y, z of each voxel that is not empty) and values (its features).
    """
    return [
        FileTask(
            f"arrays/{name}",
            dataset.frames * media_bytes(dataset, name),
            partial(_write_stream, name=name, chunk_files=chunk_files),
        )
        for name in dataset.arrays
        if name not in depth_videos
    ]


def described_arrays(dataset: ExportedDataset, depth_videos: Sequence[str] = ()) -> dict[str, Any]:
    """Return what describes the arrays that `array_tasks` write."""
    return {
        name: {
            "path": ARRAYS_PATH.format(name=name),
            "shape": list(info.shape),
            "dtype": info.dtype,
            **({"layout": "sparse"} if _is_sparse(dataset, name) else {}),
        }
        for name, info in dataset.arrays.items()
        if name not in depth_videos
    }


def _write_stream(dataset: ExportedDataset, folder: Path, name: str, chunk_files: int) -> None:
    episodes = (_rows(episode, name, sparse=_is_sparse(dataset, name)) for episode in dataset.episodes)
    write_table(folder, ARRAYS_PATH.format(name=name), episodes, ARRAYS_FILE_MB, chunk_files)


def _is_sparse(dataset: ExportedDataset, stream: str) -> bool:
    is_grid = dataset.spec.stream(stream).voxels is not None and len(dataset.arrays[stream].shape) > 2
    return dataset.options.voxels == "sparse" and is_grid


def _rows(episode: Episode, stream: str, *, sparse: bool) -> Iterator[Any]:
    """Yield a row for each distinct array of an episode."""
    pyarrow = need("pyarrow", "export")
    arrays = episode.arrays(stream)
    stamps = episode.stamps_ns[:, episode.layout.names.index(stream)]
    for start, stop, sample in runs(arrays.samples):
        if sample >= 0:
            columns = {
                "episode_index": column(np.array([episode.index])),
                "frame_from": column(np.array([start])),
                "frame_to": column(np.array([stop])),
                "stamp_ns": column(stamps[start : start + 1]),
            }
            if sparse:
                coords, values = to_sparse(arrays.array(start))
                columns |= {"coords": _list(coords), "values": _list(values)}
            else:
                columns["data"] = pyarrow.array([arrays[start]], pyarrow.binary())
            yield pyarrow.table(columns)


def _list(rows: NDArray[Any]) -> Any:
    """Return one value of a column: a list of (K, n) rows."""
    pyarrow = need("pyarrow", "export")
    flat = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(rows.reshape(-1)), rows.shape[1])
    return pyarrow.ListArray.from_arrays(np.array([0, len(rows)], np.int32), flat)
