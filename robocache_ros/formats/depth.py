"""Depth as 12-bit codes on a logarithmic scale, as in the depth videos of LeRobot from version 0.6 on.

A step is 0.033 % of (depth + 3.5 m): 1.2 mm at 0.01 m, 1.5 mm at 1 m, 4.4 mm at 10 m.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from robocache_ros.formats.statistics import Histogram, Stats

MIN_M, MAX_M, SHIFT_M = 0.01, 10.0, 3.5
CODES = 1 << 12
UNITS = {"mm": 1000.0, "m": 1.0}  # units of depth images, and their number in a metre (REP 118)

_LOWEST, _HIGHEST = np.log(MIN_M + SHIFT_M), np.log(MAX_M + SHIFT_M)


def depth_codes(depth: NDArray[Any], unit: str) -> NDArray[np.uint16]:
    """Return the codes, 0 to 4095, of (...) depths in a unit of `UNITS`.

    A depth below 0.01 m has the first code and a depth above 10 m the last one. A missing depth (0, NaN) has the first.
    """
    metres = np.nan_to_num(depth.astype(np.float64) / UNITS[unit], nan=0.0, posinf=MAX_M, neginf=0.0)
    share = (np.log(np.maximum(metres, MIN_M) + SHIFT_M) - _LOWEST) / (_HIGHEST - _LOWEST)
    codes: NDArray[np.uint16] = np.rint(share * (CODES - 1)).clip(0, CODES - 1).astype(np.uint16)
    return codes


def depths_of_codes(unit: str) -> NDArray[np.float64]:
    """Return the (4096,) depths that the codes stand for, in a unit of `UNITS`."""
    share = np.arange(CODES) / (CODES - 1)
    metres: NDArray[np.float64] = np.exp(_LOWEST + share * (_HIGHEST - _LOWEST)) - SHIFT_M
    return metres * UNITS[unit]


def depth_stats(codes: Histogram, unit: str) -> Stats:
    """Return the statistics of depths, [1][1][1] in a unit of `UNITS`, from counts of codes without missing ones."""
    counts = codes.counts.copy()
    if counts[:, 1:].any():
        counts[:, 0] = 0
    return Histogram(counts.tolist(), codes.images).stats(depths_of_codes(unit))
