"""What a piece states of each of its episodes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class EpisodeInfo:
    """An episode: its rows are the ticks start <= tick < stop, counted from the recording's first tick."""

    start: int
    stop: int
    task: str | None = None  # as the recording states it; None: the task of the export
    success: bool | None = None  # None: unknown
