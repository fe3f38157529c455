"""The sample whose stamp is nearest to the tick."""

from __future__ import annotations

from robocache_ros.alignments import Alignment

ALIGNMENT = Alignment(
    "the sample with the stamp nearest to the tick, the earlier one of two",
    selects="nearest",
    values="numbers, images or clouds",
    has_gradient=True,
)
