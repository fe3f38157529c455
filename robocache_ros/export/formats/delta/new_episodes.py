"""Writes the files of episodes that become rows of the tables."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from robocache_ros.export.dataset.exported_dataset import ExportedDataset
from robocache_ros.export.formats.dataset_json import write_provenance
from robocache_ros.export.formats.delta.data_files import DataFile, write_data_files
from robocache_ros.export.formats.delta.episode_columns import (
    episode_row,
    episode_schema,
    recording_key,
    recording_of,
)
from robocache_ros.export.formats.delta.media_files import MediaFiles
from robocache_ros.export.formats.delta.tick_columns import tick_schema, tick_tables
from robocache_ros.extras import need

TICKS, EPISODES, APPENDS = "ticks", "episodes", "appends"


class NewEpisodes:
    """The episodes of an export that become rows of the tables.

    Args:
        dataset: of the export.
        encodings: of each stored stream of 8-bit images.
        folder: where files are written, with the paths that they have in the dataset.
        but: keys of recordings to leave out.

    Attributes:
        id: of the append: a hash of the recordings and of all that decides what is written of them.
        episodes: the indexes of the episodes in the export.
        left_out: the number of recordings that are left out.
        time_ms: of the commits; it is that of the last recording, and not of the export.
        tick_schema, episode_schema: pyarrow schemas of the rows, without the partitions.
    """

    def __init__(
        self, dataset: ExportedDataset, encodings: dict[str, str], folder: Path, but: Collection[str] = ()
    ) -> None:
        told = dataset.provenance
        self._dataset, self._folder, self._encodings = dataset, folder, encodings
        self._recordings = [episode["recording"] for episode in told["episodes"]]  # of each episode
        keys = [recording_key(recording) for recording in told["recordings"]]
        self.episodes = [index for index, of in enumerate(self._recordings) if keys[of] not in but]
        self.left_out = sum(key in but for key in keys)
        self.id = self._identity(keys)
        self.time_ms = max(0, *(recording["stop_ns"] // 1_000_000 for recording in told["recordings"]))
        self._media = MediaFiles(dataset, encodings, folder, f"{APPENDS}/{self.id}")
        self.tick_schema = tick_schema(dataset.layout, {name: dataset.arrays.get(name) for name in self._media.names})
        self.episode_schema = episode_schema(dataset)

    def write_media(self) -> None:
        """Write the provenance, and the files that rows name."""
        (self._folder / APPENDS / self.id).mkdir(parents=True)
        write_provenance(self._folder / APPENDS / self.id / "robocache.json", self._dataset, self._encodings)
        self._media.write(self.episodes)

    def write_ticks(self, first: int) -> list[DataFile]:
        """Write the rows of ticks; `first` is the number of the first episode in the table."""

        def rows(number: int, index: int) -> Iterator[Any]:
            episode = self._dataset.episodes[index]
            yield from tick_tables(episode, number, self._media.columns(episode), self.tick_schema)

        numbered = enumerate(self.episodes, first)
        return write_data_files(self._folder / TICKS, ((number, rows(number, index)) for number, index in numbered))

    def write_episodes(self, first: int) -> list[DataFile]:
        """Write the rows of episodes."""
        return write_data_files(self._folder / EPISODES, self._episode_rows(first))

    def _episode_rows(self, first: int) -> Iterator[tuple[int, list[Any]]]:
        table = need("pyarrow", "export").Table
        last, found = -1, None
        for number, index in enumerate(self.episodes, first):
            episode, recording = self._dataset.episodes[index], self._recordings[index]
            if found is None or recording != last:
                last, found = recording, recording_of(self._dataset, recording, episode)
            row = episode_row(self._dataset, episode, number, found, self.id)
            yield number, [table.from_pylist([row], schema=self.episode_schema)]

    def _identity(self, keys: list[str]) -> str:
        told = self._dataset.provenance
        options = {name: value for name, value in asdict(self._dataset.options).items() if name != "formats"}
        episodes = [(keys[self._recordings[index]], told["episodes"][index]) for index in self.episodes]
        decides = {"layout": told["layout"], "options": options, "device": told["device"], "episodes": episodes}
        return hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()[:32]
