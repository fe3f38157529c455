"""The first sample at or after the tick, for actions: the first command that follows an observation."""

from __future__ import annotations

from robocache_ros.alignments import Alignment

ALIGNMENT = Alignment(
    "the first sample at or after the tick, for actions; `delay_ms` must be long enough for it to arrive",
    selects="next",
    values="numbers, images or clouds",
    has_gradient=True,
)
