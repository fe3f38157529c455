"""The rows of LeRobot datasets of both versions, as pyarrow tables."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robocache_ros.export.dataset.episode import Episode
from robocache_ros.export.dataset.exported_dataset import IMAGES, ExportedDataset
from robocache_ros.export.formats.lerobot.parquet_tables import column
from robocache_ros.extras import need

PART_BYTES = 16 << 20  # rows that are read at once


REWARD, DONE, SUCCESS = "next.reward", "next.done", "next.success"  # what follows the action of a row


def outcome_dtypes(dataset: ExportedDataset) -> dict[str, str]:
    """Return the types of the columns of LeRobot that say how episodes went; none if nothing is known of it."""
    reward = {REWARD: "float32", DONE: "bool"} if "reward" in dataset.outcomes else {}
    return reward | ({SUCCESS: "bool"} if "success" in dataset.outcomes else {})


def standard_columns(dataset: ExportedDataset, episode: Episode) -> dict[str, NDArray[Any]]:
    """Return the columns that LeRobot defines for an episode."""
    rows = np.arange(episode.length)
    outcomes = {REWARD: episode.rewards, DONE: rows == episode.length - 1, SUCCESS: episode.successes}
    return {
        **{name: outcomes[name] for name in outcome_dtypes(dataset)},
        "timestamp": (rows / dataset.rate_hz).astype(np.float32),
        "frame_index": rows,
        "episode_index": np.full(episode.length, episode.index),
        "index": episode.first_row + rows,
        "task_index": np.full(episode.length, episode.task_index),
    }


class RowTables:
    """Makes the tables of a dataset.

    Args:
        dataset: the dataset.
        images: encoding, png, by stream of images that are stored in the table.
        lists: vectors that are lists also if they have one value. By default such a vector is a plain column.
        image_types: state in the table that `datasets.Image` reads the images, for readers that do not use info.json.
    """

    def __init__(
        self,
        dataset: ExportedDataset,
        images: Mapping[str, str],
        *,
        lists: Sequence[str] = (),
        image_types: bool = False,
    ) -> None:
        self._dataset, self._images, self._lists = dataset, images, lists
        kinds = {IMAGES.format(name): {"_type": "Image"} for name in images} if image_types else {}
        self._metadata = {"huggingface": json.dumps({"info": {"features": kinds}})} if kinds else None

    def parts(self, episode: Episode, own: Mapping[str, NDArray[Any]]) -> Iterator[Any]:
        """Yield the rows of an episode in tables of bounded size; `own` columns come after those of the dataset."""
        sizes = np.full(episode.length, 8 * episode.layout.row_width)
        for name, encoding in self._images.items():
            sizes += episode.images(name, encoding).sizes
        start = size = 0
        for row, of_row in enumerate(sizes.tolist()):
            if start < row and size + of_row > PART_BYTES:
                yield self._table(episode, own, slice(start, row))
                start, size = row, 0
            size += of_row
        yield self._table(episode, own, slice(start, episode.length))

    def _table(self, episode: Episode, own: Mapping[str, NDArray[Any]], rows: slice) -> Any:
        pyarrow = need("pyarrow", "export")
        part = {name: values[rows] for name, values in episode.rows.items()}
        columns = {name: feature.values(part) for name, feature in self._dataset.features.items()}
        columns.update({name: values[rows] for name, values in own.items()})
        table = {name: column(values, as_list=name in self._lists) for name, values in columns.items()}
        for name, encoding in self._images.items():
            images = episode.images(name, encoding)
            files = [{"bytes": images[row], "path": None} for row in range(rows.start, rows.stop)]
            kind = pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())])
            table[IMAGES.format(name)] = pyarrow.array(files, kind)  # as `datasets.Image` reads it
        return pyarrow.table(table).replace_schema_metadata(self._metadata)
