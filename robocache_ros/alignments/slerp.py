"""Spherical linear interpolation of quaternions, on the shorter arc."""

from __future__ import annotations

import numpy as np

from robocache_ros.alignments import Alignment, Float32, Float64

# sin(t*angle) / sin(angle) as a series in cos(angle) - 1: Eberly, "A Fast and Accurate Algorithm for Computing SLERP",
# Journal of Graphics, GPU, and Game Tools 15(3), 2011. On half of the angle, eight terms leave an error below 1e-8.
SERIES_U = tuple(np.float32(1 / (i * (2 * i + 1))) for i in range(1, 9))
SERIES_V = tuple(np.float32(i / (2 * i + 1)) for i in range(1, 9))
ONE, HALF = np.float32(1), np.float32(0.5)


def blend(before: Float32, after: Float32, weight: Float32) -> Float32:
    """Blend quaternions on the shorter arc; (..., 4n) float32 holds n of them side by side.

    The components may be in any order. Quaternions are not normalised: lengths other than one are blended too. A
    quaternion of length zero is blended linearly.
    """
    q0 = before.reshape(*before.shape[:-1], before.shape[-1] // 4, 4)
    q1 = after.reshape(*after.shape[:-1], after.shape[-1] // 4, 4)
    a = np.broadcast_to(weight, before.shape)[..., ::4]
    dot, lengths = _dot(q0, q1), _dot(q0, q0) * _dot(q1, q1)
    cosine = np.minimum(np.abs(dot) / np.sqrt(lengths), ONE)
    half_cosine = np.sqrt((ONE + cosine) * HALF)
    first_half = a <= HALF
    part = np.where(first_half, a + a, (a + a) - ONE)  # position along its half of the arc
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


def oracle(before: Float64, after: Float64, share: float) -> Float64:
    """`blend` in float64, with sin and arcsin."""
    pairs = zip(before.reshape(-1, 4), after.reshape(-1, 4), strict=True)
    return np.concatenate([_slerp(p, q, share) for p, q in pairs])


def _slerp(p: Float64, q: Float64, share: float) -> Float64:
    lengths = np.linalg.norm(p) * np.linalg.norm(q)
    if lengths == 0:
        return p + share * (q - p)
    if p @ q < 0:
        q = -q
    # For nearly equal unit vectors, the angle from their chord is accurate, and the arccos of their cosine is not.
    chord = np.linalg.norm(p / np.linalg.norm(p) - q / np.linalg.norm(q))
    angle = 2 * np.arcsin(min(float(chord) / 2, 1.0))
    if angle < 1e-9:
        return p + share * (q - p)
    mixed: Float64 = (np.sin((1 - share) * angle) * p + np.sin(share * angle) * q) / np.sin(angle)
    return mixed


ALIGNMENT = Alignment(
    "spherical linear interpolation of unit quaternions, on the shorter arc",
    blend=blend,
    oracle=oracle,
    group=4,
    values="quaternions",
)
