"""Windows of one episode that are read together, which takes a fraction of the time of reading them one by one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class WindowRun(NamedTuple):
    """B windows of an episode."""

    arrays: dict[str, NDArray[Any]]  # (B, ...)
    texts: dict[str, str]  # of the episode
    ticks: int  # of each


def read_windows(dataset: Any, items: Sequence[int]) -> WindowRun | None:
    """Read windows at once.

    Args:
        dataset: a `TimelineDataset` with windows.
        items: their indices.

    Returns:
        None if they are of several episodes, or have images of files, which are decoded into the batch one by one.

    Errors:
        DatasetError: a file, a record or an image is missing or damaged.
    """
    places = [dataset.place(item) for item in items]
    if len({episode for episode, _ in places}) > 1:
        return None
    episode, count = dataset.aligned_episode(places[0][0])
    if episode.has_files:
        return None
    ticks = np.array([tick for _, tick in places], np.int64)
    rows, flags = dataset.window.rows(ticks[:, None], count)
    arrays, texts = episode.windows(*rows)
    return WindowRun({**arrays, **flags}, texts, dataset.window.n_obs)
