"""Limits on the quality of a recording, below which it is not exported."""

from __future__ import annotations

from dataclasses import dataclass

from robocache_ros.spec.keys import integer, key, number


@dataclass(frozen=True)
class StreamQuality:
    """Limits for one stream; without a value there is no limit."""

    max_invalid: float | None = key(number(0, 1), "largest share of ticks without a value", default=None)
    max_held: float | None = key(number(0, 1), "largest share of ticks with a held value", default=None)
    max_gap_ms: float | None = key(
        number(0, 1e7, above=True), "longest time without a message on the topic", default=None, unit="ms"
    )
    min_rate_hz: float | None = key(
        number(0, 1e5, above=True), "lowest rate of the topic's messages", default=None, unit="Hz"
    )


@dataclass(frozen=True)
class SpecQuality(StreamQuality):
    """Limits for every observation and action without a `quality` of its own, and for the recording."""

    min_frames: int | None = key(integer(1, 10**9), "fewest ticks in the episodes of a recording", default=None)
