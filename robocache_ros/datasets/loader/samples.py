"""The samples of a dataset: its items, or windows of them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from robocache_ros.datasets.loader.reading import MAX_REASON
from robocache_ros.errors import RoboCacheError, printable


class Samples:
    """Numbers the samples of a dataset.

    Args:
        dataset: an item is an episode, or what the dataset itself makes of one.
        windows: (ticks, stride) of the windows that items are cut into, those that are complete; None: whole items.
            Items shorter than a window have none.
        skip: count items whose length cannot be read in `unreadable`, instead of raising.
    """

    def __init__(self, dataset: Any, windows: tuple[int, int] | None, *, skip: bool = False) -> None:
        self.windows, self._dataset = windows, dataset
        self.unreadable: dict[int, str] = {}
        if windows is None:
            if skip and hasattr(dataset, "leave_out_unreadable"):
                self.unreadable = dataset.leave_out_unreadable()
            self._ends = np.arange(1, len(dataset) + 1, dtype=np.int64)
            return
        ticks, stride = windows
        if ticks < 1 or stride < 1:
            raise RoboCacheError(f"windows: {windows}: the ticks and the stride are at least 1; give (ticks, stride)")
        lengths = self._lengths(dataset, skip)
        self._ends = np.cumsum(np.maximum(0, (lengths - ticks) // stride + 1))

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def of(self, numbers: NDArray[np.int64]) -> list[list[int]]:
        """Return the fields of samples by their numbers, (B,) int64. They are sent to workers: lists take less time."""
        items, starts = self.places(numbers)
        ticks = np.full_like(numbers, self.windows[0] if self.windows else 0)
        fields: list[list[int]] = np.stack([numbers, items, starts, ticks], axis=1).tolist()
        return fields

    def places(self, numbers: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the items of samples, and their first ticks in them, (B,) int64 each."""
        if self.windows is None:
            return numbers, np.zeros_like(numbers)
        items = np.searchsorted(self._ends, numbers, "right")
        before = np.where(items > 0, self._ends[items - 1], 0)
        return items, (numbers - before) * self.windows[1]

    def episode_ends(self) -> NDArray[np.int64]:
        """(N,) the number after the last sample of each episode that is cut into windows; that of all if none is."""
        if self.windows is None and getattr(self._dataset, "window", None) is not None:
            return np.asarray(self._dataset.window_ends(), np.int64)
        return self._ends if self.windows else self._ends[-1:]

    def _lengths(self, dataset: Any, skip: bool) -> NDArray[np.int64]:
        """(N,) ticks of each item."""
        if hasattr(dataset, "lengths"):
            return np.asarray(dataset.lengths, np.int64)
        if getattr(dataset, "window", None) is not None:
            raise RoboCacheError("windows: the dataset makes windows of its own; give one of the two")
        if not (hasattr(dataset, "ticks") and hasattr(dataset, "source")):
            raise RoboCacheError("windows: the dataset does not know its lengths; give it an attribute `lengths`")
        lengths = np.zeros(len(dataset), np.int64)
        for item in range(len(dataset)):
            try:
                lengths[item] = dataset.ticks(dataset.source.span_ns(item), f"episode {item}")[1]
            except (RoboCacheError, OSError) as error:
                if not skip:
                    raise
                self.unreadable[item] = printable(error, MAX_REASON)
        return lengths


def stream_widths(dataset: Any) -> dict[str, tuple[int, ...]]:
    """The columns that each stream has in `fused`, `proprio`, `actions` and `rewards`, in the order of `valid`.

    They are empty for a dataset that does not know its streams, and for one without a readable episode.
    """
    if getattr(dataset, "layout", None) is not None:  # of a mixture, whose datasets all have it
        dataset = dataset.datasets[0]
    if not hasattr(dataset, "streams_of"):
        return {}
    for index in range(len(dataset)):
        try:
            streams = dataset.streams_of(index if getattr(dataset, "window", None) is None else dataset.place(index)[0])
        except (RoboCacheError, OSError):
            continue
        columns = [
            ("" if stream.is_image else stream.role, 0 if stream.is_image else stream.values.shape[1])
            for stream in streams.streams.values()
        ]
        roles = {
            "fused": ("observation", "action"),
            "proprio": ("observation",),
            "actions": ("action",),
            "rewards": ("reward",),
        }
        return {key: tuple(width if role in wanted else 0 for role, width in columns) for key, wanted in roles.items()}
    return {}
