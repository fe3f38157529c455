"""What writers share: files as independent tasks, values without gaps, and the provenance."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robocache_ros.formats.dataset import Episode, ExportedDataset
from robocache_ros.formats.pieces import runs
from robocache_ros.spec import FusionSpec, StreamSpec
from robocache_ros.spec.dataset import DatasetOptions

GROUP_BYTES = 256 << 20  # of the episodes of a task
# Bytes of a pixel in each encoding, about: large tasks start first.
_PIXEL_BYTES = {"raw": 3.0, "png": 1.5, "jpeg": 0.5}
_VIDEO_BYTES = 0.1  # of a pixel of a video


@dataclass(frozen=True)
class FileTask:
    """Files of a dataset that one process writes, from the pieces of these files only."""

    name: str  # of the files, for people
    nbytes: int  # that are read, about
    # Called with the dataset and a folder, below which it writes the files under their final names. Returns what the
    # last step needs of them. A function of a module, or a `partial` of one, so that it can be pickled; what it returns
    # is pickled too, and small
    write: Callable[[ExportedDataset, Path], Any]


RAW = {"video": "raw", "image": "raw"}  # images without loss


class WrittenByTasks:
    """A format that is written by tasks, and then by a last step. Equal pieces in equal order give equal bytes."""

    needs_stats = False  # whether `finish` uses the statistics of the dataset
    # The encoding of 8-bit images by the option `media`; none for `none`, and png is lossless.
    images: Mapping[str, str] = {"video": "jpeg", "image": "png"}

    def check(self, spec: FusionSpec, options: DatasetOptions) -> None:
        """Refuse a spec or options that the format cannot store; by default none."""

    def encoding(self, stream: StreamSpec, options: DatasetOptions) -> str | None:
        """Return the encoding of a stream's 8-bit images; None to omit them."""
        return self.images.get(options.media)

    def tasks(self, dataset: ExportedDataset) -> Sequence[FileTask]:
        """Return the tasks. Their number and their files depend on the dataset only."""
        raise NotImplementedError

    def finish(self, dataset: ExportedDataset, folder: Path, results: Sequence[Any]) -> None:
        """Write the other files, given what the tasks returned; the one by which readers recognize a dataset last."""

    def write(self, dataset: ExportedDataset, folder: Path) -> None:
        """Write the dataset in this process only."""
        self.finish(dataset, folder, [task.write(dataset, folder) for task in self.tasks(dataset)])


def row_bytes(dataset: ExportedDataset, encodings: Mapping[str, str], *, arrays: bool = False) -> int:
    """Return about how many bytes a row takes, given the encodings of the images; with voxels and depth if `arrays`."""
    images = sum(media_bytes(dataset, name, encoding) for name, encoding in encodings.items())
    others = sum(media_bytes(dataset, name) for name in dataset.arrays) if arrays else 0
    return 8 * dataset.layout.row_width + images + others


def media_bytes(dataset: ExportedDataset, name: str, encoding: str = "") -> int:
    """Return about how many bytes an image takes in an encoding or in a video, or how many an array takes."""
    if name in dataset.pictures:
        height, width = dataset.pictures[name].shape
        return int(height * width * _PIXEL_BYTES.get(encoding, _VIDEO_BYTES))
    return dataset.arrays[name].nbytes


def group_tasks(
    dataset: ExportedDataset, bytes_of_row: int, write: Callable[..., None], of: str = ""
) -> list[FileTask]:
    """Return a task for each group of episodes; `write` is called with its range of episodes as `group` too.

    `of` is at the beginning of the names.
    """
    return [
        FileTask(f"{of}episodes {group.start} to {group.stop - 1}", nbytes, partial(write, group=group))
        for group, nbytes in _groups(dataset, bytes_of_row, GROUP_BYTES)
    ]


def shard_tasks(
    dataset: ExportedDataset, bytes_of_row: int, shard_bytes: int, write: Callable[..., Any]
) -> list[FileTask]:
    """Return a task for each shard of about `shard_bytes`, a file of complete episodes.

    `write` is called with its episodes as `group`, its number as `shard`, and that of all as `shards` too.
    """
    groups = _groups(dataset, bytes_of_row, shard_bytes)
    return [
        FileTask(
            f"shard {shard} of {len(groups)}", nbytes, partial(write, group=group, shard=shard, shards=len(groups))
        )
        for shard, (group, nbytes) in enumerate(groups)
    ]


def _groups(dataset: ExportedDataset, bytes_of_row: int, nbytes: int) -> list[tuple[range, int]]:
    """Divide the episodes into consecutive ones of about these bytes, or a longer episode; return the bytes too."""
    found, start, size = [], 0, 0
    for index, length in enumerate(dataset.episodes.lengths):
        size += length * bytes_of_row
        if size >= nbytes or index == len(dataset.episodes) - 1:
            found.append((range(start, index + 1), size))
            start, size = index + 1, 0
    return found


