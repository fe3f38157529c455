"""LeRobot datasets, v2.1, with the files that GR00T reads: meta/modality.json and meta/stats.json."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robocache_ros.export.dataset.episode import Episode
from robocache_ros.export.dataset.exported_dataset import IMAGES, ExportedDataset
from robocache_ros.export.dataset.features import ACTION, STATE
from robocache_ros.export.export_options import ExportOptions
from robocache_ros.export.formats.file_tasks import FileTask, WrittenByTasks, group_tasks, row_bytes
from robocache_ros.export.formats.lerobot import meta_folder
from robocache_ros.export.formats.lerobot.arrays import array_tasks, described_arrays
from robocache_ros.export.formats.lerobot.openpi_statistics import write_norm_stats
from robocache_ros.export.formats.lerobot.parquet_tables import Table
from robocache_ros.export.formats.lerobot.row_tables import REWARD, RowTables, standard_columns
from robocache_ros.export.media.copied_video import copied_or
from robocache_ros.export.media.picture_writer import VIDEO
from robocache_ros.export.statistics import Stats, of_columns
from robocache_ros.spec import FusionSpec, StreamSpec

CODEBASE_VERSION = "v2.1"
CHUNK_EPISODES = 1000  # episodes per folder, as in LeRobot
DATA_PATH = "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet"
VIDEO_PATH = "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4"
ANNOTATION = "human.action.task_description"  # GR00T's name for the index of the task
SHORT_ANNOTATION = "human.task_description"  # the name in GR00T's examples for new robots
ANNOTATION_COLUMN = f"annotation.{ANNOTATION}"
EPISODE_STATS = ("min", "max", "mean", "std", "count")  # that LeRobot v2.1 has
GR00T_STATS = ("mean", "std", "min", "max", "q01", "q99")  # GR00T indexes each of them by column, so no count


class LeRobotV21Format(WrittenByTasks):
    """LeRobot v2.1."""

    name = "lerobot21"
    title = "LeRobot v2.1, also for GR00T and openpi"
    entry = "meta"
    needs_stats = True

    def check(self, spec: FusionSpec, options: ExportOptions) -> None:
        """Accept every spec."""

    def encoding(self, stream: StreamSpec, options: ExportOptions) -> str | None:
        """Store images as H.264 video, because GR00T's decoders do not read AV1, or as PNG."""
        return {"video": copied_or(stream, options, "h264"), "image": "png"}.get(options.media)

    def tasks(self, dataset: ExportedDataset) -> list[FileTask]:
        """Return the tasks: the rows and the videos of some episodes each, and the arrays of each stream."""
        of_row = row_bytes(dataset, _Contents(dataset).encodings)
        return [*group_tasks(dataset, of_row, _write_episodes), *array_tasks(dataset, CHUNK_EPISODES)]

    def finish(self, dataset: ExportedDataset, folder: Path, results: Sequence[Any]) -> None:
        """Write the folder meta. Its info.json, by which LeRobot recognizes the dataset, is written last."""
        contents, meta = _Contents(dataset), folder / "meta"
        meta.mkdir()
        _write_lines(meta / "tasks.jsonl", ({"task_index": k, "task": task} for k, task in enumerate(dataset.tasks)))
        _write_lines(
            meta / "episodes.jsonl",
            ({"episode_index": e.index, "tasks": [e.task], "length": e.length} for e in dataset.episodes),
        )
        stats = (_episode_stats(contents, episode) for episode in dataset.episodes)
        _write_lines(meta / "episodes_stats.jsonl", ({"episode_index": k, "stats": of} for k, of in enumerate(stats)))
        meta_folder.write_json(meta / "modality.json", contents.modality())
        meta_folder.write_json(meta / "stats.json", contents.gr00t_stats())
        write_norm_stats(meta, dataset.stats)
        meta_folder.write_provenance(meta, dataset, contents.encodings, described_arrays(dataset))
        meta_folder.write_json(meta / "info.json", contents.info())


def _write_episodes(dataset: ExportedDataset, folder: Path, group: range) -> None:
    """Write the rows and the videos of some episodes."""
    encodings = _Contents(dataset).encodings
    images = {name: encoding for name, encoding in encodings.items() if encoding not in VIDEO}
    # GR00T expects a list also where a vector has one value.
    tables = RowTables(dataset, images, lists=(STATE, ACTION), image_types=True)
    for episode in map(dataset.episodes.__getitem__, group):
        place = {"episode_chunk": episode.index // CHUNK_EPISODES, "episode_index": episode.index}
        with closing(Table(folder, DATA_PATH.format(**place))) as table:
            for rows in tables.parts(episode, _own_columns(dataset, episode)):
                table.append(rows)
            table.end_episode()
        for name, encoding in encodings.items():
            if encoding in VIDEO:
                path = folder / VIDEO_PATH.format(video_key=IMAGES.format(name), **place)
                path.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(episode.video(name, encoding), path)


def _own_columns(dataset: ExportedDataset, episode: Episode) -> dict[str, NDArray[Any]]:
    """Return the columns that LeRobot and GR00T define."""
    return {**standard_columns(dataset, episode), ANNOTATION_COLUMN: np.full(episode.length, episode.task_index)}


def _episode_stats(contents: _Contents, episode: Episode) -> dict[str, Stats]:
    """Return the statistics of an episode."""
    own = _own_columns(contents.dataset, episode)
    stats = {**episode.stats, **{name: of_columns(values) for name, values in own.items()}}
    stats.update({IMAGES.format(name): episode.histogram(name).stats() for name in contents.encodings})
    return {name: {key: values[key] for key in EPISODE_STATS} for name, values in stats.items()}


class _Contents:
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
            stats[REWARD] = of_columns(*(episode.rewards for episode in self.dataset.episodes))
        return {name: {key: values[key] for key in GR00T_STATS} for name, values in stats.items()}

    def modality(self) -> dict[str, Any]:
        """Return the streams in the vectors, the cameras and the annotations, under the names that GR00T uses."""
        dataset = self.dataset
        videos = [name for name, encoding in self.encodings.items() if encoding in VIDEO]
        return {
            "state": _spans(dataset.state),
            "action": self._actions(),
            "video": {name: {"original_key": IMAGES.format(name)} for name in videos},
            "annotation": {ANNOTATION: {}, SHORT_ANNOTATION: {"original_key": "task_index"}},
        }

    def _actions(self) -> dict[str, dict[str, Any]]:
        """Return the spans of the actions. GR00T pads deltas with zeros, and others with the last action."""
        spans = _spans(self.dataset.actions)
        for stream in self.dataset.actions:
            if (stream.label or self.dataset.options.action).endswith("delta"):
                spans[stream.name]["absolute"] = False
        return spans

    def info(self) -> dict[str, Any]:
        """Return info.json."""
        dataset = self.dataset
        episodes = len(dataset.episodes)
        features = meta_folder.features(dataset, self.encodings)
        features[ANNOTATION_COLUMN] = {"dtype": "int64", "shape": [1], "names": None}
        return {
            "codebase_version": CODEBASE_VERSION,
            "robot_type": dataset.options.robot_type,
            "total_episodes": episodes,
            "total_frames": dataset.frames,
            "total_tasks": len(dataset.tasks),
            "total_videos": episodes * sum(encoding in VIDEO for encoding in self.encodings.values()),
            "total_chunks": -(-episodes // CHUNK_EPISODES),
            "chunks_size": CHUNK_EPISODES,
            "fps": dataset.rate_hz,
            "splits": {"train": f"0:{episodes}"},
            "data_path": DATA_PATH,
            "video_path": VIDEO_PATH,
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
