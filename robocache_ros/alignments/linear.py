"""A straight line between the two samples around the tick."""

from __future__ import annotations

from robocache_ros.alignments import Alignment, Float32, Float64


def blend(before: Float32, after: Float32, weight: Float32) -> Float32:
    """`before + weight * (after - before)`; shapes broadcast."""
    return before + weight * (after - before)


def oracle(before: Float64, after: Float64, share: float) -> Float64:
    """`blend` in float64."""
    return before + share * (after - before)


ALIGNMENT = Alignment(
    "linear interpolation between the samples before and after the tick",
    blend=blend,
    oracle=oracle,
    default_of=("vector",),
    has_gradient=True,
)
