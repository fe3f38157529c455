"""Voxels and depth images that an export stores beside the tables of LeRobot: in parquet, or as depth videos."""

from __future__ import annotations

import glob
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from robocache_ros.datasets.episode_source import DatasetError
from robocache_ros.datasets.sources.exports.array_rows import MAX_BYTES, ArrayRows, array_of, channels_last
from robocache_ros.datasets.sources.lerobot_layout import read_parquet
from robocache_ros.datasets.video.video_frames import VideoFrames
from robocache_ros.errors import printable
from robocache_ros.export.media.depth_codes import CODES, MAX_M, MIN_M, SHIFT_M, UNITS, depths_of_codes
from robocache_ros.export.media.sparse_voxels import to_dense
from robocache_ros.extras import need
from robocache_ros.untrusted_files import DatasetFile, files_below

OPEN_FILES, OPEN_GROUPS = 32, 2


@dataclass(frozen=True)
class StoredArrays:
    """The arrays of a stream: the files by `name` below `root`, and the shape and the dtype of an array."""

    root: Path
    name: str
    shape: tuple[int, ...]
    dtype: str
    is_sparse: bool
    kind: str  # image or cloud

    def of_episode(self, episode: int, valid: NDArray[np.uint8], where: str) -> ArrayRows:
        """Return the arrays of an episode; `valid` is 0 in the rows that have none."""
        return ArrayRows(len(valid), partial(self._read, episode, valid), f"{where}: {self.name}")

    def _read(self, episode: int, valid: NDArray[np.uint8], row: int) -> NDArray[Any]:
        for path in _files(self.root, self.name, os.getpid()):
            index = _index(path, os.getpid())
            of_episode = index.episodes == episode
            found = np.flatnonzero(of_episode & (index.starts <= row) & (row < index.stops))
            if len(found):
                group = int(np.searchsorted(index.groups, found[0], "right")) - 1
                table = _group(path, group, self.is_sparse, os.getpid())
                return channels_last(self._array(table, int(found[0] - index.groups[group])), self.kind)
        if valid[row]:
            folder = printable(self.root / "arrays" / self.name)
            raise DatasetError(f"{folder}: no file has row {row} of episode {episode}; get its files again")
        empty = np.zeros(self.shape, "u1" if self.dtype == "bits" else self.dtype)
        return channels_last(empty, self.kind)

    def _array(self, table: Any, row: int) -> NDArray[Any]:
        if not self.is_sparse:
            return array_of(self.shape, self.dtype, table["data"][row].as_py())
        width = self.shape[0] if len(self.shape) == 4 else 1
        coords, values = (
            table[name][row].values.flatten().to_numpy().reshape(-1, columns)
            for name, columns in (("coords", 3), ("values", width))
        )
        return to_dense(coords, values, self.shape)


def stored_arrays(
    folder: Path, told: Mapping[str, Any], kinds: Mapping[str, str], where: str
) -> dict[str, StoredArrays]:
    """Return the arrays of a dataset by stream, as its provenance describes them.

    Errors:
        DatasetError: the provenance is malformed.
    """
    found = {}
    try:
        for name, about in told.items():
            shape, dtype = tuple(int(n) for n in about["shape"]), str(about["dtype"])
            stored = np.dtype("u1" if dtype == "bits" else dtype)
            if not 0 < math.prod(shape) * stored.itemsize <= MAX_BYTES or min(shape) < 1 or Path(name).name != name:
                raise ValueError(f"{name}: {shape} {dtype}")
            is_sparse = about.get("layout") == "sparse"
            found[name] = StoredArrays(folder, name, shape, dtype, is_sparse, kinds[name])
    except (ArithmeticError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise DatasetError(f"{where}: arrays are malformed ({printable(error, 60)}); export it again") from None
    return found


@dataclass(frozen=True)
class DepthFrames(VideoFrames):
    """The frames of an episode in a depth video: (H, W, 1) float32 in `unit`, 0 where there is no depth."""

    unit: str = "m"

    def _empty(self, count: int, size: tuple[int, int]) -> NDArray[Any]:
        return np.empty((count, *size, 1), np.float32)

    def _pixels(self, frame: Any) -> NDArray[Any]:
        if frame.format.name != "gray12le":
            raise ValueError(f"frames of {frame.format.name}, not gray12le")
        plane = frame.planes[0]  # PyAV 12 makes no array of this format
        codes = np.frombuffer(plane, "<u2").reshape(frame.height, plane.line_size // 2)[:, : frame.width, None]
        depths: NDArray[np.float32] = _depths(self.unit)[np.minimum(codes, CODES - 1)]
        return depths


def depth_unit(info: Mapping[str, Any]) -> str | None:
    """Return the unit of a depth video, given what info.json states of it; None if its codes are not those known."""
    known = {"video.depth_min": MIN_M, "video.depth_max": MAX_M, "video.shift": SHIFT_M, "video.use_log": True}
    unit = info.get("depth_unit")
    return unit if unit in UNITS and all(info.get(name) == value for name, value in known.items()) else None


@lru_cache(maxsize=len(UNITS))
def _depths(unit: str) -> NDArray[np.float32]:
    """(4096,) depths of the codes; the first code is that of missing depths too."""
    depths = depths_of_codes(unit).astype(np.float32)
    depths[0] = 0
    return depths


class _Index(NamedTuple):
    """The rows of a file of arrays, and the first row of each of its row groups."""

    episodes: NDArray[np.int64]
    starts: NDArray[np.int64]
    stops: NDArray[np.int64]
    groups: NDArray[np.int64]


@lru_cache(maxsize=OPEN_FILES)
def _files(root: Path, name: str, process: int) -> tuple[DatasetFile, ...]:
    return tuple(files_below(root, f"arrays/{glob.escape(name)}/chunk-*/file-*.parquet"))


@lru_cache(maxsize=OPEN_FILES)
def _index(path: DatasetFile, process: int) -> _Index:
    table = read_parquet(path, ["episode_index", "frame_from", "frame_to"])
    columns = (table.column(name).to_numpy() for name in ("episode_index", "frame_from", "frame_to"))
    episodes, starts, stops = (column.astype(np.int64) for column in columns)
    told = need("pyarrow.parquet", "datasets").read_metadata(path)
    counts = [told.row_group(group).num_rows for group in range(told.num_row_groups)]
    return _Index(episodes, starts, stops, np.cumsum([0, *counts[:-1]]))


@lru_cache(maxsize=OPEN_GROUPS)
def _group(path: DatasetFile, group: int, is_sparse: bool, process: int) -> Any:
    starts = _index(path, process).groups
    stop = int(starts[group + 1]) if group + 1 < len(starts) else len(_index(path, process).episodes)
    return read_parquet(path, ["coords", "values"] if is_sparse else ["data"], rows=(int(starts[group]), stop))
