"""Stored statistics against those of the values."""

from __future__ import annotations

from typing import Any

import numpy as np

from robocache_ros.export.validate.findings import Findings

SUMS = ("min", "max", "mean", "std")
# Of statistics that this package wrote: NumPy may add in another order on another machine.
EXACT = 1e-9
# Of others: they are often merged from episodes or computed in float32, where the variance loses half of the digits.
CLOSE = 1e-3  # of the range
ROUNDED = {"std": 5e-3}  # of the greatest value


def compare(findings: Findings, where: str, stored: Any, values: dict[str, Any], *, exact: bool) -> None:
    """Report stored statistics that differ from those of the values.

    Args:
        findings: collects what is wrong.
        where: the file and the feature.
        stored: min, max, mean, std and count, and quantiles, as read.
        values: the same, computed from the values.
        exact: compare to the rounding of sums, and quantiles too; false: to a thousandth of the range.
    """
    if not isinstance(stored, dict):
        findings.add(where, "is not an object of statistics")
        return
    names = [name for name in values if name in stored] if exact else [name for name in SUMS if name in stored]
    for name in [name for name in SUMS if name not in stored]:
        findings.add(where, f"has no {name}")
    scale = np.maximum(np.abs(np.array(values["min"], float)), np.abs(np.array(values["max"], float)))
    spread = np.array(values["max"], float) - np.array(values["min"], float)
    for name in names:
        wanted = np.array(values[name], float)
        try:
            told = np.array(stored[name], float).reshape(wanted.shape)
        except (TypeError, ValueError):
            findings.add(where, f"{name}: is not {wanted.size} numbers")
            continue
        tolerance = EXACT * scale if exact else CLOSE * spread + ROUNDED.get(name, 1e-5) * scale + 1e-9
        off = ~(np.abs(told - wanted) <= (tolerance if name != "count" else 0))  # true for NaN
        if off.any():
            at = int(off.reshape(-1).argmax())
            of_column = f" of value {at}" if wanted.size > 1 else ""
            findings.add(where, f"{name}{of_column}: {told.flat[at]:g} is stored, the data has {wanted.flat[at]:g}")
    findings.counted["statistics"] += len(names)
