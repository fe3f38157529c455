"""Stored statistics against those of the values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from robocache_ros.export.validate.findings import Findings

SUMS = ("min", "max", "mean", "std")
# Of statistics that this package wrote: NumPy may add in another order on another machine.
EXACT = 1e-12  # of the greatest value
# Of others: they are often merged from episodes or computed in float32, where the variance loses half of the digits.
CLOSE = 1e-3  # of the range
ROUNDED = {"std": 5e-3}  # of the greatest value


def compare(
    findings: Findings,
    where: str,
    stored: Any,
    values: dict[str, Any],
    *,
    exact: bool,
    required: Sequence[str] = SUMS,
) -> None:
    """Report stored statistics that differ from those of the values.

    Args:
        findings: collects what is wrong.
        where: the file and the feature.
        stored: min, max, mean, std and count, and quantiles, as read.
        values: the same, computed from the values.
        exact: compare to the rounding of sums, and quantiles too; false: to a thousandth of the range.
        required: the statistics that must be stored.
    """
    if not isinstance(stored, dict):
        findings.add(where, "is not an object of statistics")
        return
    names = [name for name in values if name in stored] if exact else [name for name in SUMS if name in stored]
    for name in [name for name in required if name not in stored]:
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
        copied = name == "count" or (exact and name in ("min", "max"))
        off = ~(np.abs(told - wanted) <= (0 if copied else tolerance))  # true for NaN
        if off.any():
            at = int(off.reshape(-1).argmax())
            of_column = f" of value {at}" if wanted.size > 1 else ""
            findings.add(where, f"{name}{of_column}: {told.flat[at]:g} is stored, the data has {wanted.flat[at]:g}")
    findings.counted["statistics"] += len(names)


def compare_images(findings: Findings, where: str, stored: Any, episodes: Sequence[Mapping[str, Any]]) -> None:
    """Report statistics of the images of all episodes that are not those of the episodes together.

    Args:
        findings: collects what is wrong.
        where: the file and the feature.
        stored: min, max, mean, std and count of each channel, as read.
        episodes: the same of each episode, as read.
    """
    try:
        every = {name: np.array([np.reshape(of[name], -1) for of in episodes], float) for name in (*SUMS, "count")}
        told = {name: np.reshape(stored[name], -1).astype(float) for name in (*SUMS, "count")}
    except (KeyError, TypeError, ValueError):
        findings.add(where, f"has not {', '.join(SUMS)} and count of each channel, here or in an episode")
        return
    counts = every["count"]
    if not (counts.sum(axis=0) > 0).all():
        findings.add(where, "count: the episodes have no images")
        return
    mean = (every["mean"] * counts).sum(axis=0) / counts.sum()
    variance = ((every["std"] ** 2 + (every["mean"] - mean) ** 2) * counts).sum(axis=0) / counts.sum()
    wanted = {"min": every["min"].min(axis=0), "max": every["max"].max(axis=0), "mean": mean}
    wanted |= {"std": np.sqrt(variance), "count": counts.sum(axis=0)}
    for name, of_name in wanted.items():
        if told[name].shape != of_name.shape or not np.allclose(told[name], of_name, rtol=CLOSE, atol=CLOSE):
            text = f"{name}: {told[name][:1]} is stored, the episodes have {of_name[:1]}"
            findings.add(where, text)


def check_image_statistics(findings: Findings, where: str, stored: Any) -> None:
    """Report statistics of images that no images have: of pixels from 0 to 1, in their order."""
    try:
        low, mean, high, std = (np.reshape(stored[name], -1).astype(float) for name in ("min", "mean", "max", "std"))
        order = bool(((low >= 0) & (low <= mean) & (mean <= high) & (high <= 1)).all())
        usable = order and bool(((std >= 0) & (std <= (high - low) / 2 + CLOSE)).all())
    except (KeyError, TypeError, ValueError):
        usable = False
    findings.check(usable, where, "no pixels from 0 to 1 have these min, mean, max and std")
