"""Finds breaks in the timeline of a recording, and their causes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from robocache_ros.bags.stats import TopicStats
from robocache_ros.export.dataset.row_columns import runs
from robocache_ros.export.exported_recording import ExportedRecording
from robocache_ros.spec import StreamSpec


@dataclass(frozen=True)
class Break:
    """Consecutive ticks at which a stream was not aligned."""

    stream: str
    tick_ns: int  # the first of the ticks
    at_s: float
    length_ms: float
    held: int
    invalid: int
    cause: str


def breaks_of(recording: ExportedRecording) -> Iterator[Break]:
    """Yield runs of ticks at which a stream was held or had no value, within and between episodes."""
    stop = len(recording.valid) - recording.trailing
    period_ns = 1e9 / recording.spec.rate_hz
    for row, stream in enumerate(recording.spec.streams):
        states = recording.valid[recording.leading : stop, row]
        for begin, end, bad in runs((states != 1).astype(np.int64)):
            if bad:
                tick = int(recording.ticks_ns[recording.leading + begin])
                invalid = int((states[begin:end] == 0).sum())
                yield Break(
                    stream.name,
                    tick,
                    recording.elapsed_s(tick),
                    (end - begin) * period_ns / 1e6,
                    end - begin - invalid,
                    invalid,
                    _cause(recording.topics.get(stream.topic), stream, tick, int(tick + (end - begin) * period_ns)),
                )


def _cause(stats: TopicStats | None, stream: StreamSpec, start_ns: int, stop_ns: int) -> str:
    if stats is None:
        return "the topic has no message"
    longest = max(
        (g for g in stats.gaps if g.start_ns < stop_ns + stream.latency_ns and g.start_ns + g.length_ns > start_ns),
        key=lambda gap: gap.length_ns,
        default=None,
    )
    if longest:
        return f"{stream.topic} was silent for {longest.length_ns / 1e6:.0f} ms"
    if start_ns <= stats.start_ns:
        return f"{stream.topic} had not begun"
    if stop_ns >= stats.stop_ns:
        return f"{stream.topic} had ended"
    return "lost or late samples"
