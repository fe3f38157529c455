"""The states and ages of the values of each stream, which tell what latency costs a recording."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robocache_ros.engine.frames import Frames
from robocache_ros.units import NS_PER_MS

VISIBILITIES = ("ideal", "deployed")
Totals = dict[str, Any]  # ticks, and by stream the ticks aligned and held, and the sum and the number of ages


class ValueAges:
    """Adds up the ages of the values of N streams."""

    def __init__(self, streams: int) -> None:
        self._sum_ms = np.zeros(streams)
        self._count = np.zeros(streams, np.int64)

    def add(self, frames: Frames) -> None:
        """Add the values of frames."""
        present = frames.valid > 0
        self._sum_ms += np.where(present, frames.age_ns / NS_PER_MS, 0.0).sum(axis=0)
        self._count += present.sum(axis=0)

    def totals(self, valid: NDArray[np.uint8]) -> Totals:
        """Return sums that can be added up over recordings, given the (T, N) states of all ticks."""
        return {
            "ticks": len(valid),
            "aligned": (valid == 1).sum(axis=0).tolist(),
            "held": (valid == 2).sum(axis=0).tolist(),
            "age_ms": self._sum_ms.tolist(),
            "ages": self._count.tolist(),
        }


def coverage(totals: list[Totals], names: tuple[str, ...]) -> dict[str, dict[str, float]]:
    """Return the shares of aligned, held and invalid ticks of each stream, and the mean age of its values in ms.

    The age of a stream without a value is NaN.
    """
    ticks = max(sum(one["ticks"] for one in totals), 1)
    aligned, held, age_ms, ages = (
        np.sum([one[key] for one in totals], axis=0) for key in ("aligned", "held", "age_ms", "ages")
    )
    return {
        name: {
            "aligned": float(aligned[row] / ticks),
            "held": float(held[row] / ticks),
            "invalid": float(1 - (aligned[row] + held[row]) / ticks),
            "mean_age_ms": float(age_ms[row] / ages[row]) if ages[row] else float("nan"),
        }
        for row, name in enumerate(names)
    }


def side_by_side(
    recordings: list[Mapping[str, Totals]], names: tuple[str, ...]
) -> dict[str, dict[str, dict[str, float]]]:
    """Return by visibility the coverage over the recordings that were computed under both; empty if none was."""
    both = [one for one in recordings if all(visibility in one for visibility in VISIBILITIES)]
    if not both:
        return {}
    return {visibility: coverage([one[visibility] for one in both], names) for visibility in VISIBILITIES}
