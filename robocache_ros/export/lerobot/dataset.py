"""LeRobot datasets, v3.0 (https://github.com/huggingface/lerobot), merged from pieces with pyarrow and PyAV.

The bytes of a dataset depend only on its pieces and their order, not on the time or the number of processes of the
export.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from robocache_ros.export.dataset_writer import DatasetFormat, ExportOptions
from robocache_ros.export.lerobot import meta_folder
from robocache_ros.export.lerobot.arrays import ARRAYS_FILE_MB, ARRAYS_PATH, arrays_file
from robocache_ros.export.lerobot.media_summary import MediaSummary, joined
from robocache_ros.export.lerobot.parquet_tables import Table
from robocache_ros.export.lerobot.piece_writer import (
    AGE,
    COLUMNS_FOLDER,
    DATA_FILE,
    STAMP,
    SUMMARY_FILE,
    TICK,
    VALID,
    LeRobotPieceWriter,
    vectors_by_feature,
)
from robocache_ros.export.lerobot.statistics import Stats, of_columns, stats_of_files
from robocache_ros.export.lerobot.video import JoinedVideo
from robocache_ros.export.lerobot.window_columns import WindowColumns
from robocache_ros.extras import need
from robocache_ros.spec.layout import Layout

CODEBASE_VERSION = "v3.0"
CHUNK_FILES = 1000  # files per folder, as in LeRobot
DATA_FILE_MB, VIDEO_FILE_MB = 100, 200
DATA_PATH = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
VIDEO_PATH = "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"
EPISODES_PATH = "meta/episodes/chunk-000/file-000.parquet"


class LeRobotMerge:
    """Merges the pieces of the recordings into a dataset.

    Args:
        folder: empty; contains the dataset after `write`.
        layout: the columns of the frames.
        options: task, robot.
        pieces: the pieces' folders, in dataset order; a folder may occur several times.
        names: name of the recording of each piece.
    """

    def __init__(
        self, folder: Path, layout: Layout, options: ExportOptions, pieces: Sequence[Path], names: Sequence[str]
    ) -> None:
        self._folder = folder
        self._layout = layout
        self._options = options
        self._rate_hz = layout.spec.rate_hz
        self._pieces = pieces
        self._told = [json.loads((piece / SUMMARY_FILE).read_text(encoding="utf-8")) for piece in pieces]
        of_media = [{n: MediaSummary.from_dict(raw) for n, raw in told["media"].items()} for told in self._told]
        self._media = {name: joined(name, [media[name] for media in of_media], names) for name in of_media[0]}
        self._rows = [sum(episode["length"] for episode in told["episodes"]) for told in self._told]

    @property
    def stored(self) -> dict[str, str]:
        """Describe how each stream of images or voxels is stored."""
        return {name: media.stored for name, media in self._media.items()}

    def write(self, extra: dict[str, Any]) -> None:
        """Write the dataset; `extra` goes into meta/robocache.json."""
        meta = self._folder / "meta"
        (meta / "episodes" / "chunk-000").mkdir(parents=True)
        places = self._write_data()
        self._write_arrays()
        self._write_episodes(places, self._write_videos())
        meta_folder.write_tasks(meta, self._options.task)
        arrays = {
            name: {"path": ARRAYS_PATH.format(name=name), "shape": list(media.shape), "dtype": media.dtype}
            for name, media in self._media.items()
            if media.kind == "arrays"
        }
        images = meta_folder.image_contract(self._layout.spec, self.stored)
        meta_folder.write_json(meta / "robocache.json", {**extra, "images": images, "arrays": arrays})
        meta_folder.write_json(meta / "stats.json", self._stats())
        meta_folder.write_json(meta / "info.json", self._info())

    def _write_data(self) -> list[tuple[int, int]]:
        """Write the renumbered rows; return the chunk and file index of each episode."""
        table = Table(self._folder, DATA_PATH, DATA_FILE_MB, CHUNK_FILES)
        places: list[tuple[int, int]] = []
        first_row = 0
        with closing(table):
            for piece, rows in zip(self._pieces, self._rows, strict=True):
                places += table.append_file(piece / DATA_FILE, {"episode_index": len(places), "index": first_row})
                first_row += rows
        return places

    def _write_arrays(self) -> None:
        for name in (name for name, media in self._media.items() if media.kind == "arrays"):
            table = Table(self._folder, ARRAYS_PATH.format(name=name), ARRAYS_FILE_MB, CHUNK_FILES)
            first_episode = 0
            with closing(table):
                for piece, told in zip(self._pieces, self._told, strict=True):
                    file = piece / arrays_file(name)
                    if file.exists():  # a masked stream may have no arrays
                        table.append_file(file, {"episode_index": first_episode})
                    first_episode += len(told["episodes"])

    def _write_videos(self) -> dict[str, list[tuple[int, int, int]]]:
        """Write the videos; return by feature the chunk, the file and the first frame in it of each piece."""
        places: dict[str, list[tuple[int, int, int]]] = {}
        for media in (media for media in self._media.values() if media.kind == "video"):
            path = VIDEO_PATH.replace("{video_key}", media.key)
            video = JoinedVideo(self._folder, path, self._rate_hz, VIDEO_FILE_MB, CHUNK_FILES)
            with closing(video):
                places[media.key] = [
                    video.append(piece / f"{media.key}.mp4", rows)
                    for piece, rows in zip(self._pieces, self._rows, strict=True)
                ]
        return places

    def _write_episodes(self, places: Sequence[tuple[int, int]], videos: dict[str, list[tuple[int, int, int]]]) -> None:
        table = Table(self._folder, EPISODES_PATH)
        index = row = 0
        with closing(table):
            for number, told in enumerate(self._told):
                within = 0  # rows of the piece before the episode
                for episode in told["episodes"]:
                    entry = self._episode(index, row, episode, places[index])
                    for key, parts in videos.items():
                        entry.update(self._place_in_video(key, parts[number], within, episode["length"]))
                    stats = {**episode["stats"], **_numbered(index, row, episode["length"])}
                    for key, values in stats.items():
                        entry.update({f"stats/{key}/{name}": value for name, value in values.items()})
                    table.append(need("pyarrow", "export").Table.from_pylist([entry]))
                    index, row, within = index + 1, row + episode["length"], within + episode["length"]
            table.end_episode()

    def _episode(self, index: int, row: int, episode: dict[str, Any], place: tuple[int, int]) -> dict[str, Any]:
        return {
            "episode_index": index,
            "tasks": [self._options.task],
            "length": episode["length"],
            "data/chunk_index": place[0],
            "data/file_index": place[1],
            "dataset_from_index": row,
            "dataset_to_index": row + episode["length"],
            "meta/episodes/chunk_index": 0,
            "meta/episodes/file_index": 0,
        }

    def _place_in_video(self, key: str, place: tuple[int, int, int], within: int, length: int) -> dict[str, Any]:
        chunk, file, first = place
        return {
            f"videos/{key}/chunk_index": chunk,
            f"videos/{key}/file_index": file,
            f"videos/{key}/from_timestamp": (first + within) / self._rate_hz,
            f"videos/{key}/to_timestamp": (first + within + length) / self._rate_hz,
        }

    def _stats(self) -> dict[str, Stats]:
        described = self._told[0]["columns"]
        folders = [piece / COLUMNS_FOLDER for piece in self._pieces]
        lengths = [episode["length"] for told in self._told for episode in told["episodes"]]
        columns = {"episode_index": np.repeat(np.arange(len(lengths)), lengths), "index": np.arange(sum(lengths))}
        stats = {
            name: of_columns(columns[name]) if name in columns else stats_of_files(name, described, folders)
            for name in described
        }
        for media in self._media.values():
            stats.update(media.stats())
        return stats

    def _info(self) -> dict[str, Any]:
        episodes = sum(len(told["episodes"]) for told in self._told)
        return {
            "codebase_version": CODEBASE_VERSION,
            "robot_type": self._options.robot_type,
            "total_episodes": episodes,
            "total_frames": sum(self._rows),
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
        for key, streams in vectors_by_feature(self._layout).items():
            labels = [f"{s.name}.{component}" for s in streams for component in s.components]
            if labels:
                features[key] = {"dtype": "float32", "shape": [len(labels)], "names": labels}
        features.update(WindowColumns(self._layout).features())
        for media in self._media.values():
            features.update(media.features(self._rate_hz))
        features[TICK] = {"dtype": "int64", "shape": [1], "names": None}
        for key in (STAMP, VALID, AGE):
            features[key] = {"dtype": "int64", "shape": [len(names)], "names": names}
        features["timestamp"] = {"dtype": "float32", "shape": [1], "names": None}
        for key in ("frame_index", "episode_index", "index", "task_index"):
            features[key] = {"dtype": "int64", "shape": [1], "names": None}
        return features


def _numbered(episode: int, first_row: int, length: int) -> dict[str, Stats]:
    """Return the statistics of the columns of an episode that depend on the order of the pieces."""
    rows = np.arange(first_row, first_row + length)
    return {"episode_index": of_columns(np.full(length, episode)), "index": of_columns(rows)}


LEROBOT = DatasetFormat(LeRobotPieceWriter, LeRobotMerge)
