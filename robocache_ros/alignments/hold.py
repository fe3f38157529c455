"""The newest sample at or before the tick."""

from __future__ import annotations

from robocache_ros.alignments import Alignment

ALIGNMENT = Alignment(
    "the newest sample at or before the tick",
    selects="newest",
    values="numbers, images or clouds",
    default_of=("image", "cloud"),
    has_gradient=True,
)
