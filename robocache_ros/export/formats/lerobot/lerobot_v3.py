"""LeRobot datasets, v3.0 (https://github.com/huggingface/lerobot), written with pyarrow and PyAV."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from robocache_ros.export.dataset.episode import Episode
from robocache_ros.export.dataset.exported_dataset import IMAGES, ExportedDataset
from robocache_ros.export.export_options import ExportOptions
from robocache_ros.export.formats.file_tasks import FileTask, WrittenByTasks, row_bytes, video_bytes
from robocache_ros.export.formats.lerobot import meta_folder
from robocache_ros.export.formats.lerobot.arrays import array_tasks, described_arrays
from robocache_ros.export.formats.lerobot.openpi_statistics import write_norm_stats
from robocache_ros.export.formats.lerobot.parquet_tables import Table
from robocache_ros.export.formats.lerobot.row_tables import RowTables, standard_columns
from robocache_ros.export.media.copied_video import copied_or
from robocache_ros.export.media.joined_video import JoinedVideo, joined_files
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

DataPlace = tuple[int, int]  # chunk and file of an episode
VideoPlace = tuple[int, int, int]  # chunk, file and first frame in it of an episode


class LeRobotFormat(WrittenByTasks):
    """LeRobot v3.0."""

    name = "lerobot"
    title = "LeRobot v3.0"
    entry = "meta"
    needs_stats = True

    def check(self, spec: FusionSpec, options: ExportOptions) -> None:
        """Accept every spec."""

    def encoding(self, stream: StreamSpec, options: ExportOptions) -> str | None:
        """Store images as video, AV1 by default as LeRobot does, or as PNG."""
        video = options.codec if options.codec in CODECS else copied_or(stream, options, "av1")
        return {"video": video, "image": "png"}.get(options.media)

    def tasks(self, dataset: ExportedDataset) -> list[FileTask]:
        """Return the tasks: the rows, the videos of each stream, and the arrays of each."""
        contents = _Contents(dataset)
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
        contents, meta = _Contents(dataset), folder / "meta"
        places, of_files = results[0], iter(results[1:])
        videos = {
            name: [place for _ in contents.video_files(name) for place in next(of_files)] for name in contents.videos
        }
        (meta / "episodes" / "chunk-000").mkdir(parents=True)
        _write_episodes(contents, folder, places, videos)
        meta_folder.write_tasks(meta, dataset.tasks)
        arrays = described_arrays(dataset, dataset.depth_videos)
        meta_folder.write_provenance(meta, dataset, contents.encodings, arrays)
        write_norm_stats(meta, dataset.stats)
        meta_folder.write_json(meta / "stats.json", {**dataset.stats, **_own_stats(dataset)})
        meta_folder.write_json(meta / "info.json", _info(contents))


class _Contents:
    """What the dataset stores of each stream of images: the encoding of each, and which of them are videos."""

    def __init__(self, dataset: ExportedDataset) -> None:
        self.dataset = dataset
        self.encodings = dataset.encodings(LEROBOT.encoding)
        self.images = {name: encoding for name, encoding in self.encodings.items() if encoding not in VIDEO}
        self.videos = {name: codec for name, codec in self.encodings.items() if codec in VIDEO}
        self.videos.update(dict.fromkeys(dataset.depth_videos, DEPTH_VIDEO))

    def video_files(self, name: str) -> list[range]:
        """Return the episodes in each video file of a stream."""
        return joined_files([e.video_part(name, self.videos[name]) for e in self.dataset.episodes], VIDEO_FILE_MB)


def _write_data(dataset: ExportedDataset, folder: Path) -> list[DataPlace]:
    """Write the rows; return the place of each episode."""
    tables = RowTables(dataset, _Contents(dataset).images)
    places: list[DataPlace] = []
    with closing(Table(folder, DATA_PATH, DATA_FILE_MB, CHUNK_FILES)) as table:
        for episode in dataset.episodes:
            for rows in tables.parts(episode, standard_columns(dataset, episode)):
                table.append(rows)
            places.append(table.end_episode())
    return places


def _write_video(dataset: ExportedDataset, folder: Path, name: str, file: int, group: range) -> list[VideoPlace]:
    """Write a video file of a stream; return the place of each episode in it."""
    codec, path = _Contents(dataset).videos[name], VIDEO_PATH.replace("{video_key}", IMAGES.format(name))
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


def _write_episodes(
    contents: _Contents, folder: Path, places: Sequence[DataPlace], videos: Mapping[str, Sequence[VideoPlace]]
) -> None:
    """Write the table of the episodes."""
    dataset = contents.dataset
    with closing(Table(folder, EPISODES_PATH)) as table:
        for episode in dataset.episodes:
            entry = _episode(episode, places[episode.index])
            for name, parts in videos.items():
                entry.update(_place_in_video(name, parts[episode.index], episode.length, dataset.rate_hz))
            own = standard_columns(dataset, episode)
            stats = {**episode.stats, **{name: of_columns(values) for name, values in own.items()}}
            media = {**contents.encodings, **contents.videos}
            stats.update({IMAGES.format(name): episode.image_stats(name) for name in media})
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
    key = IMAGES.format(stream)
    return {
        f"videos/{key}/chunk_index": chunk,
        f"videos/{key}/file_index": file,
        f"videos/{key}/from_timestamp": first / rate_hz,
        f"videos/{key}/to_timestamp": (first + length) / rate_hz,
    }


def _info(contents: _Contents) -> dict[str, Any]:
    dataset = contents.dataset
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
        "features": meta_folder.features(dataset, contents.encodings, dataset.depth_videos),
    }


LEROBOT = LeRobotFormat()
