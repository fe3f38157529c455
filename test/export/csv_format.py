"""A dataset format of another package: a CSV file per episode, with the state and the action of each tick."""

import csv
from pathlib import Path

from robocache_ros.errors import RoboCacheError
from robocache_ros.formats.dataset import ExportedDataset
from robocache_ros.spec import FusionSpec, StreamSpec
from robocache_ros.spec.dataset import DatasetOptions


class CsvFormat:
    """Vectors as text."""

    name = "csv"
    title = "CSV files"
    entry = "episodes"

    def check(self, spec: FusionSpec, options: DatasetOptions) -> None:
        """Refuse a spec without vectors."""
        if not spec.vectors:
            raise RoboCacheError("streams: csv stores vectors, and there are none; add one, or choose another format")

    def encoding(self, stream: StreamSpec, options: DatasetOptions) -> str | None:
        """Leave images out."""
        return None

    def write(self, dataset: ExportedDataset, folder: Path) -> None:
        """Write a file per episode."""
        (folder / self.entry).mkdir()
        streams = (*dataset.state, *dataset.actions)
        names = [f"{stream.name}.{component}" for stream in streams for component in stream.components]
        for episode in dataset.episodes:
            columns = (episode.ticks_ns.tolist(), episode.state.tolist(), episode.action.tolist())
            path = folder / self.entry / f"episode_{episode.index:06d}.csv"
            with path.open("w", newline="", encoding="utf-8") as file:
                rows = csv.writer(file)
                rows.writerow(["tick_ns", *names])
                rows.writerows([tick, *state, *action] for tick, state, action in zip(*columns, strict=True))


CSV = CsvFormat()
