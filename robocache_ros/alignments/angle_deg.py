"""Linear interpolation of angles in deg, across the wrap at 180 or at 360."""

from __future__ import annotations

import numpy as np

from robocache_ros.alignments import Alignment, Float32, Float64

HALF_TURN = np.float32(180)
TURN = np.float32(360)  # six bits, so that its product with a number of turns is exact
INVERSE_TURN = np.float32(0.00277777785)


def blend(before: Float32, after: Float32, weight: Float32) -> Float32:
    """Blend angles in deg in the direction of the smaller rotation; shapes broadcast.

    Angles in [0, 360] stay in this range, and so do angles in [-180, 180]. An angle that counts several turns is not
    wrapped: the result stays near `before`.
    """
    moved = before + weight * fold(after - before)
    heading = (before >= 0) & (before <= TURN) & (after >= 0) & (after <= TURN)
    signed = ~heading & (np.abs(before) <= HALF_TURN) & (np.abs(after) <= HALF_TURN) & (np.abs(moved) > HALF_TURN)
    turned = np.where(moved < 0, moved + TURN, np.where(moved > TURN, moved - TURN, moved))
    return np.where(heading, turned, np.where(signed, fold(moved), moved))


def fold(angles: Float32) -> Float32:
    """Return the angles in deg without whole turns, in [-180, 180]."""
    folded: Float32 = angles - np.rint(angles * INVERSE_TURN) * TURN
    return folded


def oracle(before: Float64, after: Float64, share: float) -> Float64:
    """`blend` in float64."""
    moved = before + share * (after - before - 360 * np.round((after - before) / 360))
    heading = (before >= 0) & (before <= 360) & (after >= 0) & (after <= 360)
    turned = np.where(moved < 0, moved + 360, np.where(moved > 360, moved - 360, moved))
    signed = (np.abs(before) <= 180) & (np.abs(after) <= 180) & (np.abs(moved) > 180)
    return np.where(heading, turned, np.where(signed, moved - 360 * np.round(moved / 360), moved))


ALIGNMENT = Alignment(
    "`angle` for values in deg, across the wrap at 180 or at 360",
    blend=blend,
    oracle=oracle,
    values="angles",
    unit="deg",
    variant_of="angle",
)
