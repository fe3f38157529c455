"""Statistics of a dataset for normalisation, computed once and stored beside it."""

from __future__ import annotations

import hashlib
import io
import json
import os
import pickle
import warnings
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from types import BuiltinFunctionType, FunctionType
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from robocache_ros.datasets import forked_processes
from robocache_ros.datasets.timeline_dataset import TimelineDataset
from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.formats.read import DatasetError, SourceEpisode, read_object
from robocache_ros.formats.statistics import Stats, of_columns
from robocache_ros.ops.cuda.kernels import cache_directory
from robocache_ros.processes import blocked_interrupt, main_left_out
from robocache_ros.storage.paths import RemotePath
from robocache_ros.untrusted_files import file_below

VERSION = 1
MAX_BYTES = 16 << 30  # of the values, which are in memory together
PARTS_PER_WORKER = 4
_ROLES = {"proprio": "observation", "actions": "action"}


class _Part(NamedTuple):
    """The values of some episodes by key, with where they are from; and why episodes were skipped."""

    tables: dict[str, list[tuple[NDArray[np.float32], str]]]
    skipped: list[str]


def dataset_statistics(
    dataset: TimelineDataset, folder: str | Path | None = None, *, on_error: str = "raise", workers: int = 0
) -> dict[str, Stats]:
    """Return min, max, mean, std, count and quantiles of each column of `proprio` and `actions`.

    They are computed over the valid ticks of all episodes, in float64 and in the order of the episodes, and are stored
    in a file whose name depends on the source, its files' sizes and times, the rate and the alignments. A second call
    reads the file.

    Args:
        dataset: of whole episodes or of windows, which makes no difference.
        folder: where they are stored; None: beside the first file of the dataset, or in the cache of downloaded files;
            where this cannot be written, in `statistics` of $ROBOCACHE_CACHE_DIR, else of ~/.cache/robocache_ros.
        on_error: raise on an episode that cannot be read, or skip it with a warning.
        workers: processes that read; 0: this one does. Their number changes no bit of the result.

    Errors:
        DatasetError: an episode cannot be read, has other columns than the first, or the values take more memory than
            `MAX_BYTES`.
    """
    files: tuple[Path, ...] = tuple(getattr(dataset.source, "files", ()))
    folders = [Path(folder)] if folder is not None else _folders(files)
    paths = [each / f"robocache_statistics_{_key(dataset, files, on_error)}.json" for each in folders]
    for path in paths:
        if (stored := _stored(path)) is not None:
            return stored
    statistics = _merged(_all_parts(dataset, on_error == "skip", workers))
    for path in paths:
        try:
            if path is not paths[0]:
                path.parent.mkdir(parents=True, exist_ok=True)
            _store(path, statistics)
            return statistics
        except OSError as error:
            reason = error.strerror
    if paths:
        where = printable(paths[-1])
        warnings.warn(f"{where}: statistics are not stored ({reason}); give a folder", stacklevel=2)
    return statistics


def statistics_of(
    dataset: Any, given: Mapping[str, Mapping[str, Any]] | str | None, on_error: str, workers: int
) -> Mapping[str, Mapping[str, Any]]:
    """Return the statistics by which a loader normalises: those given, or for "auto" those of the dataset.

    Errors:
        RoboCacheError: `given` is another word, or the dataset is not a `TimelineDataset`.
    """
    if not isinstance(given, str):
        return given or {}
    if given != "auto" or not isinstance(dataset, TimelineDataset):
        raise RoboCacheError(
            f"statistics: {printable(given, 30)!r} for a {type(dataset).__name__}; 'auto' is for a dataset on a "
            "timeline, else give mean and std by key"
        )
    found = dataset_statistics(dataset, on_error=on_error, workers=workers)
    return {key: found[key] for key in found if key != "proprio" or "proprio" in dataset.modalities}


def _folders(files: tuple[Path, ...]) -> list[Path]:
    """Return where statistics are stored, the first that can be written."""
    if not files:
        return []
    cache = cache_directory()
    first = files[0]
    beside = first.cache.folder if isinstance(first, RemotePath) else first.parent
    return [beside, *([cache / "statistics"] if cache else [])]


def _stored(path: Path) -> dict[str, Stats] | None:
    """Return the statistics in a file; None if there are none, or it is damaged."""
    try:
        found = read_object(file_below(path.parent, path.name))
        complete = all({"mean", "std", "q01", "q99"} <= set(found[key]) for key in found)
        return found if complete and set(found) <= set(_ROLES) else None
    except (DatasetError, TypeError):
        return None


def _key(dataset: TimelineDataset, files: tuple[Path, ...], on_error: str) -> str:
    stamps = []
    for file in files:
        with suppress(OSError):  # reading an episode of it names the file
            stat = file.stat()
            stamps.append((str(file), stat.st_size, stat.st_mtime_ns))
    about = json.dumps([VERSION, dataset.rate_hz, sorted(dataset.align.items()), on_error, stamps])
    source = io.BytesIO()
    _SourcePickler(source, protocol=4).dump(dataset.source)
    return hashlib.sha256(about.encode() + source.getvalue()).hexdigest()[:16]


