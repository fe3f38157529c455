"""Times and limits, given in int64 nanoseconds or in float seconds, as int64 nanoseconds."""

from __future__ import annotations

import math
import operator
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from robocache_ros.errors import RoboCacheError

TIME_DTYPES = (torch.int64, torch.float64, torch.float32)
NEVER = torch.iinfo(torch.int64).min  # marks a sample or a target as absent
FOREVER = torch.iinfo(torch.int64).max
_LIMIT = 2.0**62  # float seconds are kept within 146 years of zero, so that differences fit


def nanoseconds(times: Tensor) -> Tensor:
    """Times of any allowed dtype as int64 nanoseconds: seconds * 1e9 in float64, to the nearest; NaN is NEVER."""
    if times.dtype == torch.int64:
        return times
    seconds = times.double()
    whole = (seconds * 1e9).round_().clamp_(-_LIMIT, _LIMIT)
    return whole.nan_to_num_(nan=0.0).long().masked_fill_(seconds.isnan(), NEVER)


def limit_ns(name: str, limit: float | None, dtype: torch.dtype) -> int:
    """A limit in ns. It is given in the unit of the times: ns for int64, seconds for floats; None for no limit."""
    if limit is None:
        return FOREVER
    limit = _number(name, limit)
    if math.isnan(limit) or limit < 0 or (dtype == torch.int64 and limit != int(min(limit, FOREVER))):
        unit = "an integer number of ns" if dtype == torch.int64 else "seconds"
        raise RoboCacheError(f"{name}: expected {unit}, not negative, because times are {dtype}; got {limit}")
    return min(int(limit) if dtype == torch.int64 else round(min(limit, 9e9) * 1e9), FOREVER)


def _number(name: str, value: Any) -> float:
    for kind in (operator.index, float):  # integers of any type stay exact
        with suppress(TypeError, ValueError):
            return kind(value)
    raise RoboCacheError(f"{name}: expected a number or None, got {value!r}")
