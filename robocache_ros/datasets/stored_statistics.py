"""Statistics of a dataset for normalisation, computed once and stored beside it."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robocache_ros.datasets.episode_source import DatasetError, SourceEpisode, Stream
from robocache_ros.datasets.files.dataset_files import read_object
from robocache_ros.datasets.timeline_dataset import TimelineDataset
from robocache_ros.errors import printable
from robocache_ros.export.statistics import Stats, of_columns

VERSION = 1
MAX_BYTES = 16 << 30  # of the values, which are in memory together
_ROLES = {"proprio": "observation", "actions": "action"}


def dataset_statistics(dataset: TimelineDataset, folder: str | Path | None = None) -> dict[str, Stats]:
    """Return min, max, mean, std, count and quantiles of each column of `proprio` and `actions`.

    They are computed over the valid ticks of all episodes, in float64 and in the order of the episodes, and are stored
    in a file whose name depends on the source, its files' sizes and times, the rate and the alignments. A second call
    reads the file.

    Args:
        dataset: of whole episodes or of windows, which makes no difference.
        folder: where they are stored; None: beside the first file of the dataset, or in the cache of downloaded files.
            If it cannot be written, a warning is given.

    Errors:
        DatasetError: an episode cannot be read, has other columns than the first, or the values take more memory than
            `MAX_BYTES`.
    """
    files: tuple[Path, ...] = tuple(getattr(dataset.source, "files", ()))
    beside = getattr(files[0], "cache_folder", files[0].parent) if files else None  # of downloaded files: in the cache
    place = Path(folder) if folder is not None else beside
    path = None if place is None else place / f"robocache_statistics_{_key(dataset, files)}.json"
    if path is not None and path.exists():
        return read_object(path)
    statistics = _computed(dataset)
    if path is not None:
        try:
            _store(path, statistics)
        except OSError as error:
            warnings.warn(
                f"{printable(path)}: statistics are not stored ({error.strerror}); give a folder", stacklevel=2
            )
    return statistics


def _key(dataset: TimelineDataset, files: tuple[Path, ...]) -> str:
    stamps = []
    for file in files:
        with suppress(OSError):  # reading an episode of it names the file
            stat = file.stat()
            stamps.append((str(file), stat.st_size, stat.st_mtime_ns))
    about = json.dumps([VERSION, dataset.rate_hz, sorted(dataset.align.items()), stamps])
    return hashlib.sha256(about.encode() + pickle.dumps(dataset.source, protocol=4)).hexdigest()[:16]


def _computed(dataset: TimelineDataset) -> dict[str, Stats]:
    vectors = TimelineDataset(dataset.source, target_hz=dataset.rate_hz, modalities=("proprio",), align=dataset.align)
    parts: dict[str, list[NDArray[np.float32]]] = {}
    nbytes = 0
    for index in range(len(vectors)):
        episode = vectors.streams_of(index)
        sample = vectors.align_episode(episode)
        for key, role in _ROLES.items():
            if key in sample:
                part = np.where(_valid(episode, sample, role), sample[key].numpy(), np.float32(np.nan))
                given = parts.setdefault(key, [])
                if given and given[0].shape[1] != part.shape[1]:
                    raise DatasetError(f"{episode.source}: {part.shape[1]} columns of {key}, not {given[0].shape[1]}")
                given.append(part)
                nbytes += part.nbytes
        if nbytes > MAX_BYTES:
            raise DatasetError(f"{episode.source}: values of more than {MAX_BYTES >> 30} GiB; use fewer episodes")
    return {key: of_columns(*given) for key, given in parts.items()}


def _valid(episode: SourceEpisode, sample: dict[str, Any], role: str) -> NDArray[np.bool_]:
    """(T, columns) whether each value of a role is one."""
    valid = sample["valid"].numpy() > 0
    columns = [
        np.repeat(valid[:, index, None], _width(stream), axis=1)
        for index, stream in enumerate(episode.streams.values())
        if stream.role == role
    ]
    return np.concatenate(columns, axis=1)


def _width(stream: Stream) -> int:
    assert isinstance(stream.values, np.ndarray)
    return int(stream.values.shape[1])


def _store(path: Path, statistics: dict[str, Stats]) -> None:
    partial = path.with_name(f"{path.name}.{os.getpid()}")  # several processes may compute them at once
    try:
        partial.write_text(json.dumps(statistics), encoding="utf-8")
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
