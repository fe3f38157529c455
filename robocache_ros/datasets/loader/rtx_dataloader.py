"""A loader of RT-X data in one call."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from robocache_ros.datasets.loader.runs import ShuffledRuns
from robocache_ros.datasets.loader.timeline_loader import TimelineLoader
from robocache_ros.datasets.public_datasets import ALL_MODALITIES, RTXDataset, dataset_path
from robocache_ros.datasets.window import Window


def create_rtx_dataloader(
    data_dir: str | Path,
    batch_size: int = 16,
    target_hz: float = 50.0,
    *,
    use_robocache: bool = True,
    device: str = "auto",
    modalities: Sequence[str] = ALL_MODALITIES,
    split: str = "train",
    window: Window | None = None,
    image_size: Sequence[int] | None = None,
    cache_dir: str | Path | None = None,
    cache_bytes: int | None = None,
    shuffle: bool | ShuffledRuns = True,
    workers: int = 2,
    **arguments: Any,
) -> TimelineLoader:
    """Create a loader of the RLDS datasets in a folder.

    Args:
        data_dir: see `RTXDataset`, as `target_hz`, `modalities`, `split`, `window` and `image_size`.
        batch_size: samples of a batch: episodes, or windows.
        target_hz: ticks per second.
        use_robocache: keep the aligned samples where they fit: `cache="auto"`; else `cache="none"`.
        device: of the batches.
        modalities: the parts that are read.
        split: of the datasets.
        window: the ticks of a sample.
        image_size: height and width of all images, which the datasets of a folder need in one batch.
        cache_dir: folder of downloaded files, if `data_dir` is a URL.
        cache_bytes: limit of its size; None: that of ROBOCACHE_CACHE_BYTES, or 64 GiB.
        shuffle: in a random order; see `TimelineLoader`.
        workers: processes that read.
        arguments: others of `TimelineLoader`.

    Errors:
        RoboCacheError: an argument is wrong, or the folder has no dataset.
    """
    path = dataset_path(data_dir, cache_dir=cache_dir, cache_bytes=cache_bytes)
    dataset = RTXDataset(path, modalities, target_hz, split=split, window=window, image_size=image_size)
    arguments.setdefault("cache", "auto" if use_robocache else "none")
    return TimelineLoader(dataset, batch_size, shuffle=shuffle, workers=workers, device=device, **arguments)
