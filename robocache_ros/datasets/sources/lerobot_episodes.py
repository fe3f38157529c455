"""LeRobot datasets, v3.0 and v2.1, of other writers and of this project's exports."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robocache_ros.datasets.episode_source import (
    DatasetError,
    SourceEpisode,
    Stream,
    Values,
    nominal_span,
    nominal_stamps,
    numbers,
)
from robocache_ros.datasets.files.dataset_files import read_object
from robocache_ros.datasets.sources.exports.export_columns import ExportColumns, export_columns, read_marks, successes
from robocache_ros.datasets.sources.exports.lerobot_arrays import (
    DepthFrames,
    StoredArrays,
    depth_unit,
    stored_arrays,
)
from robocache_ros.datasets.sources.lerobot_layout import (
    EpisodePlace,
    column_labels,
    column_names,
    read_layout,
    read_parquet,
)
from robocache_ros.datasets.video.video_frames import VideoFrames
from robocache_ros.errors import printable
from robocache_ros.file_limits import values_of
from robocache_ros.remote.any_path import as_path
from robocache_ros.untrusted_files import DatasetFile, file_below, path_below

STATE, ACTION, REWARD = "observation.state", "action", "next.reward"
TICK, VALID, AGE = "robocache.tick_ns", "robocache.valid", "robocache.age_ns"
WINDOW, IMAGES = "observation.window.", "observation.images."
OPEN_TABLES = 2
_FLOATS = ("float32", "float64")


class LeRobotEpisodes:
    """The episodes of a dataset.

    Stamps are frame_index / fps, as LeRobot defines them; those of exports of this project were measured.
    `observation.state` is the proprioception; without it, all vectors `observation.*`.

    Args:
        path: the folder with `meta/`.
        cameras: names of images, such as front of `observation.images.front`; None: all.
        episodes: numbers of the episodes to read, in this order, each once; None: all.

    Errors:
        DatasetError: a file is missing or damaged, or has no such camera or episode.
    """

    def __init__(
        self, path: str | Path, *, cameras: Sequence[str] | None = None, episodes: Sequence[int] | None = None
    ) -> None:
        self.folder = as_path(path)
        self.name = self.folder.name
        self._layout = read_layout(self.folder)
        features = self._layout.features
        images = {
            _camera(name): name
            for name, about in features.items()
            if about.get("dtype") == "image" or name in self._layout.videos
        }
        if missing := [camera for camera in cameras or () if camera not in images]:
            known = ", ".join(images) or "none"
            raise DatasetError(f"cameras: no {printable(missing[0], 40)}; there are {printable(known)}")
        self._cameras = images if cameras is None else {camera: images[camera] for camera in cameras}
        provenance = self.folder / "meta" / "robocache.json"
        self._export: ExportColumns | None = None
        self._success: list[bool | None] = []  # by episode, of an export
        self._arrays: dict[str, StoredArrays] = {}
        if TICK in features:  # of an export: its streams and measured stamps are lost without the provenance
            told, where = read_object(file_below(self.folder, "meta/robocache.json")), printable(provenance)
            if lacking := [name for name in (VALID, AGE) if name not in features]:
                raise DatasetError(f"{printable(self.folder)}: meta/info.json has no {lacking[0]}; get the file again")
            self._export = export_columns(told, where)
            self._success = successes(told, len(self), where)
            kinds = {name: about.kind for name, about in self._export.streams.items()}
            self._arrays = stored_arrays(self.folder, told.get("arrays", {}), kinds, where)
        if episodes is not None:
            chosen = _chosen(episodes, [place.index for place in self._layout.episodes])
            self._layout = replace(self._layout, episodes=[self._layout.episodes[row] for row in chosen])
            self._success = [self._success[row] for row in chosen] if self._success else []
        vectors = [n for n, f in features.items() if n.startswith("observation.") and f.get("dtype") in _FLOATS]
        self._proprio = [STATE] if STATE in features else vectors
        windows = [name for name in vectors if name.startswith(WINDOW)] if self._export else []
        others = [name for name in (ACTION, REWARD, *((TICK, VALID, AGE) if self._export else ())) if name in features]
        self._columns = tuple(dict.fromkeys((*self._proprio, *windows, *others, "episode_index", "task_index")))

    @property
    def files(self) -> tuple[Path, ...]:
        """The files by which a change of the dataset is noticed."""
        return (
            self.folder / "meta" / "info.json",
            *sorted({path_below(self.folder, place.rows) for place in self._layout.episodes}),
        )

    def __len__(self) -> int:
        return len(self._layout.episodes)

    def read(self, index: int) -> SourceEpisode:
        """Return an episode. Images are not decoded."""
        place = self._layout.episodes[index]
        path = file_below(self.folder, place.rows)
        where = f"{printable(path)}: episode {place.index}"
        table, first = _rows(path, self._columns, place.index, os.getpid())
        if index == 0:
            self._compare(path)
        if table.num_rows != place.length:
            raise DatasetError(f"{where}: {table.num_rows:,} rows, not {place.length:,}; get the file again")
        columns = {name: _values(table.column(name), f"{where}: {name}") for name in table.column_names}
        images: dict[str, Values] = {}
        for camera, name in self._cameras.items():
            if name in place.videos:
                file, start_s = place.videos[name]
                images[camera] = VideoFrames(self.folder, file, start_s, self._layout.fps, place.length)
            else:
                images[camera] = _image_files(path, name, first, place.length, where)
        depth = self._depth(place)
        if self._export:
            streams = self._exported(columns, images, depth, place, where)
        else:
            streams = self._nominal(columns, images, where)
            for camera, values in depth.items():
                stamps = nominal_stamps(place.length, self._layout.fps)
                streams[f"depth/{camera}"] = Stream(f"depth/{camera}", stamps, values, False)
        success = self._success[index] if self._success else None
        return SourceEpisode(streams, self._task(columns, where), self.name, where, success)

    def _depth(self, place: EpisodePlace) -> dict[str, Values]:
        """Return the depth videos of an episode by camera; those with other codes than the known ones are left out."""
        found: dict[str, Values] = {}
        for name, info in self._layout.depth_videos.items():
            if unit := depth_unit(info):
                file, start_s = place.videos[name]
                fps = self._layout.fps
                found[_camera(name)] = DepthFrames(self.folder, file, start_s, fps, place.length, unit)
        return found

    def span_ns(self, index: int) -> tuple[int, int]:
        """Return the first and the last stamp of an episode."""
        place = self._layout.episodes[index]
        if self._export is None:
            return nominal_span(place.length, self._layout.fps)
        path = file_below(self.folder, place.rows)
        table, _ = _rows(path, self._columns, place.index, os.getpid())
        where = f"{printable(path)}: episode {place.index}: {TICK}"
        ticks = _values(table.column(TICK), where).reshape(-1)
        if ticks.dtype.kind not in "iu":
            raise DatasetError(f"{where}: {ticks.dtype}, not int64; export it again")
        return int(ticks[0]), int(ticks[-1])

    def _compare(self, path: DatasetFile) -> None:
        """Warn if a file has columns that info.json does not list: damaged names look like this too."""
        names = [name for name in column_names(path) if name.startswith(("observation.", ACTION, REWARD))]
        if names := [name for name in names if name not in self._layout.features]:
            where, name = printable(self.folder / "meta" / "info.json", 80), printable(names[0], 40)
            warnings.warn(f"{where}: does not list {name}, which the files have; check the file", stacklevel=2)

    def _task(self, columns: dict[str, NDArray[Any]], where: str) -> str:
        (task,) = columns["task_index"].reshape(-1)[:1].tolist()
        if task not in self._layout.tasks:
            raise DatasetError(
                f"{where}: task {printable(task, 20)} is not in the list of tasks; get the folder meta again"
            )
        return self._layout.tasks[task]

    def _nominal(self, columns: dict[str, NDArray[Any]], images: dict[str, Values], where: str) -> dict[str, Stream]:
        stamps = nominal_stamps(len(columns["task_index"]), self._layout.fps)
        streams: dict[str, Stream] = {}
        named = [(name, "observation", "proprio" if name == STATE else name) for name in self._proprio]
        for name, role, label in (*named, (ACTION, "action", "actions"), (REWARD, "reward", "rewards")):
            if name in columns:
                table = numbers(columns[name], f"{where}: {name}")
                named_columns = column_labels(self._layout.features[name], table.shape[1])
                streams[label] = Stream(label, stamps, table, False, role, columns=named_columns)
        for camera, values in images.items():
            streams[f"vision/{camera}"] = Stream(f"vision/{camera}", stamps, values, False)
        return streams

    def _exported(
        self,
        columns: dict[str, NDArray[Any]],
        images: dict[str, Values],
        depth: dict[str, Values],
        place: EpisodePlace,
        where: str,
    ) -> dict[str, Stream]:
        about = self._export
        assert about is not None
        ticks = columns[TICK].reshape(-1)
        # Arrow stores rows of one column, those of a single stream, as plain numbers.
        valid, age_ns = (columns[name].reshape(len(ticks), -1) for name in (VALID, AGE))
        marks = read_marks(about, valid, age_ns, where)
        arrays = {
            name: stored.of_episode(place.index, marks.valid[:, about.names.index(name)], where)
            for name, stored in self._arrays.items()
        }
        found: dict[str, Any] = dict(images)
        for name, role in ((STATE, "observation"), (ACTION, "action")):
            if name in columns:
                found.update(about.split(numbers(columns[name], f"{where}: {name}"), role, f"{where}: {name}"))
        for name, values in columns.items():
            if name.startswith(WINDOW):
                found[name.removeprefix(WINDOW)] = numbers(values, f"{where}: {name}")
        return about.episode_streams(ticks, marks, found, {**arrays, **depth}, columns.get(REWARD), where)


def _chosen(episodes: Sequence[int], numbers: list[int]) -> list[int]:
    """Return the rows of episodes in a list of their numbers."""
    rows = {number: row for row, number in enumerate(numbers)}
    if unknown := [episode for episode in episodes if episode not in rows]:
        one = printable(unknown[0], 20)
        raise DatasetError(f"episodes: {one} is not one of the {len(rows):,} of this dataset; give its numbers")
    if not 0 < len(episodes) == len(set(episodes)):
        raise DatasetError("episodes: none, or one of them twice; give each number once, or None for all")
    return [rows[episode] for episode in episodes]


def _camera(name: str) -> str:
    return name.removeprefix(IMAGES).removeprefix("observation.")


@lru_cache(maxsize=OPEN_TABLES)
def _table(path: DatasetFile, columns: tuple[str, ...], process: int) -> tuple[Any, NDArray[np.int64]]:
    table = read_parquet(path, list(columns))
    return table, _values(table.column("episode_index"), f"{printable(path)}: episode_index").reshape(-1)


def _rows(path: DatasetFile, columns: tuple[str, ...], episode: int, process: int) -> tuple[Any, int]:
    """Return the rows of an episode, and the place of the first in the file."""
    table, episodes = _table(path, columns, process)
    rows = np.flatnonzero(episodes == episode)
    if not len(rows) or rows[-1] - rows[0] + 1 != len(rows):
        raise DatasetError(f"{printable(path)}: episode {episode} is not in adjacent rows; get the file again")
    return table.slice(int(rows[0]), len(rows)), int(rows[0])


def _values(column: Any, where: str) -> NDArray[Any]:
    """Return (T,) or (T, ...) numbers of a column of numbers, or of lists of one length."""
    column = column.combine_chunks()
    shape: list[int] = [len(column)]
    while hasattr(column, "flatten") and hasattr(column.type, "value_type"):
        count, inner = len(column), column.flatten()
        if column.null_count or (count and len(inner) % count):
            raise DatasetError(f"{where}: its rows are not of one length; get the file again")
        shape.append(len(inner) // count if count else 0)
        column = inner
    if hasattr(column, "dictionary"):
        raise DatasetError(f"{where}: texts, not numbers; get the file again")
    if column.null_count:
        raise DatasetError(
            f"{where}: {column.null_count:,} values are missing; repair the file or leave the episode out"
        )
    values: NDArray[Any] = column.to_numpy(zero_copy_only=False).reshape(shape)
    return values


def _image_files(path: DatasetFile, name: str, first: int, count: int, where: str) -> list[bytes]:
    """Return the files of jpeg or png in a column of structs with the field bytes."""
    column = read_parquet(path, [name], rows=(first, first + count)).column(name)
    if not hasattr(column.type, "get_field_index") or column.type.get_field_index("bytes") < 0:
        raise DatasetError(f"{where}: {printable(name, 40)} is not a column of images; get the file again")
    files = [data for chunk in column.chunks for data in values_of(chunk.field("bytes"))]
    if None in files:
        raise DatasetError(f"{where}: {printable(name, 40)}: image {files.index(None)} is missing; repair the file")
    return files
