"""Checks of arrays that several formats share."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robocache_ros.export.validate.findings import Findings
from robocache_ros.extras import need
from robocache_ros.units import NS_PER_S

CLOCK_STARTS_NS = 3600 * NS_PER_S  # a stamp in the first hour of a clock: it is none of the time since 1970


def check_finite(findings: Findings, where: str, values: NDArray[Any]) -> None:
    """Report NaN and infinity in (T, ...) values."""
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        bad = ~np.isfinite(values.reshape(len(values), -1)).all(axis=1)
        findings.add(where, f"NaN or infinite in {int(bad.sum())} rows, the first is row {bad.argmax()}")


def check_ticks(findings: Findings, where: str, ticks: NDArray[np.int64], rate_hz: int) -> None:
    """Report ticks of an episode that are not on the grid, or that are not consecutive."""
    if not len(ticks):
        return
    first = (int(ticks[0]) * rate_hz + 500_000_000) // 10**9
    grid = [(first + k) * 10**9 // rate_hz for k in range(len(ticks))]  # Python integers do not overflow
    off = ticks != np.array(grid, np.int64)
    text = f"{int(off.sum())} ticks are not on the grid of {rate_hz} Hz, the first is row {off.argmax()}"
    findings.check(not off.any(), where, text)


def check_first_and_last(findings: Findings, where: str, flags: Mapping[str, NDArray[np.bool_]]) -> None:
    """Report is_first and is_last that are not at the ends of an episode."""
    for name, at in (("is_first", 0), ("is_last", -1)):
        if name in flags:
            steps = np.flatnonzero(flags[name])
            wanted = np.arange(len(flags[name]))[at:][:1]
            text = f"{name} is true at steps {steps[:5].tolist()}; it must be true at {wanted.tolist()} alone"
            findings.check(np.array_equal(steps, wanted), where, text)


def image_size(data: bytes, *, decode: bool) -> tuple[int, int]:
    """Return height and width of an encoded image; decode it on request.

    Errors:
        ValueError: it is not an image, is damaged or is too large.
    """
    pillow = need("PIL.Image", "export")
    try:
        with pillow.open(io.BytesIO(data)) as image:
            if decode:
                image.load()
            return image.height, image.width
    except (OSError, SyntaxError, pillow.DecompressionBombError) as error:
        raise ValueError(str(error)) from None


def stamps_disagree(stamps: NDArray[np.int64], valid: NDArray[np.integer[Any]]) -> NDArray[np.bool_]:
    """Return where a stamp of 0, which stands for no value, and `valid` disagree.

    The first sample of a recording whose clock starts at 0 has this stamp too.
    """
    starts_at_0 = bool(((stamps > 0) & (stamps < CLOCK_STARTS_NS)).any())
    disagree: NDArray[np.bool_] = np.where(valid == 0, stamps != 0, (stamps == 0) & (not starts_at_0))
    return disagree
