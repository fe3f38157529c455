"""What `robocache bench live` measures."""

from __future__ import annotations

from dataclasses import dataclass, field

from robocache_ros.bench.load import Load

WARM_UP_S = 3.0  # published and counted, but not in the latencies: compilers and caches


@dataclass(frozen=True)
class Options:
    """What is measured."""

    load: Load = field(default_factory=Load)
    seconds: float = 60.0
    device: str = "auto"
    delay_ms: float = 3.0
    lead_ms: float = 1.5  # of delay_ms: the tick is made this long before its beat
    via: str = "auto"  # auto, message: FusedSubscriber; ring: the ring itself
    reliability: str = "best_effort"
    drivers_apart: bool = False  # publish from a process for each camera, one for clouds, one for the rest
