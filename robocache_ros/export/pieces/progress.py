"""What an export tells while it runs: events, in the order in which things happen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from robocache_ros.export.recordings.planned_recording import PlannedRecording


@dataclass(frozen=True)
class Started:
    """All recordings have been checked, and the first ones are converted."""

    recordings: tuple[PlannedRecording, ...]  # each once
    sizes: tuple[int, ...]  # bytes of their files
    jobs: int  # processes


@dataclass(frozen=True)
class Advanced:
    """A recording has been converted up to a share of its time, 0 to 1."""

    recording: PlannedRecording
    share: float
    ticks: int  # so far


@dataclass(frozen=True)
class Converted:
    """The piece of a recording is complete."""

    recording: PlannedRecording
    reused: bool  # an earlier export made it


@dataclass(frozen=True)
class Failed:
    """A recording cannot be converted."""

    recording: PlannedRecording
    reason: str


@dataclass(frozen=True)
class Merging:
    """The datasets are put together from the pieces."""

    formats: tuple[str, ...]
    recordings: int


@dataclass(frozen=True)
class Ended:
    """The datasets are complete and in their final location."""

    out: Path
    episodes: int
    frames: int
    seconds: float


Event: TypeAlias = "Started | Advanced | Converted | Failed | Merging | Ended"
Progress = Callable[[Event], None]
