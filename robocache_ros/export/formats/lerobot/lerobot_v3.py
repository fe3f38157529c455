"""LeRobot datasets, v3.0 (https://github.com/huggingface/lerobot), written with pyarrow and PyAV."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from robocache_ros.export.dataset.episode import Episode
from robocache_ros.export.dataset.exported_dataset import IMAGES, ExportedDataset
from robocache_ros.export.export_options import ExportOptions
from robocache_ros.export.formats.lerobot import meta_folder
from robocache_ros.export.formats.lerobot.arrays import write_arrays
from robocache_ros.export.formats.lerobot.openpi_statistics import write_norm_stats
from robocache_ros.export.formats.lerobot.parquet_tables import Table
from robocache_ros.export.formats.lerobot.row_tables import RowTables, standard_columns
from robocache_ros.export.media.copied_video import copied_or
from robocache_ros.export.media.joined_video import JoinedVideo
from robocache_ros.export.media.picture_writer import VIDEO
from robocache_ros.export.media.video import CODECS, DEPTH_VIDEO
from robocache_ros.export.statistics import Stats, of_columns
from robocache_ros.extras import need
from robocache_ros.spec import FusionSpec, StreamSpec

CODEBASE_VERSION = "v3.0"
CHUNK_FILES = 1000  # files per folder, as in LeRobot
DATA_FILE_MB, VIDEO_FILE_MB = 100, 200
DATA_PATH = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
VIDEO_PATH = "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"
EPISODES_PATH = "meta/episodes/chunk-000/file-000.parquet"

Places = dict[str, list[tuple[int, int, int]]]  # video feature -> chunk, file and first frame in it of each episode


class LeRobotFormat:
    """LeRobot v3.0."""

    name = "lerobot"
    title = "LeRobot v3.0"
    entry = "meta"

    def check(self, spec: FusionSpec, options: ExportOptions) -> None:
        """Accept every spec."""

    def encoding(self, stream: StreamSpec, options: ExportOptions) -> str | None:
        """Store images as video, AV1 by default as LeRobot does, or as PNG."""
        video = options.codec if options.codec in CODECS else copied_or(stream, options, "av1")
        return {"video": video, "image": "png"}.get(options.media)

    def write(self, dataset: ExportedDataset, folder: Path) -> None:
        """Write the dataset. Its meta/info.json, by which LeRobot recognizes it, is written last."""
        _Writer(dataset, folder).write()


class _Writer:
    """Writes one dataset."""

    def __init__(self, dataset: ExportedDataset, folder: Path) -> None:
        self._dataset, self._folder = dataset, folder
        encodings = {name: LEROBOT.encoding(dataset.spec.stream(name), dataset.options) for name in dataset.pictures}
        self._encodings = {name: encoding for name, encoding in encodings.items() if encoding}
        self._videos = {name: codec for name, codec in self._encodings.items() if codec in VIDEO}
        self._videos.update(dict.fromkeys(dataset.depth_videos, DEPTH_VIDEO))
        self._tables = RowTables(dataset, {name: e for name, e in self._encodings.items() if e not in VIDEO})

    def write(self) -> None:
        dataset, meta = self._dataset, self._folder / "meta"
        (meta / "episodes" / "chunk-000").mkdir(parents=True)
        places = self._write_data()
        arrays = write_arrays(dataset, self._folder, CHUNK_FILES, dataset.depth_videos)
        self._write_episodes(places, self._write_videos())
        meta_folder.write_tasks(meta, dataset.tasks)
        meta_folder.write_provenance(meta, dataset, self._encodings, arrays)
        write_norm_stats(meta, dataset.stats)
        meta_folder.write_json(meta / "stats.json", {**dataset.stats, **self._own_stats()})
        meta_folder.write_json(meta / "info.json", self._info())

    def _write_data(self) -> list[tuple[int, int]]:
        """Write the rows; return the chunk and file index of each episode."""
        table = Table(self._folder, DATA_PATH, DATA_FILE_MB, CHUNK_FILES)
        places: list[tuple[int, int]] = []
        first_row = 0
        with closing(table):
            for episode in self._dataset.episodes:
                for rows in self._tables.parts(episode, standard_columns(self._dataset, episode, first_row)):
                    table.append(rows)
                places.append(table.end_episode())
                first_row += episode.length
        return places

    def _own_stats(self) -> dict[str, Stats]:
        parts: dict[str, list[NDArray[Any]]] = {}
        first_row = 0
        for episode in self._dataset.episodes:
            for name, values in standard_columns(self._dataset, episode, first_row).items():
                parts.setdefault(name, []).append(values)
            first_row += episode.length
        return {name: of_columns(*values) for name, values in parts.items()}

    def _write_videos(self) -> Places:
        places: Places = {}
        for name, codec in self._videos.items():
            key = IMAGES.format(name)
            path = VIDEO_PATH.replace("{video_key}", key)
            with closing(JoinedVideo(self._folder, path, self._dataset.rate_hz, VIDEO_FILE_MB, CHUNK_FILES)) as joined:
                places[key] = [joined.append(e.video(name, codec), e.length) for e in self._dataset.episodes]
        return places

    def _write_episodes(self, places: list[tuple[int, int]], videos: Places) -> None:
        table = Table(self._folder, EPISODES_PATH)
        row = 0
        with closing(table):
            for episode in self._dataset.episodes:
                entry = self._episode(episode, row, places[episode.index])
                for key, parts in videos.items():
                    entry.update(self._place_in_video(key, parts[episode.index], episode.length))
                own = standard_columns(self._dataset, episode, row)
                stats = {**episode.stats, **{name: of_columns(values) for name, values in own.items()}}
                stats.update({IMAGES.format(n): episode.image_stats(n) for n in {**self._encodings, **self._videos}})
                for key, values in stats.items():
                    entry.update({f"stats/{key}/{name}": value for name, value in values.items()})
                table.append(need("pyarrow", "export").Table.from_pylist([entry]))
                row += episode.length
            table.end_episode()

    def _episode(self, episode: Episode, row: int, place: tuple[int, int]) -> dict[str, Any]:
        return {
            "episode_index": episode.index,
            "tasks": [episode.task],
            "length": episode.length,
            "data/chunk_index": place[0],
            "data/file_index": place[1],
            "dataset_from_index": row,
            "dataset_to_index": row + episode.length,
            "meta/episodes/chunk_index": 0,
            "meta/episodes/file_index": 0,
        }

    def _place_in_video(self, key: str, place: tuple[int, int, int], length: int) -> dict[str, Any]:
        chunk, file, first = place
        return {
            f"videos/{key}/chunk_index": chunk,
            f"videos/{key}/file_index": file,
            f"videos/{key}/from_timestamp": first / self._dataset.rate_hz,
            f"videos/{key}/to_timestamp": (first + length) / self._dataset.rate_hz,
        }

    def _info(self) -> dict[str, Any]:
        dataset = self._dataset
        return {
            "codebase_version": CODEBASE_VERSION,
            "robot_type": dataset.options.robot_type,
            "total_episodes": len(dataset.episodes),
            "total_frames": dataset.frames,
            "total_tasks": len(dataset.tasks),
            "chunks_size": CHUNK_FILES,
            "data_files_size_in_mb": DATA_FILE_MB,
            "video_files_size_in_mb": VIDEO_FILE_MB,
            "fps": dataset.rate_hz,
            "splits": {"train": f"0:{len(dataset.episodes)}"},
            "data_path": DATA_PATH,
            "video_path": VIDEO_PATH,
            "features": meta_folder.features(dataset, self._encodings, dataset.depth_videos),
        }


LEROBOT = LeRobotFormat()
