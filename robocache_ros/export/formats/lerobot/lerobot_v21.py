"""LeRobot datasets, v2.1, with the files that GR00T reads: meta/modality.json and meta/stats.json."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from robocache_ros.export.dataset.episode import Episode
from robocache_ros.export.dataset.exported_dataset import IMAGES, ExportedDataset
from robocache_ros.export.dataset.features import ACTION, STATE
from robocache_ros.export.export_options import ExportOptions
from robocache_ros.export.formats.lerobot import meta_folder
from robocache_ros.export.formats.lerobot.arrays import write_arrays
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


class LeRobotV21Format:
    """LeRobot v2.1."""

    name = "lerobot21"
    title = "LeRobot v2.1, also for GR00T and openpi"
    entry = "meta"

    def check(self, spec: FusionSpec, options: ExportOptions) -> None:
        """Accept every spec."""

    def encoding(self, stream: StreamSpec, options: ExportOptions) -> str | None:
        """Store images as H.264 video, because GR00T's decoders do not read AV1, or as PNG."""
        return {"video": copied_or(stream, options, "h264"), "image": "png"}.get(options.media)

    def write(self, dataset: ExportedDataset, folder: Path) -> None:
        """Write the dataset. Its meta/info.json, by which LeRobot recognizes it, is written last."""
        _Writer(dataset, folder).write()


class _Writer:
    """Writes one dataset."""

    def __init__(self, dataset: ExportedDataset, folder: Path) -> None:
        self._dataset, self._folder = dataset, folder
        encodings = {name: LEROBOT21.encoding(dataset.spec.stream(name), dataset.options) for name in dataset.pictures}
        self._encodings = {name: encoding for name, encoding in encodings.items() if encoding}
        images = {name: encoding for name, encoding in self._encodings.items() if encoding not in VIDEO}
        # GR00T expects a list also where a vector has one value.
        self._tables = RowTables(dataset, images, lists=(STATE, ACTION), image_types=True)
        self._standard: dict[str, list[Any]] = {}  # parts of the columns that LeRobot defines, for the statistics

    def write(self) -> None:
        dataset, meta = self._dataset, self._folder / "meta"
        meta.mkdir()
        episodes_stats = []
        first_row = 0
        for episode in dataset.episodes:
            episodes_stats.append({"episode_index": episode.index, "stats": self._write_episode(episode, first_row)})
            first_row += episode.length
        arrays = write_arrays(dataset, self._folder, CHUNK_EPISODES)
        _write_lines(meta / "tasks.jsonl", ({"task_index": k, "task": task} for k, task in enumerate(dataset.tasks)))
        _write_lines(
            meta / "episodes.jsonl",
            ({"episode_index": e.index, "tasks": [e.task], "length": e.length} for e in dataset.episodes),
        )
        _write_lines(meta / "episodes_stats.jsonl", episodes_stats)
        meta_folder.write_json(meta / "modality.json", self._modality())
        meta_folder.write_json(meta / "stats.json", self._gr00t_stats())
        write_norm_stats(meta, dataset.stats)
        meta_folder.write_provenance(meta, dataset, self._encodings, arrays)
        meta_folder.write_json(meta / "info.json", self._info())

    def _write_episode(self, episode: Episode, first_row: int) -> dict[str, Stats]:
        """Write the rows and the videos of an episode; return its statistics."""
        place = {"episode_chunk": episode.index // CHUNK_EPISODES, "episode_index": episode.index}
        own = standard_columns(self._dataset, episode, first_row)
        own[ANNOTATION_COLUMN] = np.full(episode.length, episode.task_index)
        with closing(Table(self._folder, DATA_PATH.format(**place))) as table:
            for rows in self._tables.parts(episode, own):
                table.append(rows)
            table.end_episode()
        stats = {**episode.stats, **{name: of_columns(values) for name, values in own.items()}}
        for name, encoding in self._encodings.items():
            stats[IMAGES.format(name)] = episode.histogram(name).stats()
            if encoding in VIDEO:
                path = self._folder / VIDEO_PATH.format(video_key=IMAGES.format(name), **place)
                path.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(episode.video(name, encoding), path)
        return {name: {key: values[key] for key in EPISODE_STATS} for name, values in stats.items()}

    def _gr00t_stats(self) -> dict[str, Stats]:
        """Return the statistics of all float features. GR00T recomputes the file if one of them is missing."""
        timestamps = [(np.arange(n) / self._dataset.rate_hz).astype(np.float32) for n in self._dataset.episodes.lengths]
        stats = {name: self._dataset.stats[name] for name, f in self._dataset.features.items() if f.dtype == "float32"}
        stats["timestamp"] = of_columns(*timestamps)
        if "reward" in self._dataset.outcomes:
            stats[REWARD] = of_columns(*(episode.rewards for episode in self._dataset.episodes))
        return {name: {key: values[key] for key in GR00T_STATS} for name, values in stats.items()}

    def _modality(self) -> dict[str, Any]:
        """Return the streams in the vectors, the cameras and the annotations, under the names that GR00T uses."""
        dataset = self._dataset
        videos = [name for name, encoding in self._encodings.items() if encoding in VIDEO]
        return {
            "state": _spans(dataset.state),
            "action": self._actions(),
            "video": {name: {"original_key": IMAGES.format(name)} for name in videos},
            "annotation": {ANNOTATION: {}, SHORT_ANNOTATION: {"original_key": "task_index"}},
        }

    def _actions(self) -> dict[str, dict[str, Any]]:
        """Return the spans of the actions. GR00T pads deltas with zeros, and others with the last action."""
        spans = _spans(self._dataset.actions)
        for stream in self._dataset.actions:
            if (stream.label or self._dataset.options.action).endswith("delta"):
                spans[stream.name]["absolute"] = False
        return spans

    def _info(self) -> dict[str, Any]:
        dataset = self._dataset
        episodes = len(dataset.episodes)
        features = meta_folder.features(dataset, self._encodings)
        features[ANNOTATION_COLUMN] = {"dtype": "int64", "shape": [1], "names": None}
        return {
            "codebase_version": CODEBASE_VERSION,
            "robot_type": dataset.options.robot_type,
            "total_episodes": episodes,
            "total_frames": dataset.frames,
            "total_tasks": len(dataset.tasks),
            "total_videos": episodes * sum(encoding in VIDEO for encoding in self._encodings.values()),
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
