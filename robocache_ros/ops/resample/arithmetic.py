"""The float32 arithmetic between two samples, one rounding per operation; kernels/resample/arithmetic.cuh is the same.

NumPy's elementwise operations are used, and not torch's, because each of them rounds once and its square root is exact
to the last bit; the header repeats them operation by operation, so CPU and GPU give the same bits.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Float32 = NDArray[np.float32]

METHODS = ("linear", "slerp", "angle", "hold", "nearest")
BLENDED = frozenset({"linear", "slerp", "angle"})  # methods that blend two samples; the others copy one

PI = np.float32(3.14159274)
INVERSE_TWO_PI = np.float32(0.159154937)
TWO_PI_HIGH = np.float32(6.28125)  # nine bits, so that its product with a number of turns is exact
TWO_PI_LOW = np.float32(0.00193530717)
# sin(t*angle) / sin(angle) as a series in cos(angle) - 1: Eberly, "A Fast and Accurate Algorithm for Computing SLERP",
# Journal of Graphics, GPU, and Game Tools 15(3), 2011. With the angle halved first, eight terms leave less than 1e-8.
SERIES_U = tuple(np.float32(1 / (i * (2 * i + 1))) for i in range(1, 9))
SERIES_V = tuple(np.float32(i / (2 * i + 1)) for i in range(1, 9))
ONE, HALF = np.float32(1), np.float32(0.5)


def linear(before: Float32, after: Float32, weight: Float32) -> Float32:
    """`before + weight * (after - before)`; shapes broadcast."""
    return before + weight * (after - before)


def angle(before: Float32, after: Float32, weight: Float32) -> Float32:
    """The same for angles in rad, by the shorter way round.

    Angles given in [-pi, pi] stay there. One kept over several turns is not folded: the result stays near `before`.
    """
    moved = before + weight * _fold(after - before)
    wrapped = (np.abs(before) <= PI) & (np.abs(after) <= PI) & (np.abs(moved) > PI)
    return np.where(wrapped, _fold(moved), moved)


def slerp(before: Float32, after: Float32, weight: Float32) -> Float32:
    """The same for quaternions on the shorter arc; (..., 4n) float32 holds n of them side by side.

    The components may be in any order. A length other than one is kept and blended; a quaternion of length zero is
    blended linearly.
    """
    q0 = before.reshape(*before.shape[:-1], before.shape[-1] // 4, 4)
    q1 = after.reshape(*after.shape[:-1], after.shape[-1] // 4, 4)
    a = np.broadcast_to(weight, before.shape)[..., ::4]
    dot, lengths = _dot(q0, q1), _dot(q0, q0) * _dot(q1, q1)
    cosine = np.minimum(np.abs(dot) / np.sqrt(lengths), ONE)
    half_cosine = np.sqrt((ONE + cosine) * HALF)
    first_half = a <= HALF
    part = np.where(first_half, a + a, (a + a) - ONE)  # how far along its half of the arc
    y = half_cosine - ONE
    start, end = _sine_ratio(ONE - part, y), _sine_ratio(part, y)
    middle = np.where(first_half, end, start) / (half_cosine + half_cosine)  # the arc's middle is (q0 + q1) / 2 cos
    w0: Float32 = np.where(first_half, start + middle, middle)
    w1: Float32 = np.where(first_half, middle, middle + end)
    w1 = np.where(dot < 0, -w1, w1)
    some = lengths > 0
    w0 = np.where(some, w0, ONE - a)[..., None]
    w1 = np.where(some, w1, a)[..., None]
    result: Float32 = (w0 * q0 + w1 * q1).reshape(before.shape)
    return result


ARITHMETIC: dict[str, Callable[[Float32, Float32, Float32], Float32]] = {
    "linear": linear,
    "slerp": slerp,
    "angle": angle,
}


def _fold(angles: Float32) -> Float32:
    turns = np.rint(angles * INVERSE_TWO_PI)
    folded: Float32 = (angles - turns * TWO_PI_HIGH) - turns * TWO_PI_LOW
    return folded


def _dot(p: Float32, q: Float32) -> Float32:
    products = p * q
    total: Float32 = ((products[..., 0] + products[..., 1]) + products[..., 2]) + products[..., 3]
    return total


def _sine_ratio(t: Float32, y: Float32) -> Float32:
    """sin(t*angle) / sin(angle) for y = cos(angle) - 1 in [-0.3, 0]."""
    square = t * t
    total = np.ones_like(t)
    for u, v in zip(reversed(SERIES_U), reversed(SERIES_V), strict=True):
        total = ONE + ((u * square - v) * y) * total
    return t * total
