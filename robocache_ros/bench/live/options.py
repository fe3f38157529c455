"""The options of `robocache bench live`."""

from __future__ import annotations

from dataclasses import dataclass, field

from robocache_ros.bench.live.load import Load

WARM_UP_S = 3.0  # published and counted, but not in the latencies: compilers and caches


@dataclass(frozen=True)
class Options:
    """Load, device and transport of a measurement."""

    load: Load = field(default_factory=Load)
    seconds: float = 60.0
    device: str = "auto"
    delay_ms: float = 3.0
    lead_ms: float = 1.5  # of delay_ms: the tick is computed this long before it is published
    via: str = "auto"  # auto, message: FusedSubscriber; ring: the ring itself
    reliability: str = "best_effort"
    separate_publishers: bool = False  # publish from a process for each camera, one for clouds, one for the rest
