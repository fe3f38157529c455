"""Read LeRobot datasets v2.0, v2.1 and v3.0, exported by this package or published."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from robocache_ros.errors import printable
from robocache_ros.extras import need
from robocache_ros.file_limits import task_texts, values_of
from robocache_ros.formats.columns import ExportColumns, export_columns, read_marks, successes
from robocache_ros.formats.images import VideoFrames
from robocache_ros.formats.lerobot import schema
from robocache_ros.formats.lerobot.arrays import StoredArrays, stored_arrays
from robocache_ros.formats.parquet import (
    OPEN_FILES,
    column_array,
    column_names,
    groups_around,
    parquet_errors,
    read_parquet,
)
from robocache_ros.formats.read import (
    ACTION,
    AGE,
    IMAGES,
    MAX_EPISODES,
    STATE,
    TICK,
    VALID,
    WINDOW,
    DatasetError,
    SourceEpisode,
    Stream,
    Values,
    nominal_span,
    nominal_stamps,
    numbers,
    read_object,
    read_objects,
    refusing,
)
from robocache_ros.formats.video import CODES, UNITS, depths_of_codes
from robocache_ros.storage.paths import AnyPath, as_path
from robocache_ros.untrusted_files import DatasetFile, file_below, files_below, filled, path_below

VERSIONS = (schema.VERSION_V3, schema.VERSION_V21, "v2.0")
MAX_SECONDS = 1e7  # of a video
META_BYTES = 4 << 30  # of the tables of episodes
BATCH_ROWS = 1 << 14  # of the table of episodes, that are Python objects at once


@dataclass(frozen=True)
class EpisodePlace:
    """An episode: the file of its rows, and of each video the file and the time of its first frame in s."""

    index: int
    length: int
    rows: str
    videos: dict[str, tuple[str, float]]


@dataclass(frozen=True)
class LeRobotLayout:
    """The contents of `meta/`."""

    fps: float
    features: dict[str, dict[str, Any]]
    episodes: list[EpisodePlace]
    tasks: dict[int, str]

    @property
    def videos(self) -> list[str]:
        """The features that are videos of colour images."""
        return [name for name, about in self.features.items() if about.get("dtype") == "video" and not _is_depth(about)]

    @property
    def depth_videos(self) -> dict[str, dict[str, Any]]:
        """The features that are videos of depth, and what info.json states of them."""
        return {name: _info(about) for name, about in self.features.items() if _is_depth(about)}


def read_layout(folder: AnyPath) -> LeRobotLayout:
    """Read the metadata of a dataset."""
    path = folder / schema.INFO
    if not path.exists():
        raise DatasetError(f"{printable(path)}: not there; give the folder of a LeRobot dataset")
    info = read_object(file_below(folder, schema.INFO))
    where = printable(path)
    with refusing(where, advice="get the folder meta again"):
        version, fps, features = str(info["codebase_version"]), float(info["fps"]), dict(info["features"])
        if version not in VERSIONS:
            raise DatasetError(
                f"{where}: version {printable(version, 20)}, not {', '.join(VERSIONS)}; convert it with lerobot"
            )
        videos = [name for name, about in features.items() if about.get("dtype") == "video"]
        read = _episodes_v3 if version == schema.VERSION_V3 else _episodes_v2
        episodes = read(folder, info, videos)
        tasks = _tasks_v3(folder) if version == schema.VERSION_V3 else _tasks_v2(folder)
    listed = info.get("total_episodes", len(episodes))
    if isinstance(listed, int) and len(episodes) < listed:
        raise DatasetError(f"{where}: meta has {len(episodes):,} of {listed:,} episodes; get the folder meta again")
    if len(episodes) > MAX_EPISODES:
        raise DatasetError(f"{where}: {len(episodes):,} episodes; at most {MAX_EPISODES:,} are read")
    return LeRobotLayout(fps, features, episodes, tasks)


def column_labels(about: Mapping[str, Any], width: int) -> tuple[str, ...]:
    """Return the names of the columns of a feature: a list, or the only list in a dictionary; empty without names."""
    names = about.get("names")
    if isinstance(names, dict) and len(names) == 1:
        (names,) = names.values()
    return tuple(map(str, names)) if isinstance(names, list) and len(names) == width else ()


def _is_depth(about: Mapping[str, Any]) -> bool:
    return about.get("dtype") == "video" and any(
        _info(about).get(key) for key in ("is_depth_map", "video.is_depth_map")
    )


def _info(about: Mapping[str, Any]) -> dict[str, Any]:
    return dict(about.get("info") or about.get("video_info") or {})


def _episodes_v3(folder: AnyPath, info: Mapping[str, Any], videos: list[str]) -> list[EpisodePlace]:
    paths = files_below(folder, "meta/episodes/*/*.parquet")
    if not paths:
        raise DatasetError(f"{printable(folder)}: no files in meta/episodes; get the folder meta again")
    if sum(path.stat().st_size for path in paths) > META_BYTES:
        raise DatasetError(
            f"{printable(folder)}: meta/episodes is larger than {META_BYTES >> 30} GiB; check the dataset"
        )
    places = ["chunk_index", "file_index"]
    columns = ["episode_index", "length", *(f"data/{place}" for place in places)]
    columns += [f"videos/{name}/{part}" for name in videos for part in (*places, "from_timestamp")]
    found: list[EpisodePlace] = []
    types = need("pyarrow.types", "datasets")
    for path in paths:
        table = read_parquet(path, columns, distinct=True)
        if other := [f.name for f in table.schema if not (types.is_integer(f.type) or types.is_floating(f.type))]:
            raise DatasetError(f"{printable(path)}: {printable(other[0], 40)} is not a number; get the file again")
        if len(found) + len(table) > MAX_EPISODES:
            raise DatasetError(f"{printable(folder)}: more than {MAX_EPISODES:,} episodes; split the dataset")
        for row in (row for batch in table.to_batches(max_chunksize=BATCH_ROWS) for row in batch.to_pylist()):
            data = {place: row[f"data/{place}"] for place in places}
            files = {
                name: (
                    filled(info["video_path"], video_key=name, **{p: row[f"videos/{name}/{p}"] for p in places}),
                    _seconds(row[f"videos/{name}/from_timestamp"]),
                )
                for name in videos
            }
            rows = filled(info["data_path"], **data)
            found.append(EpisodePlace(int(row["episode_index"]), int(row["length"]), rows, files))
    return sorted(found, key=lambda place: place.index)


def _episodes_v2(folder: AnyPath, info: Mapping[str, Any], videos: list[str]) -> list[EpisodePlace]:
    found, chunk = [], int(info.get("chunks_size", 1000))
    if chunk < 1:
        raise ValueError(f"chunks_size is {chunk}")
    for row in read_objects(file_below(folder, schema.EPISODES_V21)):
        index = int(row["episode_index"])
        values = {"episode_index": index, "episode_chunk": index // chunk}
        files = {name: (filled(info["video_path"], video_key=name, **values), 0.0) for name in videos}
        found.append(EpisodePlace(index, int(row["length"]), filled(info["data_path"], **values), files))
    return sorted(found, key=lambda place: place.index)


def _seconds(value: Any) -> float:
    if not 0 <= float(value) < MAX_SECONDS:
        raise ValueError(f"a video begins at {value} s")
    return float(value)


def _tasks_v3(folder: AnyPath) -> dict[int, str]:
    path = file_below(folder, schema.TASKS)
    names = column_names(path)
    text = "task" if "task" in names else "__index_level_0__"
    table = read_parquet(path, ["task_index", text], distinct=True)
    with parquet_errors(path):
        tasks = task_texts(table[text], printable(path))
    return dict(zip(map(int, values_of(table["task_index"])), tasks, strict=True))


def _tasks_v2(folder: AnyPath) -> dict[int, str]:
    return {int(row["task_index"]): str(row["task"]) for row in read_objects(file_below(folder, schema.TASKS_V21))}


@dataclass(frozen=True)
class DepthFrames(VideoFrames):
    """The frames of an episode in a depth video: (H, W, 1) float32 in `unit`, 0 where there is no depth."""

    unit: str = "m"
    is_depth: ClassVar[bool] = True

    def _empty(self, count: int, size: tuple[int, int]) -> NDArray[Any]:
        return np.empty((count, *size, 1), np.float32)

    def _pixels(self, frame: Any) -> NDArray[Any]:
        if frame.format.name != schema.DEPTH_PIXELS:
            raise ValueError(f"frames of {frame.format.name}, not {schema.DEPTH_PIXELS}")
        plane = frame.planes[0]  # PyAV 12 makes no array of this format
        codes = np.frombuffer(plane, "<u2").reshape(frame.height, plane.line_size // 2)[:, : frame.width, None]
        depths: NDArray[np.float32] = _depths(self.unit)[np.minimum(codes, CODES - 1)]
        return depths


def depth_unit(info: Mapping[str, Any]) -> str | None:
    """Return the unit of a depth video, given what info.json states of it; None if its codes are not those known."""
    unit = info.get("depth_unit")
    return (
        unit if unit in UNITS and all(info.get(name) == value for name, value in schema.DEPTH_CODES.items()) else None
    )


@lru_cache(maxsize=len(UNITS))
def _depths(unit: str) -> NDArray[np.float32]:
    """(4096,) depths of the codes; the first code is that of missing depths too."""
    depths = depths_of_codes(unit).astype(np.float32)
    depths[0] = 0
    return depths


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
    """

    def __init__(
        self, path: str | AnyPath, *, cameras: Sequence[str] | None = None, episodes: Sequence[int] | None = None
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
        provenance = self.folder / schema.PROVENANCE
        self.export: ExportColumns | None = None
        self._success: list[bool | None] = []  # by episode, of an export
        self._arrays: dict[str, StoredArrays] = {}
        if TICK in features:  # of an export: its streams and measured stamps are lost without the provenance
            stated, where = read_object(file_below(self.folder, schema.PROVENANCE)), printable(provenance)
            if lacking := [name for name in (VALID, AGE) if name not in features]:
                raise DatasetError(f"{printable(self.folder)}: meta/info.json has no {lacking[0]}; get the file again")
            self.export = export_columns(stated, where)
            self._success = successes(stated, len(self), where)
            kinds = {name: about.kind for name, about in self.export.streams.items()}
            self._arrays = stored_arrays(self.folder, stated.get("arrays", {}), kinds, where)
        if episodes is not None:
            chosen = _chosen(episodes, [place.index for place in self._layout.episodes])
            self._layout = replace(self._layout, episodes=[self._layout.episodes[row] for row in chosen])
            self._success = [self._success[row] for row in chosen] if self._success else []
        vectors = [n for n, f in features.items() if n.startswith("observation.") and f.get("dtype") in _FLOATS]
        self._proprio = [STATE] if STATE in features else vectors
        windows = [name for name in vectors if name.startswith(WINDOW)] if self.export else []
        others = [
            name for name in (ACTION, schema.REWARD, *((TICK, VALID, AGE) if self.export else ())) if name in features
        ]
        self._columns = tuple(dict.fromkeys((*self._proprio, *windows, *others, "episode_index", "task_index")))

    @property
    def files(self) -> tuple[AnyPath, ...]:
        """The files by which a change of the dataset is noticed."""
        return (
            self.folder / schema.INFO,
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
        columns = {name: column_array(table.column(name), f"{where}: {name}") for name in table.column_names}
        images: dict[str, Values] = {}
        for camera, name in self._cameras.items():
            if name in place.videos:
                file, start_s = place.videos[name]
                images[camera] = VideoFrames(self.folder, file, start_s, self._layout.fps, place.length)
            else:
                images[camera] = _image_files(path, name, first, place.length, where)
        depth = self._depth(place)
        if self.export:
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
        if self.export is None:
            return nominal_span(place.length, self._layout.fps)
        path = file_below(self.folder, place.rows)
        table, _ = _rows(path, self._columns, place.index, os.getpid())
        where = f"{printable(path)}: episode {place.index}: {TICK}"
        ticks = column_array(table.column(TICK), where).reshape(-1)
        if ticks.dtype.kind not in "iu":
            raise DatasetError(f"{where}: {ticks.dtype}, not int64; export it again")
        return int(ticks[0]), int(ticks[-1])

    def _compare(self, path: DatasetFile) -> None:
        """Warn if a file has columns that info.json does not list: damaged names look like this too."""
        names = [name for name in column_names(path) if name.startswith(("observation.", ACTION, schema.REWARD))]
        if names := [name for name in names if name not in self._layout.features]:
            where, name = printable(self.folder / schema.INFO, 80), printable(names[0], 40)
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
        for name, role, label in (*named, (ACTION, "action", "actions"), (schema.REWARD, "reward", "rewards")):
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
        about = self.export
        assert about is not None
        ticks = columns[TICK].reshape(-1)
        # Arrow stores rows of one column, those of a single stream, as plain numbers.
        valid, age_ns = (columns[name].reshape(len(ticks), -1) for name in (VALID, AGE))
        marks = read_marks(about, valid, age_ns, where)
        arrays = {
            name: stored.of_episode(place.index, marks.valid[:, about.names.index(name)], where)
            for name, stored in self._arrays.items()
        }
        found: dict[str, Any] = {**images, **arrays, **depth}
        for name, role in ((STATE, "observation"), (ACTION, "action")):
            if name in columns:
                found.update(about.split(numbers(columns[name], f"{where}: {name}"), role, f"{where}: {name}"))
        for name, values in columns.items():
            if name.startswith(WINDOW):
                found[name.removeprefix(WINDOW)] = numbers(values, f"{where}: {name}")
        return about.episode_streams(ticks, marks, found, columns.get(schema.REWARD), where)


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


@lru_cache(maxsize=OPEN_FILES)
def _episode_numbers(path: DatasetFile, process: int) -> NDArray[np.int64]:
    """Return the episode of each row."""
    column = read_parquet(path, ["episode_index"]).column("episode_index")
    return column_array(column, f"{printable(path)}: episode_index").reshape(-1)


@lru_cache(maxsize=OPEN_TABLES)
def _table(path: DatasetFile, columns: tuple[str, ...], rows: tuple[int, int], process: int) -> Any:
    return read_parquet(path, list(columns), rows=rows)


def _rows(path: DatasetFile, columns: tuple[str, ...], episode: int, process: int) -> tuple[Any, int]:
    """Return the rows of an episode, and the place of the first in the file."""
    rows = np.flatnonzero(_episode_numbers(path, process) == episode)
    if not len(rows) or rows[-1] - rows[0] + 1 != len(rows):
        raise DatasetError(f"{printable(path)}: episode {episode} is not in adjacent rows; get the file again")
    first = int(rows[0])
    begin, end = groups_around(path, first, first + len(rows))
    return _table(path, columns, (begin, end), process).slice(first - begin, len(rows)), first


def _image_files(path: DatasetFile, name: str, first: int, count: int, where: str) -> list[bytes]:
    """Return the files of jpeg or png in a column of structs with the field bytes."""
    column = read_parquet(path, [name], rows=(first, first + count)).column(name)
    if not hasattr(column.type, "get_field_index") or column.type.get_field_index("bytes") < 0:
        raise DatasetError(f"{where}: {printable(name, 40)} is not a column of images; get the file again")
    files = [data for chunk in column.chunks for data in values_of(chunk.field("bytes"))]
    if None in files:
        raise DatasetError(f"{where}: {printable(name, 40)}: image {files.index(None)} is missing; repair the file")
    return files
