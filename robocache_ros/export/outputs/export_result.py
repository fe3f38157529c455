"""The result of an export."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from robocache_ros.export.exported_recording import ExportedRecording, FailedRecording


@dataclass(frozen=True)
class ExportResult:
    """The result of an export."""

    out: Path
    recordings: tuple[ExportedRecording, ...]
    seconds: float  # from the first access to a recording until the dataset is complete, without library imports
    failed: tuple[FailedRecording, ...] = ()  # with `on_error` skip: recordings that are not in the dataset
    notes: tuple[str, ...] = ()  # files of earlier exports: reused, removed, completed, or to be handled by the user
    by_another: bool = False  # another export of the same plan has completed the dataset; there are no recordings

    @property
    def frames(self) -> int:
        """Number of ticks in the dataset."""
        return sum(recording.frames for recording in self.recordings)

    @property
    def episodes(self) -> int:
        """Number of episodes in the dataset."""
        return sum(len(recording.episodes) for recording in self.recordings)

    @property
    def times_real_time(self) -> float:
        """Seconds of recording per second of conversion."""
        return sum(recording.duration_s for recording in self.recordings) / self.seconds
