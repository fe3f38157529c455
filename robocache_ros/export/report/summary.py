"""What the index of a report states about each recording."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from robocache_ros.export.episodes.quality_limits import QualityLimit, limits_of
from robocache_ros.export.exported_recording import ExportedRecording
from robocache_ros.export.report.breaks import Break, breaks_of

KEPT = 50  # longest interruptions kept of a recording, and of a dataset


@dataclass(frozen=True)
class Summary:
    """A recording in short. Shares are of the ticks in episodes, of observations and actions.

    Attributes:
        index: number of the recording in the report.
        first_episode: number of its first episode in the dataset.
        aligned, held, invalid: mean of the shares of its streams.
        complete, all_aligned: share of the ticks at which every stream has a value, or is aligned.
        usable: share of all ticks of the recording, also of those left out, at which every stream has a value.
        worst_stream: the stream with the smallest share of aligned values; empty if all are aligned.
        worst_aligned: that share.
        breaks: its longest interruptions, the longest first.
        interruptions: number of all its interruptions.
        broken: number of values that are held or missing in them.
        limits: the limits on quality in the spec, with its values.
    """

    index: int
    recording: ExportedRecording
    first_episode: int
    aligned: float
    held: float
    invalid: float
    complete: float
    all_aligned: float
    usable: float
    worst_stream: str
    worst_aligned: float
    breaks: tuple[Break, ...]
    interruptions: int
    broken: int
    limits: tuple[QualityLimit, ...]

    @property
    def longest_ms(self) -> float:
        """Length of the longest interruption in ms; 0 without one."""
        return self.breaks[0].length_ms if self.breaks else 0.0


def summaries(recordings: Iterable[ExportedRecording]) -> list[Summary]:
    """Summarize recordings, in their order."""
    found: list[Summary] = []
    episodes = 0
    for recording in recordings:
        found.append(_summary(len(found), recording, episodes))
        episodes += len(recording.episodes)
    return found


def worst_first(found: Sequence[Summary]) -> list[Summary]:
    """Sort by the share of all ticks at which every stream has a value, then by the longest interruption."""
    return sorted(found, key=lambda one: (one.usable, -one.longest_ms, one.index))


def worst_moments(found: Sequence[Summary]) -> list[tuple[Summary, Break]]:
    """Return the longest interruptions of all recordings, the longest first."""
    every = ((one, interruption) for one in found for interruption in one.breaks)
    return heapq.nsmallest(KEPT, every, key=lambda pair: (-pair[1].length_ms, pair[0].index, pair[1].tick_ns))


def _summary(index: int, recording: ExportedRecording, first_episode: int) -> Summary:
    inputs = np.flatnonzero(recording.spec.inputs)
    kept = recording.valid[recording.kept][:, inputs]
    shares = [(kept == state).mean(axis=0) if len(kept) else np.zeros(len(inputs)) for state in (1, 2, 0)]
    worst = int(np.argmin(shares[0]))
    breaks: list[Break] = []
    count = broken = 0
    for interruption in breaks_of(recording):
        count += 1
        broken += interruption.held + interruption.invalid
        breaks.append(interruption)
        if len(breaks) == 2 * KEPT:
            breaks = _longest(breaks)
    return Summary(
        index=index,
        recording=recording,
        first_episode=first_episode,
        aligned=float(shares[0].mean()),
        held=float(shares[1].mean()),
        invalid=float(shares[2].mean()),
        complete=float((kept > 0).all(axis=1).mean()) if len(kept) else 0.0,
        all_aligned=float((kept == 1).all(axis=1).mean()) if len(kept) else 0.0,
        usable=float((recording.valid[:, inputs] > 0).all(axis=1).mean()) if len(recording.valid) else 0.0,
        worst_stream=recording.spec.streams[inputs[worst]].name if shares[0][worst] < 1 else "",
        worst_aligned=float(shares[0][worst]),
        breaks=tuple(_longest(breaks)),
        interruptions=count,
        broken=broken,
        limits=tuple(limits_of(recording)),
    )


def _longest(breaks: list[Break]) -> list[Break]:
    return sorted(breaks, key=lambda one: (-one.length_ms, one.tick_ns))[:KEPT]
