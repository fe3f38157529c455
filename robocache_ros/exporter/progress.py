"""The progress of an export: events, in the order in which things happen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from robocache_ros.exporter.planned_recording import PlannedRecording
from robocache_ros.storage.paths import AnyPath


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
    """The pieces of a recording are complete: one for each dataset."""

    recording: PlannedRecording
    reused: bool  # an earlier export made all of them


@dataclass(frozen=True)
class Failed:
    """A recording cannot be converted."""

    recording: PlannedRecording
    reason: str
    dataset: str = ""  # the name of the dataset, if there are several


@dataclass(frozen=True)
class Merging:
    """The datasets of the formats are put together from the pieces."""

    formats: Sequence[str]
    recordings: int
    dataset: str = ""  # the name of the dataset, if there are several


@dataclass(frozen=True)
class Ended:
    """The datasets are complete and in their final location."""

    out: AnyPath
    episodes: int
    frames: int
    seconds: float


Event: TypeAlias = "Started | Advanced | Converted | Failed | Merging | Ended"
Progress = Callable[[Event], None]