class _SourcePickler(pickle.Pickler):
    """Writes this package's classes and functions without their modules: a source that moves keeps its statistics."""

    def persistent_id(self, value: Any) -> str | None:
        if not isinstance(value, (type, FunctionType, BuiltinFunctionType)):
            return None
        package = str(value.__module__).partition(".")[0]
        return f"{package}:{value.__qualname__}" if package == "robocache_ros" else None


def _all_parts(dataset: TimelineDataset, skip: bool, workers: int) -> Iterator[_Part]:
    """Yield the values of all episodes, in parts, in the order of the episodes."""
    vectors = TimelineDataset(dataset.source, target_hz=dataset.rate_hz, modalities=("proprio",), align=dataset.align)
    count = len(vectors)
    if not workers:
        yield _part(vectors, range(count), skip)
        return
    edges = np.linspace(0, count, min(workers * PARTS_PER_WORKER, max(count, 1)) + 1).astype(int).tolist()
    given = (dict(os.environ), vectors, skip)
    with ProcessPoolExecutor(workers, forked_processes.worker_context(), _begin, given) as pool:
        try:
            with blocked_interrupt(), main_left_out(pickle.dumps(vectors)):
                parts = deque(pool.submit(_part_of_worker, range(first, last)) for first, last in pairwise(edges))
            while parts:
                yield parts.popleft().result()
        except BaseException as error:
            # They have no work to complete. None of it was cancelled, as `map` would: the pool cannot mark that failed.
            for process in list((pool._processes or {}).values()):
                process.kill()
            if isinstance(error, BrokenProcessPool):
                raise DatasetError(
                    "statistics: a process that computes them died; check the memory, or use workers=0"
                ) from None
            raise


_WORKER: dict[str, Any] = {}  # in a process that reads parts: the arguments of `_part`


def _begin(environment: Mapping[str, str], vectors: TimelineDataset, skip: bool) -> None:
    forked_processes.begin(environment)
    torch.set_num_threads(1)
    _WORKER.update(vectors=vectors, skip=skip)


def _part_of_worker(episodes: range) -> _Part:
    return _part(episodes=episodes, **_WORKER)


def _part(vectors: TimelineDataset, episodes: range, skip: bool) -> _Part:
    """Return the values of some episodes, NaN where they are not valid."""
    part = _Part({}, [])
    for index in episodes:
        try:
            episode = vectors.streams_of(index)
            sample = vectors.align_episode(episode)
        except DatasetError as error:
            if not skip:
                raise
            part.skipped.append(str(error))
            continue
        for key, role in _ROLES.items():
            if key in sample:
                values = np.where(_valid(episode, sample, role), sample[key].numpy(), np.float32(np.nan))
                part.tables.setdefault(key, []).append((values, episode.source))
        if sum(values.nbytes for tables in part.tables.values() for values, _ in tables) > MAX_BYTES:
            raise DatasetError(f"{episode.source}: values of more than {MAX_BYTES >> 30} GiB; use fewer episodes")
    return part


def _merged(parts: Iterator[_Part]) -> dict[str, Stats]:
    tables: dict[str, list[NDArray[np.float32]]] = {}
    skipped: list[str] = []
    nbytes = 0
    for part in parts:
        skipped += part.skipped
        for key, given in part.tables.items():
            for values, where in given:
                before = tables.setdefault(key, [])
                if before and before[0].shape[1] != values.shape[1]:
                    raise DatasetError(f"{where}: {values.shape[1]} columns of {key}, not {before[0].shape[1]}")
                before.append(values)
                nbytes += values.nbytes
        if nbytes > MAX_BYTES:
            raise DatasetError(f"statistics: values of more than {MAX_BYTES >> 30} GiB; use fewer episodes")
    if skipped:
        message = f"statistics: without {len(skipped):,} episodes that cannot be read, the first: {skipped[0]}"
        warnings.warn(message, stacklevel=3)
    if not tables:
        raise DatasetError("statistics: no episode has values; check the path and the split")
    return {key: of_columns(*given) for key, given in tables.items()}


def _valid(episode: SourceEpisode, sample: dict[str, Any], role: str) -> NDArray[np.bool_]:
    """(T, columns) whether each value of a role is one."""
    valid = sample["valid"].numpy() > 0
    columns = [
        np.repeat(valid[:, index, None], np.asarray(stream.values).shape[1], axis=1)
        for index, stream in enumerate(episode.streams.values())
        if stream.role == role
    ]
    return np.concatenate(columns, axis=1)


def _store(path: Path, statistics: dict[str, Stats]) -> None:
    partial = path.with_name(f"{path.name}.{os.getpid()}")  # several processes may compute them at once
    try:
        partial.write_text(json.dumps(statistics), encoding="utf-8")
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
