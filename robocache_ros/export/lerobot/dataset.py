"""LeRobot datasets, v3.0 (https://github.com/huggingface/lerobot), written with pyarrow and PyAV alone."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robocache_ros.engine.frames import Frames
from robocache_ros.export.dataset_writer import ExportOptions
from robocache_ros.export.lerobot import meta_folder
from robocache_ros.export.lerobot.arrays import ArrayColumn
from robocache_ros.export.lerobot.image_storage import ImageColumn, MediaColumn, VideoColumn
from robocache_ros.export.lerobot.parquet_tables import Table, column
from robocache_ros.export.lerobot.statistics import ColumnFiles
from robocache_ros.export.lerobot.window_columns import WindowColumns
from robocache_ros.extras import need
from robocache_ros.spec.layout import Layout

CODEBASE_VERSION = "v3.0"
CHUNK_FILES = 1000  # files in a folder, as LeRobot has it
DATA_FILE_MB, VIDEO_FILE_MB = 100, 200
WRITE_BYTES = 16 << 20  # of images and voxels that are encoded at once
DATA_PATH = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
VIDEO_PATH = "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"
EPISODES_PATH = "meta/episodes/chunk-000/file-000.parquet"

# Beside what LeRobot knows. Not below `observation.`: there a policy would take them for its input.
TICK, STAMP, VALID, AGE = "robocache.tick_ns", "robocache.stamp_ns", "robocache.valid", "robocache.age_ns"


class LeRobotWriter:
    """Writes a LeRobot v3.0 dataset; each recording is an episode.

    Holds some ticks at a time: rows go to the tables in row groups of bounded size, and the columns of which statistics
    are made go to unnamed files.

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
            "observation.state": [s for s in vectors if s.role == "observation" and not s.rows],
            "action": [s for s in vectors if s.role == "action"],
        }
        self._row = {stream.name: row for row, stream in enumerate(layout.spec.streams)}  # of `valid`
        self._windows = WindowColumns(layout)
        self._data = Table(folder, DATA_PATH, DATA_FILE_MB, CHUNK_FILES)
        self._episodes = Table(folder, EPISODES_PATH, DATA_FILE_MB, CHUNK_FILES)
        self._columns = ColumnFiles(folder)
        self._media: dict[str, MediaColumn] = {}
        self._episode = -1
        self._first = self._total = 0  # rows before this episode, and with it

    @property
    def stored(self) -> dict[str, str]:
        """How each stream of images or voxels is stored, in words."""
        return {name: media.stored for name, media in self._media.items()}

    def begin_episode(self) -> None:
        """Start an episode."""
        self._episode += 1
        self._first = self._total
        for media in self._media.values():
            media.begin_episode()

    def write(self, frames: Frames) -> None:
        """Write the next ticks of the episode."""
        if not self._total:
            self._open_media(frames)
        tick_bytes = sum(tensor[0].nbytes for tensor in frames.media.values() if len(tensor))
        tick_bytes += 8 * self._layout.row_width
        step = max(1, WRITE_BYTES // tick_bytes)
        for start in range(0, len(frames), step):
            self._write_rows(frames[start : start + step])

    def end_episode(self) -> None:
        """Write the episode's last rows and its entry in the table of episodes."""
        place = self._data.end_episode()
        episode: dict[str, Any] = {
            "episode_index": self._episode,
            "tasks": [self._options.task],
            "length": self._total - self._first,
            "data/chunk_index": place[0],
            "data/file_index": place[1],
            "dataset_from_index": self._first,
            "dataset_to_index": self._total,
            "meta/episodes/chunk_index": 0,
            "meta/episodes/file_index": 0,
        }
        stats = {key: self._columns.stats(key, self._first) for key in self._columns.names}
        for media in self._media.values():
            episode.update(media.end_episode())
            stats.update(media.episode_stats())
        for key, values in stats.items():
            episode.update({f"stats/{key}/{name}": value for name, value in values.items()})
        self._episodes.append(need("pyarrow", "export").Table.from_pylist([episode]))

    def finish(self, extra: dict[str, Any]) -> None:
        """Write meta/; `extra` goes into meta/robocache.json."""
        meta = self._folder / "meta"
        (meta / "episodes" / "chunk-000").mkdir(parents=True)
        self._episodes.end_episode()
        stats = {key: self._columns.stats(key) for key in self._columns.names}
        for media in self._media.values():
            stats.update(media.stats())
        self.close(complete=True)
        meta_folder.write_tasks(meta, self._options.task)
        arrays = {k: v for media in self._media.values() for k, v in media.described().items()}
        images = meta_folder.image_contract(self._layout.spec, self.stored)
        meta_folder.write_json(meta / "robocache.json", {**extra, "images": images, "arrays": arrays})
        meta_folder.write_json(meta / "stats.json", stats)
        meta_folder.write_json(meta / "info.json", self._info())

    def close(self, *, complete: bool = False) -> None:
        """Release the files that are open."""
        with ExitStack() as stack:  # each is closed, whatever another raises
            stack.callback(self._columns.close)
            for table in (self._data, self._episodes):
                stack.callback(table.close)
            for media in self._media.values():
                stack.callback(media.close, complete=complete)

    def _write_rows(self, frames: Frames) -> None:
        rows = np.arange(self._total, self._total + len(frames))
        columns = self._aligned(frames)
        columns["timestamp"] = ((rows - self._first) / self._rate_hz).astype(np.float32)
        columns["frame_index"] = rows - self._first
        columns["episode_index"] = np.full(len(rows), self._episode)
        columns["index"] = rows
        columns["task_index"] = np.zeros(len(rows), np.int64)
        arrays = {key: column(values) for key, values in columns.items()}
        stamps = frames.stamps_ns
        for index, stream in enumerate(self._layout.spec.streams):
            if stream.name in self._media:
                used = np.where(frames.valid[:, index] > 0, stamps[:, index], -1)
                arrays.update(self._media[stream.name].write(frames.media[stream.name], used))
        self._data.append(need("pyarrow", "export").table(arrays))
        self._columns.append({**columns, **self._counted(columns, frames.valid)})
        self._total += len(rows)

    def _aligned(self, frames: Frames) -> dict[str, NDArray[Any]]:
        """What the engine gives, by column."""
        fused = frames.fused.numpy()
        latency = np.array([s.latency_ns for s in self._layout.spec.streams])
        columns: dict[str, NDArray[Any]] = {}
        for key, streams in self._vectors.items():
            if streams:
                columns[key] = np.concatenate([fused[:, self._layout.slots[s.name]] for s in streams], axis=1)
        columns.update(self._windows.columns(frames))
        columns[TICK] = frames.ticks_ns
        stamps = frames.stamps_ns + latency  # as the message had it, so that a bag can be asked
        columns[STAMP] = np.where(frames.valid > 0, stamps, 0)
        columns[VALID] = frames.valid.astype(np.int64)
        columns[AGE] = frames.age_ns
        return columns

    def _counted(self, columns: dict[str, NDArray[Any]], valid: NDArray[np.uint8]) -> dict[str, NDArray[Any]]:
        """The values that count into the statistics: NaN where a stream has none, which the dataset stores as zeros."""
        counted = {}
        for key, streams in self._vectors.items():
            if streams:
                missing = [np.repeat(valid[:, self._row[s.name], None] == 0, s.width, axis=1) for s in streams]
                counted[key] = np.where(np.concatenate(missing, axis=1), np.float32(np.nan), columns[key])
        return counted

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
        episodes = self._episode + 1
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
        features.update(self._windows.features())
        for media in self._media.values():
            features.update(media.features())
        features[TICK] = {"dtype": "int64", "shape": [1], "names": None}
        for key in (STAMP, VALID, AGE):
            features[key] = {"dtype": "int64", "shape": [len(names)], "names": names}
        features["timestamp"] = {"dtype": "float32", "shape": [1], "names": None}
        for key in ("frame_index", "episode_index", "index", "task_index"):
            features[key] = {"dtype": "int64", "shape": [1], "names": None}
        return features
