"""Batches of samples from many runs, from the batches that the runs were read as."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch
from numpy.typing import NDArray
from torch import Tensor

from robocache_ros.datasets.loader.batch import Batch
from robocache_ros.datasets.loader.cache.cached_batches import Skipped
from robocache_ros.datasets.loader.packing import NEVER, is_time
from robocache_ros.datasets.loader.workers.batch_prefetch import OnDevice


def mixed(wanted: Iterable[NDArray], runs: Iterator[OnDevice]) -> Iterator[tuple[Batch | None, Skipped]]:  # type: ignore[type-arg]
    """Yield batches of wanted samples, None if a batch has none; and the samples that cannot be read.

    A run is read when a sample of it is wanted, and its memory is free when none is wanted any more.

    Args:
        wanted: (B,) the numbers of the samples of each batch.
        runs: together they have the samples.
    """
    held: dict[int, _Row] = {}
    unreadable: dict[int, str] = {}
    for numbers in wanted:
        rows, skipped = [], []
        for number in numbers.tolist():
            while number not in held and number not in unreadable:
                run = next(runs)
                unreadable.update(run.description.skipped)
                if run.batch is not None:
                    held.update(_rows(run.batch))
            if number in held:
                rows.append(held.pop(number))
            else:
                skipped.append((number, unreadable.pop(number)))
        yield _joined(rows) if rows else None, tuple(skipped)


class _Row:
    """A sample of a run."""

    def __init__(self, batch: Batch, place: int, tensors: dict[str, Tensor]) -> None:
        self.batch, self.place, self.tensors = batch, place, tensors
        self.length = batch.lengths[place]


def _rows(batch: Batch) -> Iterator[tuple[int, _Row]]:
    parts = {key: tensor.unbind(0) for key, tensor in batch.tensors.items()}
    for place, number in enumerate(batch.samples):
        yield number, _Row(batch, place, {key: part[place] for key, part in parts.items()})


def _joined(rows: Sequence[_Row]) -> Batch:
    first = rows[0].batch
    lengths = tuple(row.length for row in rows)
    tensors = {}
    for key in rows[0].tensors:
        parts = [row.tensors[key] for row in rows]
        if key in first.per_tick:
            parts = [part[:length] for part, length in zip(parts, lengths, strict=True)]
        tensors[key] = _stacked(parts, NEVER if is_time(key) else 0)
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
