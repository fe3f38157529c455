"""Formats whose files are written by independent tasks, in any process and in any order."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

from robocache_ros.export.dataset.exported_dataset import ExportedDataset

GROUP_BYTES = 256 << 20  # of the episodes of a task
# Bytes of a pixel in each encoding, about: large tasks are begun first.
_PIXEL_BYTES = {"raw": 3.0, "png": 1.5, "jpeg": 0.5}
_VIDEO_BYTES = 0.1  # of a pixel of a video


@dataclass(frozen=True)
class FileTask:
    """Files of a dataset that one process writes, from the pieces of these files alone.

    Attributes:
        name: of the files, for people.
        nbytes: that are read, about.
        write: called with the dataset and a folder, below which it writes the files under their final names. Returns
            what the last step needs of them. A function of a module, or a `partial` of one, so that it can be pickled;
            what it returns is pickled too, and small.
    """

    name: str
    nbytes: int
    write: Callable[[ExportedDataset, Path], Any]


class WrittenByTasks:
    """A format that is written by tasks, and then by a last step. Equal pieces in equal order give equal bytes."""

    needs_stats = False  # whether `finish` uses the statistics of the dataset

    def tasks(self, dataset: ExportedDataset) -> Sequence[FileTask]:
        """Return the tasks. Their number and their files depend on the dataset alone."""
        raise NotImplementedError

    def finish(self, dataset: ExportedDataset, folder: Path, results: Sequence[Any]) -> None:
        """Write the other files, given what the tasks returned; the one by which readers recognize a dataset last."""
        raise NotImplementedError

    def write(self, dataset: ExportedDataset, folder: Path) -> None:
        """Write the dataset with this process alone."""
        self.finish(dataset, folder, [task.write(dataset, folder) for task in self.tasks(dataset)])


def row_bytes(dataset: ExportedDataset, encodings: Mapping[str, str]) -> int:
    """Return about how many bytes a row takes without arrays, given the encodings of the images."""
    total = 8 * dataset.layout.row_width
    for name, encoding in encodings.items():
        height, width = dataset.pictures[name].shape
        total += int(height * width * _PIXEL_BYTES.get(encoding, _VIDEO_BYTES))
    return total


def video_bytes(dataset: ExportedDataset, name: str) -> int:
    """Return about how many bytes a frame takes in the video of a stream."""
    if name in dataset.pictures:
        height, width = dataset.pictures[name].shape
        return int(height * width * _VIDEO_BYTES)
    return array_bytes(dataset, name)


def array_bytes(dataset: ExportedDataset, name: str) -> int:
    """Return the bytes of an array of a stream."""
    info = dataset.arrays[name]
    size = math.prod(info.shape) * info.numpy_dtype.itemsize
    return size // 8 if info.dtype == "bits" else size


def arrays_bytes(dataset: ExportedDataset) -> int:
    """Return the bytes of the arrays of a row, of all streams."""
    return sum(array_bytes(dataset, name) for name in dataset.arrays)


def group_tasks(
    dataset: ExportedDataset, bytes_of_row: int, write: Callable[..., None], of: str = ""
) -> list[FileTask]:
    """Return a task for each group of episodes; `write` is called with its range of episodes as `group` too.

    Args:
        dataset: the contents.
        bytes_of_row: that are read.
        write: as of a `FileTask`.
        of: what is written of the episodes, at the beginning of the names.
    """
    return [
        FileTask(
            f"{of}episodes {group.start} to {group.stop - 1}",
            sum(dataset.episodes.lengths[group.start : group.stop]) * bytes_of_row,
            partial(write, group=group),
        )
        for group in _groups(dataset, bytes_of_row, GROUP_BYTES)
    ]


def shard_tasks(
    dataset: ExportedDataset, bytes_of_row: int, shard_bytes: int, write: Callable[..., Any]
) -> list[FileTask]:
    """Return a task for each shard of a dataset, a file of complete episodes.

    Args:
        dataset: the contents.
        bytes_of_row: that are written, about.
        shard_bytes: a shard that has about this size is followed by another.
        write: as of a `FileTask`; called with its episodes as `group`, its number as `shard`, and that of all as
            `shards` too.
    """
    groups = _groups(dataset, bytes_of_row, shard_bytes)
    return [
        FileTask(
            f"shard {shard} of {len(groups)}",
            sum(dataset.episodes.lengths[group.start : group.stop]) * bytes_of_row,
            partial(write, group=group, shard=shard, shards=len(groups)),
        )
        for shard, group in enumerate(groups)
    ]


def _groups(dataset: ExportedDataset, bytes_of_row: int, nbytes: int) -> list[range]:
    """Divide the episodes into groups of consecutive ones, which have about these bytes, or are a longer episode."""
    ends = list(accumulate(length * bytes_of_row for length in dataset.episodes.lengths))
    found, start = [], 0
    for index, end in enumerate(ends):
        before = ends[start - 1] if start else 0
        if end - before >= nbytes or index == len(ends) - 1:
            found.append(range(start, index + 1))
            start = index + 1
    return found
