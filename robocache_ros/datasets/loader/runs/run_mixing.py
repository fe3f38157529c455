"""Batches of samples from many runs, from the batches that the runs were read as."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from numpy.typing import NDArray
from torch import Tensor

from robocache_ros.datasets.loader.batch import Batch
from robocache_ros.datasets.loader.cache.cached_batches import Skipped
from robocache_ros.datasets.loader.packing import NEVER, is_time
from robocache_ros.datasets.loader.runs.sample_pool import SamplePool
from robocache_ros.datasets.loader.workers.batch_prefetch import OnDevice


def mixed(wanted: Iterable[NDArray], runs: Iterator[OnDevice]) -> Iterator[tuple[Batch | None, Skipped]]:  # type: ignore[type-arg]
    """Yield batches of wanted samples, None if a batch has none; and the samples that cannot be read.

    A run is read when a sample of it is wanted, and its memory is free when none is wanted any more.

    Args:
        wanted: (B,) the numbers of the samples of each batch.
        runs: together they have the samples.
    """
    held: dict[int, _Row] = {}
    pool: SamplePool | None = None
    unreadable: dict[int, str] = {}
    for numbers in wanted:
        rows, skipped = [], []
        for number in numbers.tolist():
            while number not in held and number not in unreadable:
                run = next(runs)
                unreadable.update(run.description.skipped)
                if run.batch is not None:
                    pool = pool or SamplePool(run.batch)
                    held.update(_rows(run.batch, pool))
            if number in held:
                rows.append(held.pop(number))
            else:
                skipped.append((number, unreadable.pop(number)))
        yield _joined(rows, pool) if pool and rows else None, tuple(skipped)


class _Row(NamedTuple):
    """A sample of a run."""

    batch: Batch  # the run, with the tensors that are not in the pool
    place: int  # in the run
    slot: int  # in the pool; -1: not in it


def _rows(batch: Batch, pool: SamplePool) -> Iterator[tuple[int, _Row]]:
    slots = pool.add(batch)
    if slots is None:
        slots = [-1] * len(batch.samples)
    else:
        batch = replace(batch, tensors={key: each for key, each in batch.tensors.items() if key not in pool.tensors})
    for place, (number, slot) in enumerate(zip(batch.samples, slots, strict=True)):
        yield number, _Row(batch, place, slot)


def _joined(rows: Sequence[_Row], pool: SamplePool) -> Batch:
    first = rows[0].batch
    lengths = tuple(row.batch.lengths[row.place] for row in rows)
    slots = [row.slot for row in rows if row.slot >= 0]
    index = torch.tensor(slots) if len(slots) == len(rows) else None
    tensors = {}
    for key in pool.keys:
        if index is not None and key in pool.tensors:
            tensors[key] = pool.tensors[key].index_select(0, index)
            continue
        parts = [
            row.batch.tensors[key][row.place] if key in row.batch.tensors else pool.tensors[key][row.slot]
            for row in rows
        ]
        if key in first.per_tick:
            parts = [part[:length] for part, length in zip(parts, lengths, strict=True)]
        tensors[key] = _stacked(parts, NEVER if is_time(key) else 0)
    pool.free(slots)
    texts = {key: tuple(row.batch.texts[key][row.place] for row in rows) for key in first.texts}
    numbers = tuple(row.batch.samples[row.place] for row in rows)
    return Batch(tensors, numbers, lengths, first.per_tick, texts, first.widths)


def _stacked(parts: list[Tensor], padding: int) -> Tensor:
    if all(part.shape == parts[0].shape for part in parts):
        return torch.stack(parts)
    longest = max(len(part) for part in parts)
    found = parts[0].new_full((len(parts), longest, *parts[0].shape[1:]), padding)
    for row, part in zip(found, parts, strict=True):
        row[: len(part)] = part
    return found
