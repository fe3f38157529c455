"""Datasets in the layout of Diffusion Policy's ReplayBuffer (Zarr) that this project exported."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robocache_ros.errors import printable
from robocache_ros.formats.columns import ArrayRows, export_columns, read_marks
from robocache_ros.formats.diffusion_policy.schema import ACTION, CODECS, FOLDER, REWARD
from robocache_ros.formats.diffusion_policy.zarr import ZarrRows, zarr_array
from robocache_ros.formats.read import (
    MAX_EPISODES,
    MAX_STEPS,
    MAX_VECTOR_BYTES,
    DatasetError,
    SourceEpisode,
    numbers,
    read_object,
)
from robocache_ros.formats.schema import AGE, TICK, VALID
from robocache_ros.storage.paths import AnyPath, as_path
from robocache_ros.untrusted_files import file_below, folder_below, path_below

MARKS = TICK, VALID, AGE


class ReplayBufferEpisodes:
    """The episodes of a dataset in the format diffusion_policy.

    Args:
        path: the folder of the export, or replay_buffer.zarr itself.

    Errors:
        DatasetError: a file is missing or damaged, or the folder is not an export of this project.
    """

    def __init__(self, path: str | AnyPath) -> None:
        folder = as_path(path)
        self.folder = folder_below(folder, FOLDER) if (folder / FOLDER).is_dir() else folder
        self.name = self.folder.stem
        where = printable(self.folder / ".zattrs")
        self.export = export_columns(read_object(file_below(self.folder, ".zattrs")).get("robocache", {}), where)
        meta = self.folder / "meta"
        tasks = read_object(file_below(self.folder, "meta/.zattrs")).get("tasks")
        ends, task_index, success = (
            _all(self.folder, f"meta/{name}") for name in ("episode_ends", "task_index", "success")
        )
        if not (
            isinstance(tasks, list)
            and len(ends) == len(task_index) == len(success) <= MAX_EPISODES
            and (np.diff(ends, prepend=0) > 0).all()
            and all(0 <= index < len(tasks) for index in task_index.tolist())
        ):
            raise DatasetError(f"{printable(meta)}: its episodes are malformed; export the dataset again")
        self._ends, self._tasks = ends.tolist(), [str(tasks[index]) for index in task_index.tolist()]
        self._success = [None if value < 0 else value > 0 for value in success.tolist()]
        self._arrays: dict[str, ZarrRows] = {}
        for name in (*MARKS, *self.export.names, ACTION, REWARD):
            if path_below(self.folder, f"data/{name}/.zarray").is_file():
                self._arrays[name] = _opened(self.folder, f"data/{name}")
        total = self._ends[-1] if self._ends else 0
        for name in {*MARKS, *self._arrays}:
            if name not in self._arrays or self._arrays[name].count != total:
                raise DatasetError(f"{where}: data/{printable(name, 40)} does not have {total:,} rows; export it again")
            if name in MARKS and self._arrays[name].dtype.kind not in "iu":
                raise DatasetError(f"{where}: data/{name} is {self._arrays[name].dtype}, not integers; export it again")

    @property
    def files(self) -> tuple[AnyPath, ...]:
        """The files by which a change of the dataset is noticed."""
        return (self.folder / ".zattrs", self.folder / "meta" / "episode_ends" / "0")

    def __len__(self) -> int:
        return len(self._ends)

    def read(self, index: int) -> SourceEpisode:
        """Return an episode. Images and arrays are read when they are asked for."""
        start, stop, where = self._place(index)
        ticks, valid, age_ns = (self._rows(name, start, stop, where) for name in MARKS)
        marks = read_marks(self.export, valid, age_ns, where)
        found: dict[str, Any] = {}
        arrays: dict[str, Any] = {}
        for name, about in self.export.streams.items():
            if name not in self._arrays or about.role in (ACTION, REWARD):
                continue
            stored = self._arrays[name]
            if about.kind == "vector":
                found[name] = numbers(self._rows(name, start, stop, where), f"{where}: {name}")
            else:
                is_image = about.kind == "image" and stored.dtype == np.uint8 and stored.shape[-1:] == (3,)
                absent = marks.valid[:, self.export.names.index(name)] == 0
                rows = ArrayRows(stop - start, partial(_row, stored, start, absent), f"{where}: {name}")
                (found if is_image else arrays)[name] = rows
        if ACTION in self._arrays:
            table = numbers(self._rows(ACTION, start, stop, where), f"{where}: {ACTION}")
            found.update(self.export.split(table, ACTION, f"{where}: {ACTION}"))
        rewards = self._rows(REWARD, start, stop, where) if REWARD in self._arrays else None
        streams = self.export.episode_streams(ticks.astype(np.int64), marks, found, arrays, rewards, where)
        return SourceEpisode(streams, self._tasks[index], self.name, where, self._success[index])

    def span_ns(self, index: int) -> tuple[int, int]:
        """Return the first and the last stamp of an episode."""
        start, stop, _ = self._place(index)
        ticks = self._arrays[TICK]
        return int(ticks.read(start, start + 1)[0]), int(ticks.read(stop - 1, stop)[0])

    def _place(self, index: int) -> tuple[int, int, str]:
        start, stop = self._ends[index - 1] if index else 0, self._ends[index]
        where = f"{printable(self.folder)}: episode {index}"
        if stop - start > MAX_STEPS:
            raise DatasetError(f"{where}: {stop - start:,} rows; at most {MAX_STEPS:,} are read")
        return start, stop, where

    def _rows(self, name: str, start: int, stop: int, where: str) -> NDArray[Any]:
        stored = self._arrays[name]
        nbytes = (stop - start) * int(np.prod(stored.shape[1:])) * stored.dtype.itemsize
        if nbytes > MAX_VECTOR_BYTES:
            raise DatasetError(
                f"{where}: {printable(name, 40)}: {nbytes:,} bytes; at most {MAX_VECTOR_BYTES:,} are read"
            )
        return stored.read(start, stop)


def _opened(root: AnyPath, name: str) -> ZarrRows:
    where = printable(root / name)
    stored = zarr_array(read_object(file_below(root, f"{name}/.zarray")), root, name, where)
    whole_rows = stored.chunks[1:] == stored.shape[1:] and (stored.order, stored.separator) == ("C", ".")
    if not whole_rows or stored.codec not in CODECS or not stored.chunk_bytes:
        raise DatasetError(f"{where}: its chunks or its compression are not those of an export; export it again")
    return stored


def _all(root: AnyPath, name: str) -> NDArray[np.int64]:
    stored = _opened(root, name)
    if stored.count > MAX_EPISODES or len(stored.shape) > 1:
        raise DatasetError(f"{printable(root / name)}: more than {MAX_EPISODES:,} episodes; split the dataset")
    return stored.read(0, stored.count).astype(np.int64)


def _row(stored: ZarrRows, start: int, absent: NDArray[np.bool_], row: int) -> NDArray[Any]:
    return stored.row(start + row, absent=bool(absent[row]))
