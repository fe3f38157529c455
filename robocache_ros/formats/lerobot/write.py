"""Write LeRobot datasets: v2.1 with a file per episode, and v3.0 with large files."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robocache_ros.extras import need
from robocache_ros.formats.dataset import Episode, ExportedDataset
from robocache_ros.formats.lerobot import schema
from robocache_ros.formats.lerobot.arrays import array_tasks, described_arrays
from robocache_ros.formats.lerobot.openpi import write_norm_stats
from robocache_ros.formats.parquet import CHUNK_FILES, DATA_FILE_MB, DATA_FILES, column, write_table
from robocache_ros.formats.pictures import VIDEO, copied_or, video_or_png
from robocache_ros.formats.read import ACTION, AGE, IMAGES, STAMP, STATE, TICK, VALID
from robocache_ros.formats.statistics import Stats, of_columns
from robocache_ros.formats.video import DEPTH_VIDEO, VIDEO_FILE_MB, VIDEO_FILES, join_video, joined_files
from robocache_ros.formats.write import FileTask, WrittenByTasks, group_tasks, image_contract, media_bytes, row_bytes
from robocache_ros.spec import StreamSpec
from robocache_ros.spec.dataset import DatasetOptions

PART_BYTES = 16 << 20  # rows that are read at once


# What follows the action of a row: the type of a column, what has to be known of the episodes for it, and its values.
_OUTCOMES: dict[str, tuple[str, str, Callable[[Episode], NDArray[Any]]]] = {
    schema.REWARD: ("float32", "reward", lambda episode: episode.rewards),
    schema.DONE: ("bool", "reward", lambda episode: np.arange(episode.length) == episode.length - 1),
    schema.SUCCESS: ("bool", "success", lambda episode: episode.successes),
    schema.INTERVENTION: ("bool", "intervention", lambda episode: episode.interventions),
}


def standard_columns(episode: Episode) -> dict[str, NDArray[Any]]:
    """Return the columns that LeRobot defines for an episode."""
    rows, known = np.arange(episode.length), episode.dataset.outcomes
    return {
        **{name: values(episode) for name, (_, needed, values) in _OUTCOMES.items() if needed in known},
        "timestamp": (rows / episode.dataset.rate_hz).astype(np.float32),
        "frame_index": rows,
        "episode_index": np.full(episode.length, episode.index),
        "index": episode.first_row + rows,
        "task_index": np.full(episode.length, episode.task_index),
    }


def row_tables(
    episode: Episode,
    images: Mapping[str, str],
    own: Mapping[str, NDArray[Any]],
    *,
    lists: Sequence[str] = (),
    image_types: bool = False,
) -> Iterator[Any]:
    """Yield the rows of an episode in tables of bounded size.

    Args:
        episode: the episode.
        images: encoding, png, by stream of images that are stored in the table.
        own: columns after those of the dataset.
        lists: vectors that are lists also if they have one value. By default such a vector is a plain column.
        image_types: state in the table that `datasets.Image` reads the images, for readers that do not use info.json.
    """
    pyarrow = need("pyarrow", "export")
    kinds = {IMAGES + name: {"_type": "Image"} for name in images} if image_types else {}
    metadata = {"huggingface": json.dumps({"info": {"features": kinds}})} if kinds else None
    stored = {name: episode.images(name, encoding) for name, encoding in images.items()}
    sizes = np.full(episode.length, 8 * episode.layout.row_width) + sum(media.sizes for media in stored.values())

    def table(rows: slice) -> Any:
        part = {name: values[rows] for name, values in episode.rows.items()}
        columns = {name: feature.values(part) for name, feature in episode.dataset.features.items()}
        columns.update({name: values[rows] for name, values in own.items()})
        made = {name: column(values, as_list=name in lists) for name, values in columns.items()}
        for name, media in stored.items():
            files = [{"bytes": media[row], "path": None} for row in range(rows.start, rows.stop)]
            kind = pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())])
            made[IMAGES + name] = pyarrow.array(files, kind)  # as `datasets.Image` reads it
        return pyarrow.table(made).replace_schema_metadata(metadata)

    start = size = 0
    for row, of_row in enumerate(sizes.tolist()):
        if start < row and size + of_row > PART_BYTES:
            yield table(slice(start, row))
            start, size = row, 0
        size += of_row
    yield table(slice(start, episode.length))


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


class _Contents:
    """What a format stores of each stream of images: the encoding of each, and which of them are videos."""

    def __init__(self, dataset: ExportedDataset, format_: WrittenByTasks, depth_videos: Sequence[str] = ()) -> None:
        self.dataset, self.depth_videos = dataset, depth_videos
        self.encodings = dataset.encodings(format_.encoding)
        self.images = {name: encoding for name, encoding in self.encodings.items() if encoding not in VIDEO}
        self.videos = {name: codec for name, codec in self.encodings.items() if codec in VIDEO}
        self.videos.update(dict.fromkeys(depth_videos, DEPTH_VIDEO))

    def write_provenance(self, folder: Path) -> None:
        """Write robocache.json: where the dataset is from, and how its images and arrays are stored."""
        dataset, arrays = self.dataset, described_arrays(self.dataset, self.depth_videos)
        names = [stream.name for stream in dataset.spec.media if stream.name not in arrays]
        stored = {name: dataset.stored(name, self.encodings.get(name)) for name in names}
        images = image_contract(dataset.spec, {**stored, **dict.fromkeys(arrays, "arrays, lossless")})
        _write_json(folder / schema.PROVENANCE, {**dataset.provenance, "images": images, "arrays": arrays})

    def write_info(self, folder: Path, version: str, data: str, videos: str, **own: Any) -> None:
        """Write info.json, by which LeRobot recognizes the dataset; `own`: what it states in this version only."""
        dataset, episodes = self.dataset, len(self.dataset.episodes)
        features = self._features()
        if version == schema.VERSION_V21:
            features[schema.ANNOTATION_COLUMN] = {"dtype": "int64", "shape": [1], "names": None}
        info = {
            "codebase_version": version,
            "robot_type": dataset.options.robot_type,
            "total_episodes": episodes,
            "total_frames": dataset.frames,
            "total_tasks": len(dataset.tasks),
            **own,
            "fps": dataset.rate_hz,
            "splits": {"train": f"0:{episodes}"},
            "data_path": data,
            "video_path": videos,
            "features": features,
        }
        _write_json(folder / schema.INFO, info)

    def _features(self) -> dict[str, Any]:
        dataset, own = self.dataset, (TICK, STAMP, VALID, AGE)
        engine = {
            name: {"dtype": f.dtype, "shape": list(f.shape), "names": list(f.names) or None}
            for name, f in dataset.features.items()
        }
        found: dict[str, Any] = {name: feature for name, feature in engine.items() if name not in own}
        found |= {IMAGES + name: self._picture(name, encoding) for name, encoding in self.encodings.items()}
        found |= {IMAGES + name: self._depth(name) for name in self.depth_videos}
        found |= {name: engine[name] for name in own}
        outcomes = {name: dtype for name, (dtype, needed, _) in _OUTCOMES.items() if needed in dataset.outcomes}
        for key, dtype in {**outcomes, **schema.STANDARD}.items():
            found[key] = {"dtype": dtype, "shape": [1], "names": None}
        return found

    def _picture(self, stream: str, encoding: str) -> dict[str, Any]:
        picture = self.dataset.pictures[stream]
        if encoding not in VIDEO:
            return _image_feature("image", (*picture.shape, 3))
        stated = {"video.codec": picture.codecs[encoding], "video.pix_fmt": picture.pixel_formats[encoding]}
        return self._video((*picture.shape, 3), {**stated, "video.is_depth_map": False})

    def _depth(self, stream: str) -> dict[str, Any]:
        """Return the feature of a depth video. LeRobot computes depths from codes with these parameters."""
        info = self.dataset.arrays[stream]
        feature = self._video((*info.shape[1:], 1), {"video.codec": DEPTH_VIDEO, "video.pix_fmt": schema.DEPTH_PIXELS})
        feature["info"] |= {"is_depth_map": True, "depth_unit": info.depth_unit, **schema.DEPTH_CODES}
        return feature

    def _video(self, shape: Sequence[int], codec: Mapping[str, Any]) -> dict[str, Any]:
        stated = {"video.height": shape[0], "video.width": shape[1], **codec, "video.fps": self.dataset.rate_hz}
        return {**_image_feature("video", shape), "info": {**stated, "video.channels": shape[2], "has_audio": False}}


def _image_feature(dtype: str, shape: Sequence[int]) -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape), "names": ["height", "width", "channels"]}


EPISODE_STATS = ("min", "max", "mean", "std", "count")  # that LeRobot v2.1 has


class _LeRobotV21Format(WrittenByTasks):
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
        of_row = row_bytes(dataset, dataset.encodings(self.encoding))
        return [*group_tasks(dataset, of_row, _write_episodes_v21), *array_tasks(dataset, schema.CHUNK_EPISODES)]

    def finish(self, dataset: ExportedDataset, folder: Path, results: Sequence[Any]) -> None:
        contents, episodes = _Contents(dataset, self), dataset.episodes
        (folder / "meta").mkdir()
        lines = {
            schema.TASKS_V21: ({"task_index": k, "task": task} for k, task in enumerate(dataset.tasks)),
            schema.EPISODES_V21: ({"episode_index": e.index, "tasks": [e.task], "length": e.length} for e in episodes),
            schema.EPISODES_STATS: (
                {"episode_index": e.index, "stats": _episode_stats(e, contents.encodings)} for e in episodes
            ),
        }
        for name, values in lines.items():
            with (folder / name).open("w", encoding="utf-8") as file:
                file.writelines(json.dumps(value, ensure_ascii=False) + "\n" for value in values)
        _write_json(folder / schema.MODALITY, _modality(contents))
        _write_json(folder / schema.STATS, _gr00t_stats(dataset))
        write_norm_stats(folder, dataset.stats)
        contents.write_provenance(folder)
        own = {
            "total_videos": len(episodes) * len(contents.videos),
            "total_chunks": -(-len(episodes) // schema.CHUNK_EPISODES),
            "chunks_size": schema.CHUNK_EPISODES,
        }
        contents.write_info(folder, schema.VERSION_V21, schema.DATA_PATH_V21, schema.VIDEO_PATH_V21, **own)


def _write_episodes_v21(dataset: ExportedDataset, folder: Path, group: range) -> None:
    """Write the rows and the videos of some episodes."""
    contents = _Contents(dataset, LEROBOT21)
    for episode in map(dataset.episodes.__getitem__, group):
        place = {"episode_chunk": episode.index // schema.CHUNK_EPISODES, "episode_index": episode.index}
        own = _columns_v21(episode)
        # GR00T expects a list also where a vector has one value.
        rows = row_tables(episode, contents.images, own, lists=(STATE, ACTION), image_types=True)
        write_table(folder, schema.DATA_PATH_V21.format(**place), [rows])
        for name, codec in contents.videos.items():
            path = folder / schema.VIDEO_PATH_V21.format(video_key=IMAGES + name, **place)
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(episode.video(name, codec), path)


def _columns_v21(episode: Episode) -> dict[str, NDArray[Any]]:
    """Return the columns that LeRobot and GR00T define."""
    columns = standard_columns(episode)
    return {**columns, schema.ANNOTATION_COLUMN: columns["task_index"]}


def _episode_stats(episode: Episode, pictures: Iterable[str]) -> dict[str, Stats]:
    stats = {**episode.stats, **{name: of_columns(values) for name, values in _columns_v21(episode).items()}}
    stats.update({IMAGES + name: episode.histogram(name).stats() for name in pictures})
    return {name: {key: values[key] for key in EPISODE_STATS} for name, values in stats.items()}


def _gr00t_stats(dataset: ExportedDataset) -> dict[str, Stats]:
    """Return the statistics of all float features. GR00T recomputes the file if one of them is missing."""
    timestamps = [(np.arange(n) / dataset.rate_hz).astype(np.float32) for n in dataset.episodes.lengths]
    stats = {name: dataset.stats[name] for name, f in dataset.features.items() if f.dtype == "float32"}
    stats["timestamp"] = of_columns(*timestamps)
    if "reward" in dataset.outcomes:
        stats[schema.REWARD] = of_columns(*(episode.rewards for episode in dataset.episodes))
    return {name: {key: values[key] for key in schema.GR00T_STATS} for name, values in stats.items()}


def _modality(contents: _Contents) -> dict[str, Any]:
    """Return the streams in the vectors, the cameras and the annotations, under the names that GR00T uses."""
    dataset = contents.dataset
    actions = _spans(dataset.actions)
    for stream in dataset.actions:
        if (stream.label or dataset.options.action).endswith("delta"):  # padded with zeros, not with the last action
            actions[stream.name]["absolute"] = False
    return {
        "state": _spans(dataset.state),
        "action": actions,
        "video": {name: {"original_key": IMAGES + name} for name in contents.videos},
        "annotation": {schema.ANNOTATION: {}, schema.SHORT_ANNOTATION: {"original_key": "task_index"}},
    }


def _spans(streams: Sequence[StreamSpec]) -> dict[str, dict[str, Any]]:
    """Return the first column and the one after the last of each stream."""
    ends = accumulate(stream.width for stream in streams)
    return {stream.name: {"start": end - stream.width, "end": end} for stream, end in zip(streams, ends, strict=True)}


LEROBOT21 = _LeRobotV21Format()

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
        contents = _Contents(dataset, self, dataset.depth_videos)
        return [
            FileTask("data", dataset.frames * row_bytes(dataset, contents.images), _write_data),
            *(
                FileTask(
                    f"videos/{name}, file {file}",
                    sum(dataset.episodes.lengths[group.start : group.stop]) * media_bytes(dataset, name),
                    partial(_write_video, name=name, codec=codec, file=file, group=group),
                )
                for name, codec in contents.videos.items()
                for file, group in enumerate(_video_files(dataset, name, codec))
            ),
            *array_tasks(dataset, CHUNK_FILES, dataset.depth_videos),
        ]

    def finish(self, dataset: ExportedDataset, folder: Path, results: Sequence[Any]) -> None:
        """Write the folder meta."""
        contents = _Contents(dataset, self, dataset.depth_videos)
        places, of_files = results[0], iter(results[1:])
        videos = {
            name: [place for _ in _video_files(dataset, name, codec) for place in next(of_files)]
            for name, codec in contents.videos.items()
        }
        (folder / "meta" / "episodes" / "chunk-000").mkdir(parents=True)
        write_table(folder, schema.EPISODES_V3, [_episode_rows(contents, places, videos)])
        _write_tasks(folder, dataset.tasks)
        contents.write_provenance(folder)
        write_norm_stats(folder, dataset.stats)
        _write_json(folder / schema.STATS, {**dataset.stats, **_own_stats(dataset)})
        own = {
            "chunks_size": CHUNK_FILES,
            "data_files_size_in_mb": DATA_FILE_MB,
            "video_files_size_in_mb": VIDEO_FILE_MB,
        }
        contents.write_info(folder, schema.VERSION_V3, DATA_FILES, VIDEO_FILES, **own)


def _video_files(dataset: ExportedDataset, name: str, codec: str) -> list[range]:
    """Return which episodes are in each file of a video."""
    return joined_files([episode.video_part(name, codec) for episode in dataset.episodes], VIDEO_FILE_MB)


def _write_data(dataset: ExportedDataset, folder: Path) -> list[DataPlace]:
    """Write the rows; return the place of each episode."""
    images = _Contents(dataset, LEROBOT).images
    rows = (row_tables(episode, images, standard_columns(episode)) for episode in dataset.episodes)
    return write_table(folder, DATA_FILES, rows, DATA_FILE_MB, CHUNK_FILES)


def _write_video(
    dataset: ExportedDataset, folder: Path, name: str, codec: str, file: int, group: range
) -> list[VideoPlace]:
    """Write a video file of a stream; return the place of each episode in it."""
    chunk, number = divmod(file, CHUNK_FILES)
    path = folder / VIDEO_FILES.format(video_key=IMAGES + name, chunk_index=chunk, file_index=number)
    episodes = map(dataset.episodes.__getitem__, group)
    firsts = join_video(path, ((each.video(name, codec), each.length) for each in episodes), dataset.rate_hz)
    return [(chunk, number, first) for first in firsts]


def _own_stats(dataset: ExportedDataset) -> dict[str, Stats]:
    """Return the statistics of the columns that LeRobot defines."""
    parts: dict[str, list[NDArray[Any]]] = {}
    for episode in dataset.episodes:
        for name, values in standard_columns(episode).items():
            parts.setdefault(name, []).append(values)
    return {name: of_columns(*values) for name, values in parts.items()}


def _episode_rows(
    contents: _Contents, places: Sequence[DataPlace], videos: Mapping[str, Sequence[VideoPlace]]
) -> Iterator[Any]:
    """Yield what is known of each episode, as tables of one row."""
    rate_hz = contents.dataset.rate_hz
    for episode in contents.dataset.episodes:
        chunk, file = places[episode.index]
        entry = {
            "episode_index": episode.index,
            "tasks": [episode.task],
            "length": episode.length,
            "data/chunk_index": chunk,
            "data/file_index": file,
            "dataset_from_index": episode.first_row,
            "dataset_to_index": episode.first_row + episode.length,
            "meta/episodes/chunk_index": 0,
            "meta/episodes/file_index": 0,
        }
        for name, of_episodes in videos.items():
            chunk, file, first = of_episodes[episode.index]
            stated = {"chunk_index": chunk, "file_index": file, "from_timestamp": first / rate_hz}
            stated["to_timestamp"] = (first + episode.length) / rate_hz
            entry |= {f"videos/{IMAGES}{name}/{key}": value for key, value in stated.items()}
        own = {name: of_columns(values) for name, values in standard_columns(episode).items()}
        of_media = {IMAGES + name: episode.image_stats(name) for name in {**contents.encodings, **contents.videos}}
        for key, values in {**episode.stats, **own, **of_media}.items():
            entry |= {f"stats/{key}/{name}": value for name, value in values.items()}
        yield need("pyarrow", "export").Table.from_pylist([entry])


LEROBOT = LeRobotFormat()
