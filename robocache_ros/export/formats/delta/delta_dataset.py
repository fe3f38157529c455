"""Delta Lake: a table with a row a tick, and one with a row an episode (https://delta.io), for queries.

ticks/     _delta_log/, and parquet in episode_range=<first episode>/
episodes/  the same; readers find a dataset by this folder
appends/   a folder for each export to the tables: robocache.json (the provenance), and the videos, images, voxels and
           depth images that rows of ticks name
"""

from __future__ import annotations

from pathlib import Path

from robocache_ros.export.dataset.exported_dataset import ExportedDataset
from robocache_ros.export.export_options import ExportOptions
from robocache_ros.export.formats.delta.new_episodes import EPISODES, TICKS, NewEpisodes
from robocache_ros.export.formats.delta.tick_columns import check_names
from robocache_ros.export.formats.delta.transaction_log import EPISODES_NUMBERED, TransactionLog, make_repeatable
from robocache_ros.export.formats.lerobot.lerobot_v3 import LEROBOT
from robocache_ros.extras import need
from robocache_ros.spec import FusionSpec, StreamSpec


class DeltaFormat:
    """Delta Lake tables."""

    name = "delta"
    title = "Delta Lake tables of ticks and episodes"
    entry = EPISODES

    def check(self, spec: FusionSpec, options: ExportOptions) -> None:
        """Refuse streams with the name of another column."""
        need("deltalake", "fleet")
        check_names(spec)

    def encoding(self, stream: StreamSpec, options: ExportOptions) -> str | None:
        """Store images as LeRobot does: as video, or as PNG."""
        return LEROBOT.encoding(stream, options)

    def write(self, dataset: ExportedDataset, folder: Path) -> None:
        """Write both tables, each with one commit. Equal pieces in equal order give equal bytes, also of the logs."""
        new = NewEpisodes(dataset, dataset.encodings(LEROBOT.encoding), folder)
        new.write_media()
        for table, schema, write, name in (
            (TICKS, new.tick_schema, new.write_ticks, new.id),
            (EPISODES, new.episode_schema, new.write_episodes, done(new.id)),
        ):
            files = write(0)
            given = {EPISODES_NUMBERED: len(new.episodes)} if table == EPISODES else {}
            TransactionLog(str(folder / table), schema).create(files, new.time_ms, {**given, name: 0})
            make_repeatable(folder / table, f"{new.id}/{table}", new.time_ms)


def done(append: str) -> str:
    """Return the transaction identifier by which the rows of an append are in the table of episodes."""
    return f"{append}/{EPISODES}"


DELTA = DeltaFormat()
