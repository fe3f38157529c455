"""Poses as a position and a unit quaternion, composed in float64.

Only + - * / and sqrt are used, each with its own rounding, on floats or elementwise on arrays. The bits are the same
for one tick and for many ticks, and on every machine.
"""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import numpy as np

from robocache_ros.decode.transforms import Transform

# px, py, pz in metres and qx, qy, qz, qw: seven floats, or seven float64 arrays of the same shape.
Pose: TypeAlias = tuple[Any, ...]

IDENTITY: Pose = (0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0)


def compose(a: Pose, b: Pose) -> Pose:
    """T_a_c from T_a_b and T_b_c."""
    ax, ay, az, ai, aj, ak, aw = a
    bx, by, bz, bi, bj, bk, bw = b
    rx, ry, rz = _rotated((ai, aj, ak, aw), (bx, by, bz))
    return (
        ax + rx,
        ay + ry,
        az + rz,
        aw * bi + ai * bw + aj * bk - ak * bj,
        aw * bj - ai * bk + aj * bw + ak * bi,
        aw * bk + ai * bj - aj * bi + ak * bw,
        aw * bw - ai * bi - aj * bj - ak * bk,
    )


def inverse(a: Pose) -> Pose:
    """T_b_a from T_a_b."""
    x, y, z, i, j, k, w = a
    rx, ry, rz = _rotated((-i, -j, -k, w), (x, y, z))
    return (-rx, -ry, -rz, -i, -j, -k, w)


def normalized(a: Pose) -> Pose:
    """The same pose, with its quaternion normalized to length one."""
    x, y, z, i, j, k, w = a
    square = i * i + j * j + k * k + w * w
    length = math.sqrt(square) if isinstance(square, float) else np.sqrt(square)  # both are correctly rounded
    return (x, y, z, i / length, j / length, k / length, w / length)


def pose_of(transform: Transform) -> Pose:
    """The pose of a transform; its quaternion must not be zero."""
    return normalized((*transform.translation_m, *transform.rotation_xyzw))


def _rotated(q: tuple[Any, ...], v: tuple[Any, ...]) -> tuple[Any, ...]:
    """A vector rotated by a unit quaternion: v + w t + u x t, with t = 2 u x v."""
    i, j, k, w = q
    x, y, z = v
    tx, ty, tz = 2.0 * (j * z - k * y), 2.0 * (k * x - i * z), 2.0 * (i * y - j * x)
    return (
        x + w * tx + (j * tz - k * ty),
        y + w * ty + (k * tx - i * tz),
        z + w * tz + (i * ty - j * tx),
    )
