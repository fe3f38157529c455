"""Writes the piece of a LeRobot dataset from one recording: tables, videos and columns, with indexes from zero.

data.parquet              the rows; a row group contains one episode
arrays/<stream>.parquet   voxels and depth images
<feature>.mp4             a video of all rows
columns/<column>          raw values for the statistics of the dataset
lerobot.json              the episodes with their statistics, and the contents of the files above
"""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robocache_ros.engine.frames import Frames
from robocache_ros.export.dataset_writer import ExportOptions
from robocache_ros.export.lerobot.arrays import ArrayColumn
from robocache_ros.export.lerobot.image_storage import ImageColumn, MediaColumn, VideoColumn
from robocache_ros.export.lerobot.parquet_tables import Table, column
from robocache_ros.export.lerobot.statistics import ColumnFiles, Stats
from robocache_ros.export.lerobot.window_columns import WindowColumns
from robocache_ros.extras import need
from robocache_ros.spec import StreamSpec
from robocache_ros.spec.layout import Layout

WRITE_BYTES = 16 << 20  # bytes of images and voxels encoded at once
DATA_FILE, COLUMNS_FOLDER, SUMMARY_FILE = "data.parquet", "columns", "lerobot.json"

# In addition to the LeRobot columns. Not below `observation.`, where a policy would use them as input.
TICK, STAMP, VALID, AGE = "robocache.tick_ns", "robocache.stamp_ns", "robocache.valid", "robocache.age_ns"


def vectors_by_feature(layout: Layout) -> dict[str, list[StreamSpec]]:
    """Return the vector streams of the two LeRobot features, in column order."""
    vectors = layout.spec.vectors
    return {
        "observation.state": [s for s in vectors if s.role == "observation" and not s.rows],
        "action": [s for s in vectors if s.role == "action"],
    }


class LeRobotPieceWriter:
    """Writes the piece of one recording.

    Memory is bounded: rows are written to the tables in row groups of bounded size, and columns for the statistics are
    written to files.

    Args:
        folder: empty; contains the piece after `finish`.
        layout: the columns of the frames.
        options: media.
    """

    def __init__(self, folder: Path, layout: Layout, options: ExportOptions) -> None:
        self._folder = folder
        self._layout = layout
        self._options = options
        self._rate_hz = layout.spec.rate_hz
        self._vectors = vectors_by_feature(layout)
        self._row = {stream.name: row for row, stream in enumerate(layout.spec.streams)}  # row of `valid`
        self._windows = WindowColumns(layout)
        self._data = Table(folder, DATA_FILE)
        self._columns = ColumnFiles(folder / COLUMNS_FOLDER)
        self._media: dict[str, MediaColumn] = {}
        self._episodes: list[dict[str, Any]] = []
        self._first = self._total = 0  # number of rows before this episode, and including it

    def begin_episode(self) -> None:
        """Start an episode."""
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
        """Write the last rows of the episode, and store its statistics."""
        self._data.end_episode()
        stats: dict[str, Stats] = self._columns.stats(self._first)
        for media in self._media.values():
            media.end_episode()
            stats.update(media.episode_stats())
        self._episodes.append({"length": self._total - self._first, "stats": stats})

    def finish(self) -> None:
        """Complete the files."""
        self.close(complete=True)
        summary = {
            "episodes": self._episodes,
            "columns": self._columns.described,
            "media": {name: media.summary().to_dict() for name, media in self._media.items()},
        }
        (self._folder / SUMMARY_FILE).write_text(json.dumps(summary), encoding="utf-8")

    def close(self, *, complete: bool = False) -> None:
        """Close the open files."""
        with ExitStack() as stack:  # closes each file, even if another raises
            stack.callback(self._columns.close)
            stack.callback(self._data.close)
            for media in self._media.values():
                stack.callback(media.close, complete=complete)

    def _write_rows(self, frames: Frames) -> None:
        rows = np.arange(self._total, self._total + len(frames))
        columns = self._aligned(frames)
        columns["timestamp"] = ((rows - self._first) / self._rate_hz).astype(np.float32)
        columns["frame_index"] = rows - self._first
        columns["episode_index"] = np.full(len(rows), len(self._episodes))
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
        """Return the output of the engine by column."""
        fused = frames.fused.numpy()
        latency = np.array([s.latency_ns for s in self._layout.spec.streams])
        columns: dict[str, NDArray[Any]] = {}
        for key, streams in self._vectors.items():
            if streams:
                columns[key] = np.concatenate([fused[:, self._layout.slots[s.name]] for s in streams], axis=1)
        columns.update(self._windows.columns(frames))
        columns[TICK] = frames.ticks_ns
        stamps = frames.stamps_ns + latency  # as in the message, for lookups in the bag
        columns[STAMP] = np.where(frames.valid > 0, stamps, 0)
        columns[VALID] = frames.valid.astype(np.int64)
        columns[AGE] = frames.age_ns
        return columns

    def _counted(self, columns: dict[str, NDArray[Any]], valid: NDArray[np.uint8]) -> dict[str, NDArray[Any]]:
        """Return the values for the statistics: NaN for missing values, which the dataset stores as zeros."""
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
                self._media[name] = VideoColumn(self._folder, key, self._rate_hz)
            elif picture:
                self._media[name] = ImageColumn(key)
            else:
                self._media[name] = ArrayColumn(self._folder, stream)
            self._media[name].begin_episode()
