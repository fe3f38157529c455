"""Write LeRobot datasets: v2.1 with a file per episode, and v3.0 with large files."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robocache_ros.extras import need
from robocache_ros.formats.dataset import Episode, ExportedDataset
from robocache_ros.formats.lerobot import schema
from robocache_ros.formats.lerobot.arrays import array_tasks, described_arrays
from robocache_ros.formats.lerobot.openpi import write_norm_stats
from robocache_ros.formats.parquet import CHUNK_FILES, DATA_FILE_MB, DATA_FILES, Table, column
from robocache_ros.formats.pictures import VIDEO, copied_or, video_or_png
from robocache_ros.formats.read import ACTION, AGE, IMAGES, STAMP, STATE, TICK, VALID
from robocache_ros.formats.statistics import Stats, of_columns
from robocache_ros.formats.video import DEPTH_VIDEO, VIDEO_FILE_MB, VIDEO_FILES, JoinedVideo, joined_files
from robocache_ros.formats.write import FileTask, WrittenByTasks, group_tasks, image_contract, row_bytes, video_bytes
from robocache_ros.spec import StreamSpec
from robocache_ros.spec.dataset import DatasetOptions

PART_BYTES = 16 << 20  # rows that are read at once


def _outcome_dtypes(dataset: ExportedDataset) -> dict[str, str]:
    """Return the types of the columns of LeRobot that say how episodes went; none if nothing is known of it."""
    known = {
        schema.REWARD: "reward",
        schema.DONE: "reward",
        schema.SUCCESS: "success",
        schema.INTERVENTION: "intervention",
    }
    return {name: dtype for name, dtype in schema.OUTCOMES.items() if known[name] in dataset.outcomes}


def standard_columns(dataset: ExportedDataset, episode: Episode) -> dict[str, NDArray[Any]]:
    """Return the columns that LeRobot defines for an episode."""
    rows = np.arange(episode.length)
    outcomes = {
        schema.REWARD: episode.rewards,
        schema.DONE: rows == episode.length - 1,
        schema.SUCCESS: episode.successes,
        schema.INTERVENTION: episode.interventions,
    }
    return {
        **{name: outcomes[name] for name in _outcome_dtypes(dataset)},
        "timestamp": (rows / dataset.rate_hz).astype(np.float32),
        "frame_index": rows,
        "episode_index": np.full(episode.length, episode.index),
        "index": episode.first_row + rows,
        "task_index": np.full(episode.length, episode.task_index),
    }


class RowTables:
    """Makes the tables of a dataset.

    Args:
        dataset: the dataset.
        images: encoding, png, by stream of images that are stored in the table.
        lists: vectors that are lists also if they have one value. By default such a vector is a plain column.
        image_types: state in the table that `datasets.Image` reads the images, for readers that do not use info.json.
    """

    def __init__(
        self,
        dataset: ExportedDataset,
        images: Mapping[str, str],
        *,
        lists: Sequence[str] = (),
        image_types: bool = False,
    ) -> None:
        self._dataset, self._images, self._lists = dataset, images, lists
        kinds = {IMAGES + name: {"_type": "Image"} for name in images} if image_types else {}
        self._metadata = {"huggingface": json.dumps({"info": {"features": kinds}})} if kinds else None

    def parts(self, episode: Episode, own: Mapping[str, NDArray[Any]]) -> Iterator[Any]:
        """Yield the rows of an episode in tables of bounded size; `own` columns come after those of the dataset."""
        sizes = np.full(episode.length, 8 * episode.layout.row_width)
        for name, encoding in self._images.items():
            sizes += episode.images(name, encoding).sizes
        start = size = 0
        for row, of_row in enumerate(sizes.tolist()):
            if start < row and size + of_row > PART_BYTES:
                yield self._table(episode, own, slice(start, row))
                start, size = row, 0
            size += of_row
        yield self._table(episode, own, slice(start, episode.length))

    def _table(self, episode: Episode, own: Mapping[str, NDArray[Any]], rows: slice) -> Any:
        pyarrow = need("pyarrow", "export")
        part = {name: values[rows] for name, values in episode.rows.items()}
        columns = {name: feature.values(part) for name, feature in self._dataset.features.items()}
        columns.update({name: values[rows] for name, values in own.items()})
        table = {name: column(values, as_list=name in self._lists) for name, values in columns.items()}
        for name, encoding in self._images.items():
            images = episode.images(name, encoding)
            files = [{"bytes": images[row], "path": None} for row in range(rows.start, rows.stop)]
            kind = pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())])
            table[IMAGES + name] = pyarrow.array(files, kind)  # as `datasets.Image` reads it
        return pyarrow.table(table).replace_schema_metadata(self._metadata)


def _write_tasks(folder: Path, tasks: Sequence[str]) -> None:
    """Write the file that names the task of every frame."""
    pyarrow = need("pyarrow", "export")
    # The metadata that pandas writes for a frame with the task as index. LeRobot looks up tasks by this index.
    table = pyarrow.table({"task_index": np.arange(len(tasks)), "task": list(tasks)})
    pandas = {
        "index_columns": ["task"],
        "column_indexes": [],
        "columns": [
            {"name": "task_index", "field_name": "task_index", "pandas_type": "int64", "numpy_type": "int64"},
            {"name": "task", "field_name": "task", "pandas_type": "unicode", "numpy_type": "object"},
        ],
    }
    table = table.replace_schema_metadata({"pandas": json.dumps(pandas)})
    need("pyarrow.parquet", "export").write_table(table, folder / schema.TASKS)


def _write_json(path: Path, value: Any) -> None:
    """Write a human-readable JSON file."""
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False), encoding="utf-8")


def _write_provenance(
    folder: Path, dataset: ExportedDataset, encodings: Mapping[str, str], arrays: Mapping[str, Any]
) -> None:
    """Write robocache.json: where the dataset is from, and how its images and arrays are stored."""
    names = [stream.name for stream in dataset.spec.media]
    stored = {name: dataset.stored(name, encodings.get(name)) for name in names if name not in arrays}
    stored.update(dict.fromkeys(arrays, "arrays, lossless"))
    images = image_contract(dataset.spec, stored)
    _write_json(folder / schema.PROVENANCE, {**dataset.provenance, "images": images, "arrays": arrays})


def _features(
    dataset: ExportedDataset, encodings: Mapping[str, str], depth_videos: Sequence[str] = ()
) -> dict[str, Any]:
    """Return the features of info.json, given the encoding of each image stream, and the streams of depth videos."""
    found: dict[str, Any] = {}
    engine = {
        name: {"dtype": f.dtype, "shape": list(f.shape), "names": list(f.names) or None}
        for name, f in dataset.features.items()
    }
    own = (TICK, STAMP, VALID, AGE)
    found.update({name: feature for name, feature in engine.items() if name not in own})
    for name, encoding in encodings.items():
        found[IMAGES + name] = _picture(dataset, name, encoding)
    found.update({IMAGES + name: _depth(dataset, name) for name in depth_videos})
    found.update({name: engine[name] for name in own})
    for key, dtype in {**_outcome_dtypes(dataset), **schema.STANDARD}.items():
        found[key] = {"dtype": dtype, "shape": [1], "names": None}
    return found


def _depth(dataset: ExportedDataset, stream: str) -> dict[str, Any]:
    """Return the feature of a depth video. LeRobot computes depths from codes with these parameters."""
    info = dataset.arrays[stream]
    _, height, width = info.shape
    stated = {
        "video.height": height,
        "video.width": width,
        "video.codec": DEPTH_VIDEO,
        "video.pix_fmt": schema.DEPTH_PIXELS,
        "video.fps": dataset.rate_hz,
        "video.channels": 1,
        "has_audio": False,
        "is_depth_map": True,
        "depth_unit": info.depth_unit,
        **schema.DEPTH_CODES,
    }
    return {"dtype": "video", "shape": [height, width, 1], "names": ["height", "width", "channels"], "info": stated}


def _picture(dataset: ExportedDataset, stream: str, encoding: str) -> dict[str, Any]:
    picture = dataset.pictures[stream]
    feature: dict[str, Any] = {"dtype": "image", "shape": [*picture.shape, 3], "names": ["height", "width", "channels"]}
    if encoding in VIDEO:
        feature["dtype"] = "video"
        feature["info"] = {
            "video.height": picture.shape[0],
            "video.width": picture.shape[1],
            "video.codec": picture.codecs[encoding],
            "video.pix_fmt": picture.pixel_formats[encoding],
            "video.is_depth_map": False,
            "video.fps": dataset.rate_hz,
            "video.channels": 3,
            "has_audio": False,
        }
    return feature


EPISODE_STATS = ("min", "max", "mean", "std", "count")  # that LeRobot v2.1 has


class LeRobotV21Format(WrittenByTasks):
    """LeRobot v2.1."""

    name = "lerobot21"
    title = "LeRobot v2.1, also for GR00T and openpi"
    entry = "meta"
    needs_stats = True

    def encoding(self, stream: StreamSpec, options: DatasetOptions) -> str | None:
        """Store images as H.264 video, because GR00T's decoders do not read AV1, or as PNG."""
        return {"video": copied_or(stream, options, "h264"), "image": "png"}.get(options.media)

    def tasks(self, dataset: ExportedDataset) -> list[FileTask]:
        """Return the tasks: the rows and the videos of some episodes each, and the arrays of each stream."""
        of_row = row_bytes(dataset, _ContentsV21(dataset).encodings)
        return [*group_tasks(dataset, of_row, _write_episodes_v21), *array_tasks(dataset, schema.CHUNK_EPISODES)]

    def finish(self, dataset: ExportedDataset, folder: Path, results: Sequence[Any]) -> None:
        """Write the folder meta. Its info.json, by which LeRobot recognizes the dataset, is written last."""
        contents, meta = _ContentsV21(dataset), folder / "meta"
        meta.mkdir()
        _write_lines(
            folder / schema.TASKS_V21, ({"task_index": k, "task": task} for k, task in enumerate(dataset.tasks))
        )
        _write_lines(
            folder / schema.EPISODES_V21,
            ({"episode_index": e.index, "tasks": [e.task], "length": e.length} for e in dataset.episodes),
        )
        stats = (_episode_stats(contents, episode) for episode in dataset.episodes)
        _write_lines(folder / schema.EPISODES_STATS, ({"episode_index": k, "stats": of} for k, of in enumerate(stats)))
        _write_json(folder / schema.MODALITY, contents.modality())
        _write_json(folder / schema.STATS, contents.gr00t_stats())
        write_norm_stats(folder, dataset.stats)
        _write_provenance(folder, dataset, contents.encodings, described_arrays(dataset))
        _write_json(folder / schema.INFO, contents.info())


