"""Linear interpolation of angles in rad, across the wrap at pi."""

from __future__ import annotations

import numpy as np

from robocache_ros.alignments import Alignment, Float32, Float64

PI = np.float32(3.14159274)
INVERSE_TWO_PI = np.float32(0.159154937)
TWO_PI_HIGH = np.float32(6.28125)  # nine bits, so that its product with a number of turns is exact
TWO_PI_LOW = np.float32(0.00193530717)


def blend(before: Float32, after: Float32, weight: Float32) -> Float32:
    """Blend angles in rad in the direction of the smaller rotation; shapes broadcast.

    Angles in [-pi, pi] stay in this range. An angle that counts several turns is not wrapped: the result stays near
    `before`.
    """
    moved = before + weight * fold(after - before)
    wrapped = (np.abs(before) <= PI) & (np.abs(after) <= PI) & (np.abs(moved) > PI)
    return np.where(wrapped, fold(moved), moved)


def fold(angles: Float32) -> Float32:
    """Return the angles in rad without whole turns, in [-pi, pi]."""
    turns = np.rint(angles * INVERSE_TWO_PI)
    folded: Float32 = (angles - turns * TWO_PI_HIGH) - turns * TWO_PI_LOW
    return folded


def oracle(before: Float64, after: Float64, share: float) -> Float64:
    """`blend` in float64."""
    turn = 2 * np.pi
    moved = before + share * (after - before - turn * np.round((after - before) / turn))
    wraps = (np.abs(before) <= np.pi) & (np.abs(after) <= np.pi)
    return np.where(wraps, moved - turn * np.round(moved / turn), moved)


ALIGNMENT = Alignment(
    "linear interpolation of angles in the direction of the smaller rotation, across the wrap at pi; with `unit: deg` "
    "at 180 or at 360",
    blend=blend,
    oracle=oracle,
    values="angles",
    unit="rad",
)
