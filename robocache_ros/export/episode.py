"""What one recording gave, for the report and for whoever wants to make the dataset again."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from robocache_ros.bags.stats import TopicStats
from robocache_ros.export.report.thumbnails import Thumbnails
from robocache_ros.spec import FusionSpec


@dataclass(frozen=True)
class Episode:
    """What one recording gave, for the report and for whoever wants to make the dataset again."""

    bag: Path
    spec: FusionSpec
    visibility: str
    start_ns: int
    stop_ns: int
    ticks_ns: NDArray[np.int64] = field(repr=False)  # (T,) every tick of the recording
    valid: NDArray[np.uint8] = field(repr=False)  # (T, N)
    leading: int  # ticks trimmed at either end
    trailing: int
    counters: dict[str, Counter[str]]
    topics: dict[str, TopicStats]
    notes: tuple[str, ...]
    integrity: str  # what is known of the messages' checksums
    thumbnails: Thumbnails = field(repr=False)

    @property
    def frames(self) -> int:
        """Ticks that were kept."""
        return len(self.ticks_ns) - self.leading - self.trailing

    @property
    def duration_s(self) -> float:
        """Length of the recording."""
        return (self.stop_ns - self.start_ns) / 1e9
