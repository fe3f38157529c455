"""Which cache a dataset has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from robocache_ros.datasets.loader.cache.cached_batches import CachedBatches
from robocache_ros.datasets.loader.cache.sample_cache import fill
from robocache_ros.datasets.loader.cache.window_cache import WHOLE_READ, fill_windows
from robocache_ros.datasets.loader.workers.batch_prefetch import Prefetcher


def chunks_of(dataset: Any, cache: str) -> Any:
    """Return the dataset by whose windows a cache is filled; None if it is filled with items."""
    if cache == "none" or getattr(dataset, "window", None) is None or not hasattr(dataset, "of_source"):
        return None
    return dataset.of_source(dataset.source, WHOLE_READ)


def filled(
    where: str, dataset: Any, prefetcher: Prefetcher, widths: Mapping[str, tuple[int, ...]], device: torch.device
) -> CachedBatches | None:
    """Read the whole dataset and keep it, if it fits. One line in the log states where it is kept, and why.

    Args:
        where: device, host or auto.
        dataset: of the loader.
        prefetcher: reads it; its reader has the `chunks_of` the dataset.
        widths: see `Batch`.
        device: of the batches.

    Returns:
        the cache; None if it fits nowhere and `where` is auto, or if nothing can be read.

    Errors:
        RoboCacheError: the dataset does not fit where it is wanted, or cannot be read.
    """
    if chunks_of(dataset, where) is None:
        return fill(where, len(dataset), prefetcher, widths, device)
    return fill_windows(where, dataset, prefetcher, widths, device)
