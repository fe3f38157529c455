"""The result of the export of one recording, for the report and for the provenance of the dataset."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robocache_ros.bags.stats import TopicStats
from robocache_ros.errors import number_of
from robocache_ros.export.episodes.episode_info import EpisodeInfo
from robocache_ros.export.report.thumbnails import Thumbnails
from robocache_ros.export.report.tick_states import Totals
from robocache_ros.spec import FusionSpec


@dataclass(frozen=True)
class FailedRecording:
    """A recording that is not in the dataset, and the reason."""

    bag: Path
    reason: str
    dropped: bool = False  # because of `on_invalid: drop`


@dataclass(frozen=True)
class ExportedRecording:
    """The result of the export of one recording."""

    bag: Path
    spec: FusionSpec
    visibility: str
    start_ns: int
    stop_ns: int
    ticks_ns: NDArray[np.int64] = field(repr=False)  # (T,) every tick of the recording
    valid: NDArray[np.uint8] = field(repr=False)  # (T, N)
    episodes: tuple[EpisodeInfo, ...]  # their start and stop are rows of `ticks_ns`
    counters: dict[str, Counter[str]]
    topics: dict[str, TopicStats]
    notes: tuple[str, ...]
    integrity: str  # whether checksums of the messages were verified
    thumbnails: Thumbnails = field(repr=False)
    task: str = ""
    success: bool | None = None  # None: unknown
    clocks: dict[str, Any] = field(default_factory=dict)  # `timeline`, and the `device_clocks` of streams
    reasons: dict[str, int] = field(default_factory=dict)  # why ticks are in no episode -> number of ticks
    visibilities: dict[str, Totals] = field(default_factory=dict)  # with `compare_visibility`: ideal and deployed

    @property
    def kept(self) -> NDArray[np.bool_]:
        """(T,) bool, true for ticks in an episode."""
        kept = np.zeros(len(self.ticks_ns), bool)
        for episode in self.episodes:
            kept[episode.start : episode.stop] = True
        return kept

    @property
    def frames(self) -> int:
        """Number of ticks in episodes."""
        return sum(episode.stop - episode.start for episode in self.episodes)

    @property
    def leading(self) -> int:
        """Number of ticks before the first episode."""
        return self.episodes[0].start if self.episodes else len(self.ticks_ns)

    @property
    def trailing(self) -> int:
        """Number of ticks after the last episode."""
        return len(self.ticks_ns) - self.episodes[-1].stop if self.episodes else 0

    @property
    def duration_s(self) -> float:
        """Duration of the recording in seconds."""
        return (self.stop_ns - self.start_ns) / 1e9

    def elapsed_s(self, time_ns: int) -> float:
        """Return the seconds from the start of the recording to a time; where its clock jumps back, by its ticks."""
        if not len(self.ticks_ns) or (np.diff(self.ticks_ns) >= 0).all():
            return (time_ns - self.start_ns) / 1e9
        row = int(np.abs(self.ticks_ns - time_ns).argmin())
        return (int(self.ticks_ns[0]) - self.start_ns) / 1e9 + row / self.spec.rate_hz

    def left_out(self) -> str:
        """Describe the ticks that are not in an episode; empty if there are none."""
        total = len(self.ticks_ns)
        if self.frames == total:
            return ""
        between = total - self.leading - self.trailing - self.frames
        parts = [
            f"{count} {where}"
            for count, where in ((self.leading, "at the start"), (between, "in between"), (self.trailing, "at the end"))
            if count
        ]
        reasons = ", ".join(f"{count} {reason}" for reason, count in self.reasons.items())
        split = f"; {len(self.episodes)} episodes" if len(self.episodes) > 1 else ""
        return f"{total - self.frames} of {number_of(total, 'tick')} left out: {reasons} ({', '.join(parts)}){split}"


def drop_causes(counts: Mapping[str, int]) -> str:
    """List why messages of a stream were dropped, with numbers, from its counters; empty if none were."""
    causes = {key.removeprefix("dropped:"): count for key, count in counts.items() if key.startswith("dropped:")}
    return ", ".join(f"{count} {cause}" for cause, count in sorted(causes.items()))
