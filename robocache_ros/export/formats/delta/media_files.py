"""Images, video, voxels and depth: files that the rows name, because they are too large for a row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robocache_ros.export.dataset.episode import Episode
from robocache_ros.export.dataset.exported_dataset import IMAGES, ExportedDataset
from robocache_ros.export.dataset.row_columns import runs
from robocache_ros.export.formats.delta.tick_columns import place_type
from robocache_ros.export.formats.lerobot.lerobot_v3 import CHUNK_FILES, DATA_FILE_MB, VIDEO_FILE_MB, VIDEO_PATH
from robocache_ros.export.formats.lerobot.parquet_tables import Table, column
from robocache_ros.export.media.joined_video import JoinedVideo
from robocache_ros.export.media.picture_writer import VIDEO
from robocache_ros.extras import need

BLOBS_PATH = "{kind}/{name}/chunk-{{chunk_index:03d}}/file-{{file_index:03d}}.parquet"
Place = tuple[str, int]  # of an episode: the file, relative to the dataset, and its first frame or row in it


class MediaFiles:
    """Writes the images and arrays of some episodes of a dataset, and tells where those of a tick are.

    Args:
        dataset: the dataset.
        encodings: of each stored stream of 8-bit images.
        folder: where the dataset is written.
        below: the folder of these files in it.
    """

    def __init__(self, dataset: ExportedDataset, encodings: dict[str, str], folder: Path, below: str) -> None:
        self._dataset, self._encodings = dataset, encodings
        self._folder, self._below = folder, below
        self.names = [stream.name for stream in dataset.spec.media if stream.name in {**encodings, **dataset.arrays}]
        self._places: dict[str, dict[int, Place]] = {}

    def write(self, episodes: Sequence[int]) -> None:
        """Write the files of episodes."""
        for name in self.names:
            write = self._write_video if self._encodings.get(name) in VIDEO else self._write_blobs
            self._places[name] = dict(zip(episodes, write(name, episodes), strict=True))

    def columns(self, episode: Episode) -> dict[str, Any]:
        """Return a column for each stream: the file and the row of each tick, null if there is none."""
        pyarrow = need("pyarrow", "export")
        found = {}
        for name in self.names:
            path, first = self._places[name][episode.index]
            if self._encodings.get(name) in VIDEO:
                rows, present = first + np.arange(episode.length), np.ones(episode.length, bool)
            else:
                numbers, present = _numbered(self._samples(episode, name))
                rows = first + numbers
            columns = [pyarrow.repeat(path, episode.length), pyarrow.array(rows)]
            mask = pyarrow.array(~present)
            found[name] = pyarrow.StructArray.from_arrays(columns, fields=list(place_type()), mask=mask)
        return found

    def _write_video(self, name: str, episodes: Sequence[int]) -> Iterator[Place]:
        codec = self._encodings[name]
        path = VIDEO_PATH.replace("{video_key}", IMAGES.format(name))
        target = self._folder / self._below
        with closing(JoinedVideo(target, path, self._dataset.rate_hz, VIDEO_FILE_MB, CHUNK_FILES)) as joined:
            for number in episodes:
                episode = self._dataset.episodes[number]
                chunk, file, first = joined.append(episode.video(name, codec), episode.length)
                yield f"{self._below}/{path.format(chunk_index=chunk, file_index=file)}", first

    def _write_blobs(self, name: str, episodes: Sequence[int]) -> Iterator[Place]:
        """Write each distinct image (PNG) or array of an episode as a row."""
        path = BLOBS_PATH.format(kind="images" if name in self._encodings else "arrays", name=name)
        table = Table(self._folder / self._below, path, DATA_FILE_MB, CHUNK_FILES)
        last, rows = "", 0
        with closing(table):
            for number in episodes:
                written = 0
                for part in self._blobs(self._dataset.episodes[number], name):
                    table.append(part)
                    written += len(part)
                chunk, file = table.end_episode() if written else (0, 0)
                found = f"{self._below}/{path.format(chunk_index=chunk, file_index=file)}" if written else last
                if found != last:
                    last, rows = found, 0
                yield found, rows
                rows += written

    def _blobs(self, episode: Episode, name: str) -> Iterator[Any]:
        pyarrow = need("pyarrow", "export")
        stamps = episode.stamps_ns[:, episode.layout.names.index(name)]
        data_of = self._images(episode, name).__getitem__ if name in self._encodings else episode.arrays(name).data
        for start, _, sample in runs(self._samples(episode, name)):
            if sample >= 0:
                data = pyarrow.array([data_of(start)], pyarrow.binary())
                yield pyarrow.table({"stamp_ns": column(np.array(stamps[start : start + 1])), "data": data})

    def _samples(self, episode: Episode, name: str) -> NDArray[np.int64]:
        return (self._images(episode, name) if name in self._encodings else episode.arrays(name)).samples

    def _images(self, episode: Episode, name: str) -> Any:
        return episode.images(name, self._encodings[name])


def _numbered(samples: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return for (T,) samples the number of the run of each tick, without runs of -1, and which are not -1."""
    present = samples >= 0
    begins = present & (np.diff(samples, prepend=-1) != 0)
    return np.cumsum(begins) - 1, present