class HeldBytes(Sequence[bytes]):
    """The bytes that `data_of` returns for each tick; those of the last sample stay in memory."""

    def __init__(self, samples: NDArray[np.int64], data_of: Callable[[int], bytes]) -> None:
        self._samples, self._data_of = samples, data_of
        self._last: tuple[int, bytes] | None = None

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, tick: Any) -> Any:
        sample = int(self._samples[tick])
        if self._last is None or self._last[0] != sample:
            self._last = sample, self._data_of(tick)
        return self._last[1]


@dataclass(frozen=True)
class VectorArray:
    """An array of numbers, small enough to read a whole episode at once."""

    name: str
    shape: tuple[int, ...]  # of a row
    dtype: str
    read: Callable[[Episode], NDArray[Any]]  # (T, *shape)


@dataclass(frozen=True)
class MediaArray:
    """An array of images or voxels, read row by row."""

    name: str
    shape: tuple[int, ...]  # of a row; images: (H, W, C)
    dtype: str
    is_image: bool

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    def runs(self, episode: Episode) -> Iterator[tuple[int, int, NDArray[Any] | None]]:
        """Yield (start, stop, value) for the ticks of an episode. Adjacent ticks may share a value; None: no value."""
        is_array = self.name in episode.dataset.arrays
        stored = episode.arrays(self.name) if is_array else episode.images(self.name, "raw")
        for start, stop, sample in runs(np.where(episode.has(self.name), stored.samples, -1)):
            value = stored.array(start) if sample >= 0 else None
            yield start, stop, np.moveaxis(value, 0, -1) if is_array and self.is_image and value is not None else value


def vectors(dataset: ExportedDataset, role: str) -> list[VectorArray]:
    """Return the vector streams of a role, each with its own shape: (dim,), of a window (samples, dim)."""
    streams = [stream for stream in dataset.spec.vectors if stream.role == role]
    return [VectorArray(s.name, s.shape, "float32", partial(Episode.vector, stream=s.name)) for s in streams]


def media(dataset: ExportedDataset) -> list[MediaArray]:
    """Return the images and voxels that the pieces store, in the order of the spec."""
    found = []
    for stream in dataset.spec.media:
        if stream.name in dataset.pictures:
            height, width = dataset.pictures[stream.name].shape
            found.append(MediaArray(stream.name, (height, width, 3), "uint8", True))
        elif stream.name in dataset.arrays:
            info, image = dataset.arrays[stream.name], stream.kind == "image"
            shape = (*info.shape[1:], info.shape[0]) if image else info.shape
            found.append(MediaArray(stream.name, shape, info.numpy_dtype.name, image))
    return found


def tick_columns(dataset: ExportedDataset) -> list[VectorArray]:
    """Return what is known of each tick besides its values: times, validity and ages. N streams in the spec's order."""
    n = len(dataset.spec.streams)
    columns = [
        VectorArray("tick_ns", (), "int64", lambda episode: episode.ticks_ns),
        VectorArray("stamp_ns", (n,), "int64", lambda episode: episode.stamps_ns),
        VectorArray("valid", (n,), "uint8", lambda episode: episode.valid),
        VectorArray("age_ns", (n,), "int64", lambda episode: episode.age_ns),
    ]
    for stream in dataset.spec.vectors:
        if stream.rows:
            name, ages = stream.name, partial(Episode.window_ages_ms, stream=stream.name)
            present = partial(_present, stream=stream.name)
            columns.append(VectorArray(f"mask.{name}", (stream.rows,), "uint8", present))
            columns.append(VectorArray(f"sample_age_ms.{name}", (stream.rows,), "float32", ages))
    return columns


def _present(episode: Episode, stream: str) -> NDArray[np.uint8]:
    return (episode.window_ages_ms(stream) >= 0).astype(np.uint8)


def write_json(path: Path, value: Any) -> None:
    """Write a human-readable JSON file."""
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def write_provenance(path: Path, dataset: ExportedDataset, encodings: Mapping[str, str]) -> None:
    """Write the provenance, and how images and voxels are stored, given the encoding of each image stream."""
    stored = {stream.name: dataset.stored(stream.name, encodings.get(stream.name)) for stream in dataset.spec.media}
    write_json(path, {**dataset.provenance, "images": image_contract(dataset.spec, stored)})


def image_contract(spec: FusionSpec, stored: Mapping[str, str]) -> dict[str, Any]:
    """Return by image stream how pixels are stored, and the normalization in the spec.

    A dataset contains pixels before normalization. The training code normalizes them once.
    """
    return {
        stream.name: {
            "stored": stored.get(stream.name, "not stored"),
            "normalized": False,
            "normalize": asdict(stream.image.normalize) if stream.image and stream.image.normalize else None,
        }
        for stream in spec.streams
        if stream.kind == "image"
    }