def _write_episodes_v21(dataset: ExportedDataset, folder: Path, group: range) -> None:
    """Write the rows and the videos of some episodes."""
    encodings = _ContentsV21(dataset).encodings
    images = {name: encoding for name, encoding in encodings.items() if encoding not in VIDEO}
    # GR00T expects a list also where a vector has one value.
    tables = RowTables(dataset, images, lists=(STATE, ACTION), image_types=True)
    for episode in map(dataset.episodes.__getitem__, group):
        place = {"episode_chunk": episode.index // schema.CHUNK_EPISODES, "episode_index": episode.index}
        with closing(Table(folder, schema.DATA_PATH_V21.format(**place))) as table:
            for rows in tables.parts(episode, _own_columns(dataset, episode)):
                table.append(rows)
            table.end_episode()
        for name, encoding in encodings.items():
            if encoding in VIDEO:
                path = folder / schema.VIDEO_PATH_V21.format(video_key=IMAGES + name, **place)
                path.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(episode.video(name, encoding), path)


def _own_columns(dataset: ExportedDataset, episode: Episode) -> dict[str, NDArray[Any]]:
    """Return the columns that LeRobot and GR00T define."""
    return {**standard_columns(dataset, episode), schema.ANNOTATION_COLUMN: np.full(episode.length, episode.task_index)}


def _episode_stats(contents: _ContentsV21, episode: Episode) -> dict[str, Stats]:
    own = _own_columns(contents.dataset, episode)
    stats = {**episode.stats, **{name: of_columns(values) for name, values in own.items()}}
    stats.update({IMAGES + name: episode.histogram(name).stats() for name in contents.encodings})
    return {name: {key: values[key] for key in EPISODE_STATS} for name, values in stats.items()}


class _ContentsV21:
    """What the dataset stores of each stream of images, and the files that describe the dataset."""

    def __init__(self, dataset: ExportedDataset) -> None:
        self.dataset = dataset
        self.encodings = dataset.encodings(LEROBOT21.encoding)

    def gr00t_stats(self) -> dict[str, Stats]:
        """Return the statistics of all float features. GR00T recomputes the file if one of them is missing."""
        timestamps = [(np.arange(n) / self.dataset.rate_hz).astype(np.float32) for n in self.dataset.episodes.lengths]
        stats = {name: self.dataset.stats[name] for name, f in self.dataset.features.items() if f.dtype == "float32"}
        stats["timestamp"] = of_columns(*timestamps)
        if "reward" in self.dataset.outcomes:
            stats[schema.REWARD] = of_columns(*(episode.rewards for episode in self.dataset.episodes))
        return {name: {key: values[key] for key in schema.GR00T_STATS} for name, values in stats.items()}

    def modality(self) -> dict[str, Any]:
        """Return the streams in the vectors, the cameras and the annotations, under the names that GR00T uses."""
        dataset = self.dataset
        videos = [name for name, encoding in self.encodings.items() if encoding in VIDEO]
        return {
            "state": _spans(dataset.state),
            "action": self._actions(),
            "video": {name: {"original_key": IMAGES + name} for name in videos},
            "annotation": {schema.ANNOTATION: {}, schema.SHORT_ANNOTATION: {"original_key": "task_index"}},
        }

    def _actions(self) -> dict[str, dict[str, Any]]:
        """Return the spans of the actions. GR00T pads deltas with zeros, and others with the last action."""
        spans = _spans(self.dataset.actions)
        for stream in self.dataset.actions:
            if (stream.label or self.dataset.options.action).endswith("delta"):
                spans[stream.name]["absolute"] = False
        return spans

    def info(self) -> dict[str, Any]:
        dataset = self.dataset
        episodes = len(dataset.episodes)
        features = _features(dataset, self.encodings)
        features[schema.ANNOTATION_COLUMN] = {"dtype": "int64", "shape": [1], "names": None}
        return {
            "codebase_version": schema.VERSION_V21,
            "robot_type": dataset.options.robot_type,
            "total_episodes": episodes,
            "total_frames": dataset.frames,
            "total_tasks": len(dataset.tasks),
            "total_videos": episodes * sum(encoding in VIDEO for encoding in self.encodings.values()),
            "total_chunks": -(-episodes // schema.CHUNK_EPISODES),
            "chunks_size": schema.CHUNK_EPISODES,
            "fps": dataset.rate_hz,
            "splits": {"train": f"0:{episodes}"},
            "data_path": schema.DATA_PATH_V21,
            "video_path": schema.VIDEO_PATH_V21,
            "features": features,
        }


def _spans(streams: Iterable[StreamSpec]) -> dict[str, dict[str, Any]]:
    """Return the first column and the one after the last of each stream."""
    spans: dict[str, dict[str, Any]] = {}
    start = 0
    for stream in streams:
        spans[stream.name] = {"start": start, "end": start + stream.width}
        start += stream.width
    return spans


def _write_lines(path: Path, values: Iterable[dict[str, Any]]) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(value, ensure_ascii=False) + "\n" for value in values)


LEROBOT21 = LeRobotV21Format()

DataPlace = tuple[int, int]  # chunk and file of an episode
VideoPlace = tuple[int, int, int]  # chunk, file and first frame in it of an episode


class LeRobotFormat(WrittenByTasks):
    """LeRobot v3.0."""

    name = "lerobot"
    title = "LeRobot v3.0"
    entry = "meta"
    needs_stats = True

    def encoding(self, stream: StreamSpec, options: DatasetOptions) -> str | None:
        """Store images as video, AV1 by default as LeRobot does, or as PNG."""
        return video_or_png(stream, options)

    def tasks(self, dataset: ExportedDataset) -> list[FileTask]:
        """Return the tasks: the rows, the videos of each stream, and the arrays of each."""
        contents = _ContentsV3(dataset)
        frames = dataset.frames
        return [
            FileTask("data", frames * row_bytes(dataset, contents.images), _write_data),
            *(
                FileTask(
                    f"videos/{name}, file {file}",
                    sum(dataset.episodes.lengths[group.start : group.stop]) * video_bytes(dataset, name),
                    partial(_write_video, name=name, file=file, group=group),
                )
                for name in contents.videos
                for file, group in enumerate(contents.video_files(name))
            ),
            *array_tasks(dataset, CHUNK_FILES, dataset.depth_videos),
        ]

    def finish(self, dataset: ExportedDataset, folder: Path, results: Sequence[Any]) -> None:
        """Write the folder meta. Its info.json, by which LeRobot recognizes the dataset, is written last."""
        contents, meta = _ContentsV3(dataset), folder / "meta"
        places, of_files = results[0], iter(results[1:])
        videos = {
            name: [place for _ in contents.video_files(name) for place in next(of_files)] for name in contents.videos
        }
        (meta / "episodes" / "chunk-000").mkdir(parents=True)
        _write_episodes_v3(contents, folder, places, videos)
        _write_tasks(folder, dataset.tasks)
        arrays = described_arrays(dataset, dataset.depth_videos)
        _write_provenance(folder, dataset, contents.encodings, arrays)
        write_norm_stats(folder, dataset.stats)
        _write_json(folder / schema.STATS, {**dataset.stats, **_own_stats(dataset)})
        _write_json(folder / schema.INFO, _info(contents))


class _ContentsV3:
    """What the dataset stores of each stream of images: the encoding of each, and which of them are videos."""

    def __init__(self, dataset: ExportedDataset) -> None:
        self.dataset = dataset
        self.encodings = dataset.encodings(LEROBOT.encoding)
        self.images = {name: encoding for name, encoding in self.encodings.items() if encoding not in VIDEO}
        self.videos = {name: codec for name, codec in self.encodings.items() if codec in VIDEO}
        self.videos.update(dict.fromkeys(dataset.depth_videos, DEPTH_VIDEO))

    def video_files(self, name: str) -> list[range]:
        return joined_files([e.video_part(name, self.videos[name]) for e in self.dataset.episodes], VIDEO_FILE_MB)


def _write_data(dataset: ExportedDataset, folder: Path) -> list[DataPlace]:
    """Write the rows; return the place of each episode."""
    tables = RowTables(dataset, _ContentsV3(dataset).images)
    places: list[DataPlace] = []
    with closing(Table(folder, DATA_FILES, DATA_FILE_MB, CHUNK_FILES)) as table:
        for episode in dataset.episodes:
            for rows in tables.parts(episode, standard_columns(dataset, episode)):
                table.append(rows)
            places.append(table.end_episode())
    return places


def _write_video(dataset: ExportedDataset, folder: Path, name: str, file: int, group: range) -> list[VideoPlace]:
    """Write a video file of a stream; return the place of each episode in it."""
    codec, path = _ContentsV3(dataset).videos[name], VIDEO_FILES.replace("{video_key}", IMAGES + name)
    with closing(JoinedVideo(folder, path, dataset.rate_hz, VIDEO_FILE_MB, CHUNK_FILES, files=file)) as joined:
        episodes = map(dataset.episodes.__getitem__, group)
        places = [joined.append(episode.video(name, codec), episode.length) for episode in episodes]
    assert all(place[:2] == divmod(file, CHUNK_FILES) for place in places)
    return places


def _own_stats(dataset: ExportedDataset) -> dict[str, Stats]:
    """Return the statistics of the columns that LeRobot defines."""
    parts: dict[str, list[NDArray[Any]]] = {}
    for episode in dataset.episodes:
        for name, values in standard_columns(dataset, episode).items():
            parts.setdefault(name, []).append(values)
    return {name: of_columns(*values) for name, values in parts.items()}


def _write_episodes_v3(
    contents: _ContentsV3, folder: Path, places: Sequence[DataPlace], videos: Mapping[str, Sequence[VideoPlace]]
) -> None:
    dataset = contents.dataset
    with closing(Table(folder, schema.EPISODES_V3)) as table:
        for episode in dataset.episodes:
            entry = _episode(episode, places[episode.index])
            for name, parts in videos.items():
                entry.update(_place_in_video(name, parts[episode.index], episode.length, dataset.rate_hz))
            own = standard_columns(dataset, episode)
            stats = {**episode.stats, **{name: of_columns(values) for name, values in own.items()}}
            media = {**contents.encodings, **contents.videos}
            stats.update({IMAGES + name: episode.image_stats(name) for name in media})
            for key, values in stats.items():
                entry.update({f"stats/{key}/{name}": value for name, value in values.items()})
            table.append(need("pyarrow", "export").Table.from_pylist([entry]))
        table.end_episode()


def _episode(episode: Episode, place: DataPlace) -> dict[str, Any]:
    return {
        "episode_index": episode.index,
        "tasks": [episode.task],
        "length": episode.length,
        "data/chunk_index": place[0],
        "data/file_index": place[1],
        "dataset_from_index": episode.first_row,
        "dataset_to_index": episode.first_row + episode.length,
        "meta/episodes/chunk_index": 0,
        "meta/episodes/file_index": 0,
    }


def _place_in_video(stream: str, place: VideoPlace, length: int, rate_hz: int) -> dict[str, Any]:
    chunk, file, first = place
    key = IMAGES + stream
    return {
        f"videos/{key}/chunk_index": chunk,
        f"videos/{key}/file_index": file,
        f"videos/{key}/from_timestamp": first / rate_hz,
        f"videos/{key}/to_timestamp": (first + length) / rate_hz,
    }


def _info(contents: _ContentsV3) -> dict[str, Any]:
    dataset = contents.dataset
    return {
        "codebase_version": schema.VERSION_V3,
        "robot_type": dataset.options.robot_type,
        "total_episodes": len(dataset.episodes),
        "total_frames": dataset.frames,
        "total_tasks": len(dataset.tasks),
        "chunks_size": CHUNK_FILES,
        "data_files_size_in_mb": DATA_FILE_MB,
        "video_files_size_in_mb": VIDEO_FILE_MB,
        "fps": dataset.rate_hz,
        "splits": {"train": f"0:{len(dataset.episodes)}"},
        "data_path": DATA_FILES,
        "video_path": VIDEO_FILES,
        "features": _features(dataset, contents.encodings, dataset.depth_videos),
    }


LEROBOT = LeRobotFormat()
