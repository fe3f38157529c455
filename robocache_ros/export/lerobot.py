"""LeRobot datasets, v3.0 (https://github.com/huggingface/lerobot), written with pyarrow and PyAV alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robocache_ros.engine.frames import Frames
from robocache_ros.export import statistics
from robocache_ros.export.arrays import ArrayColumn
from robocache_ros.export.media import ImageColumn, MediaColumn, VideoColumn
from robocache_ros.export.statistics import Stats
from robocache_ros.export.tables import Table, column
from robocache_ros.export.writer import ExportOptions
from robocache_ros.extras import need
from robocache_ros.layout import Layout

CODEBASE_VERSION = "v3.0"
CHUNK_FILES = 1000  # files in a folder, as LeRobot has it
DATA_FILE_MB, VIDEO_FILE_MB = 100, 200
DATA_PATH = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
VIDEO_PATH = "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"
EPISODES_PATH = "meta/episodes/chunk-000/file-000.parquet"

# Beside what LeRobot knows. Not below `observation.`: there a policy would take them for its input.
TICK, STAMP, VALID, AGE = "robocache.tick_ns", "robocache.stamp_ns", "robocache.valid", "robocache.age_ns"


class LeRobotWriter:
    """Writes a LeRobot v3.0 dataset; each recording is an episode.

    Args:
        folder: empty; becomes the dataset.
        layout: the columns of the frames.
        options: task, robot, media.
    """

    def __init__(self, folder: Path, layout: Layout, options: ExportOptions) -> None:
        self._folder = folder
        self._layout = layout
        self._options = options
        self._rate_hz = layout.spec.rate_hz
        vectors = layout.spec.vectors
        self._vectors = {
            "observation.state": [s for s in vectors if s.role == "observation"],
            "action": [s for s in vectors if s.role == "action"],
        }
        self._data = Table(folder, DATA_PATH, DATA_FILE_MB, CHUNK_FILES)
        self._media: dict[str, MediaColumn] = {}
        self._episodes: list[dict[str, Any]] = []
        self._kept: dict[str, list[NDArray[Any]]] = {}  # every column so far, for the statistics
        self._parts: list[Frames] = []
        self._total = 0

    def begin_episode(self) -> None:
        """Start an episode."""
        self._parts = []
        for media in self._media.values():
            media.begin_episode()

    def write(self, frames: Frames) -> None:
        """The next ticks of the episode; images and voxels are written at once, columns when it ends."""
        if not self._parts and not self._episodes:
            self._open_media(frames)
        stamps = frames.stamps_ns
        for index, stream in enumerate(self._layout.spec.streams):
            if stream.name in self._media:
                used = np.where(frames.valid[:, index] > 0, stamps[:, index], -1)
                self._media[stream.name].write(frames.media[stream.name], used)
        self._parts.append(Frames(frames.ticks_ns, frames.fused, frames.valid, frames.age_ns, {}))

    def end_episode(self) -> None:
        """Write the episode's columns."""
        columns = self._columns()
        length, index = len(columns[TICK]), len(self._episodes)
        numbers = np.arange(length)
        columns["timestamp"] = (numbers / self._rate_hz).astype(np.float32)
        columns["frame_index"] = numbers
        columns["episode_index"] = np.full(length, index)
        columns["index"] = numbers + self._total
        columns["task_index"] = np.zeros(length, np.int64)
        pyarrow = need("pyarrow", "export")
        arrays = {key: column(values) for key, values in columns.items()}
        for stream in self._media.values():
            arrays.update(stream.arrays(pyarrow))
        place = self._data.write(arrays)
        episode: dict[str, Any] = {
            "episode_index": index,
            "tasks": [self._options.task],
            "length": length,
            "data/chunk_index": place[0],
            "data/file_index": place[1],
            "dataset_from_index": self._total,
            "dataset_to_index": self._total + length,
            "meta/episodes/chunk_index": 0,
            "meta/episodes/file_index": 0,
        }
        stats = {key: statistics.of_columns(values) for key, values in columns.items()}
        for media in self._media.values():
            episode.update(media.end_episode())
            stats.update(media.episode_stats())
        for key, values in stats.items():
            episode.update({f"stats/{key}/{name}": value for name, value in values.items()})
        self._episodes.append(episode)
        for key, kept in columns.items():
            self._kept.setdefault(key, []).append(kept)
        self._total += length
        self._parts = []

    def finish(self, extra: dict[str, Any]) -> None:
        """Write meta/; `extra` goes into meta/robocache.json."""
        self.close(whole=True)
        meta = self._folder / "meta"
        (meta / "episodes" / "chunk-000").mkdir(parents=True)
        pyarrow = need("pyarrow", "export")
        parquet = need("pyarrow.parquet", "export")
        parquet.write_table(pyarrow.Table.from_pylist(self._episodes), self._folder / EPISODES_PATH)
        # What pandas writes for a frame with the task as its index: LeRobot looks tasks up by that index.
        tasks = pyarrow.table({"task_index": np.zeros(1, np.int64), "task": [self._options.task]})
        pandas = {
            "index_columns": ["task"],
            "column_indexes": [],
            "columns": [
                {"name": "task_index", "field_name": "task_index", "pandas_type": "int64", "numpy_type": "int64"},
                {"name": "task", "field_name": "task", "pandas_type": "unicode", "numpy_type": "object"},
            ],
        }
        tasks = tasks.replace_schema_metadata({"pandas": json.dumps(pandas)})
        parquet.write_table(tasks, meta / "tasks.parquet")
        _write_json(meta / "info.json", self._info())
        _write_json(meta / "stats.json", self._stats())
        arrays = {k: v for media in self._media.values() for k, v in media.described().items()}
        _write_json(meta / "robocache.json", {**extra, "arrays": arrays})

    def close(self, *, whole: bool = False) -> None:
        """Release the files that are open."""
        self._data.close()
        for media in self._media.values():
            media.close(whole=whole)

    def _columns(self) -> dict[str, NDArray[Any]]:
        parts = self._parts
        fused = np.concatenate([part.fused.numpy() for part in parts])
        valid = np.concatenate([part.valid for part in parts])
        latency = np.array([s.latency_ns for s in self._layout.spec.streams])
        stamps = np.concatenate([part.stamps_ns for part in parts])
        columns: dict[str, NDArray[Any]] = {}
        for key, streams in self._vectors.items():
            if streams:
                columns[key] = np.concatenate([fused[:, self._layout.slots[s.name]] for s in streams], axis=1)
        columns[TICK] = np.concatenate([part.ticks_ns for part in parts])
        columns[STAMP] = np.where(valid > 0, stamps + latency, 0)  # as the message had it, so that a bag can be asked
        columns[VALID] = valid.astype(np.int64)
        columns[AGE] = np.concatenate([part.age_ns for part in parts])
        return columns

    def _open_media(self, frames: Frames) -> None:
        for name, tensor in frames.media.items():
            stream = self._layout.spec.stream(name)
            if stream.kind == "image" and self._options.media == "none":
                continue
            picture = stream.kind == "image" and tensor.dtype.itemsize == 1
            key = f"observation.images.{name}"
            if picture and self._options.media == "video":
                self._media[name] = VideoColumn(self._folder, key, self._rate_hz, VIDEO_PATH, VIDEO_FILE_MB)
            elif picture:
                self._media[name] = ImageColumn(key)
            else:
                self._media[name] = ArrayColumn(self._folder, stream)
            self._media[name].begin_episode()

    def _info(self) -> dict[str, Any]:
        episodes = len(self._episodes)
        return {
            "codebase_version": CODEBASE_VERSION,
            "robot_type": self._options.robot_type,
            "total_episodes": episodes,
            "total_frames": self._total,
            "total_tasks": 1,
            "chunks_size": CHUNK_FILES,
            "data_files_size_in_mb": DATA_FILE_MB,
            "video_files_size_in_mb": VIDEO_FILE_MB,
            "fps": self._rate_hz,
            "splits": {"train": f"0:{episodes}"},
            "data_path": DATA_PATH,
            "video_path": VIDEO_PATH,
            "features": self._features(),
        }

    def _features(self) -> dict[str, Any]:
        names = [stream.name for stream in self._layout.spec.streams]
        features: dict[str, Any] = {}
        for key, streams in self._vectors.items():
            labels = [f"{s.name}.{component}" for s in streams for component in s.components]
            if labels:
                features[key] = {"dtype": "float32", "shape": [len(labels)], "names": labels}
        for media in self._media.values():
            features.update(media.features())
        features[TICK] = {"dtype": "int64", "shape": [1], "names": None}
        for key in (STAMP, VALID, AGE):
            features[key] = {"dtype": "int64", "shape": [len(names)], "names": names}
        features["timestamp"] = {"dtype": "float32", "shape": [1], "names": None}
        for key in ("frame_index", "episode_index", "index", "task_index"):
            features[key] = {"dtype": "int64", "shape": [1], "names": None}
        return features

    def _stats(self) -> dict[str, Stats]:
        stats = {key: statistics.of_columns(np.concatenate(parts)) for key, parts in self._kept.items()}
        for media in self._media.values():
            stats.update(media.stats())
        return stats


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False), encoding="utf-8")
