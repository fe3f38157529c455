"""Where the samples of a batch are in a cache: computed on a GPU from a few integers, so that nothing waits."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Indices = NDArray[np.int64]


class CachedPlaces(NamedTuple):
    """B samples of up to T ticks, as tensors where the cache is."""

    ticks: Tensor  # (B, T) int64 rows of their ticks, the last one again where they have ended
    rows: Tensor  # (B,) int64 of their items
    lengths: Tensor  # (B,) int64 ticks of each
    numbers: Tensor  # (B,) int64 of the samples
    padding: Tensor  # (B, T) bool
    ragged: bool  # whether there is padding


def cached_places(
    starts: Indices, lengths: Indices, rows: Indices, numbers: Indices, device: torch.device
) -> CachedPlaces:
    """Return the places of samples; `starts` are (B,) int64, the first tick of each."""
    longest = int(lengths.max())
    ragged = bool((lengths != longest).any())
    if device.type == "cpu":  # NumPy takes less time here
        counting = np.arange(longest)
        index = starts[:, None] + np.minimum(counting, lengths[:, None] - 1)
        padding = counting >= lengths[:, None]
        first, row, length, number, none = map(torch.from_numpy, (index, rows, lengths, numbers, padding))
        return CachedPlaces(first, row, length, number, none, ragged)
    sent = torch.from_numpy(np.stack([starts, lengths, rows, numbers])).pin_memory()
    first, length, row, number = sent.to(device, non_blocking=True).unbind()
    place = torch.arange(longest, device=device)
    if not ragged:
        none = torch.zeros((len(rows), longest), dtype=torch.bool, device=device)
        return CachedPlaces(first[:, None] + place, row, length, number, none, ragged)
    within = torch.minimum(place, length[:, None] - 1)
    return CachedPlaces(first[:, None] + within, row, length, number, place >= length[:, None], ragged)
