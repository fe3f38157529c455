"""The images and arrays of an episode as formats store them tick by tick: one that several ticks use is made once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robocache_ros.export.dataset.episode import StoredArrays


class HeldBytes(Sequence[bytes]):
    """The bytes of each tick; those of the last sample are kept.

    Args:
        samples: (T,) number of the sample that a tick uses.
        data_of: returns the bytes of a tick; not called again for ticks with the same sample in a row.
    """

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


def array_or_zeros(arrays: StoredArrays, tick: int) -> NDArray[Any]:
    """Return the array of a tick; zeros if there is none, which only `on_invalid: mask` allows."""
    array = arrays[tick]
    if array is None:
        return np.zeros(arrays.info.shape, np.uint8 if arrays.info.dtype == "bits" else arrays.info.dtype)
    return np.ascontiguousarray(array)
