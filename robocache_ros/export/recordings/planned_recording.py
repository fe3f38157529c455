"""A recording of an export: its path, the part of it that is used, its task and its outcome."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from robocache_ros.errors import RoboCacheError, number_of, printable
from robocache_ros.export.export_options import check_line
from robocache_ros.export.recordings.moment import Moment
from robocache_ros.remote.any_path import any_path


@dataclass(frozen=True)
class PlannedRecording:
    """A recording, or a part of one, that becomes one or more episodes.

    Attributes:
        path: a rosbag2 folder, or a .mcap, .db3 or ROS 1 .bag file.
        task: the task in words; empty: the task of the export's options.
        start, stop: the part that is used, start <= log time < stop; None: from the first message, to the last one.
        success: whether the robot succeeded; None: unknown.
        origin: where a manifest names the recording, for error messages.
    """

    path: Path
    task: str = ""
    start: Moment | None = None
    stop: Moment | None = None
    success: bool | None = None
    origin: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        if self.task:
            check_line("task", self.task)
        both = self.start and self.stop and self.start.relative == self.stop.relative
        if both and self.start and self.stop and self.stop.ns <= self.start.ns:
            raise RoboCacheError(f"{self.where}: to is not after from; exchange them, or correct one")

    @property
    def where(self) -> str:
        """The recording in an error message, with its position in the manifest."""
        return ": ".join(filter(None, (self.origin, printable(self.path, 60))))

    @property
    def is_part(self) -> bool:
        """Whether only a part of the recording is used."""
        return self.start is not None or self.stop is not None

    @property
    def frames_of(self) -> PlannedRecording:
        """The same recording without what does not affect its frames, which are in one piece: task and success."""
        return replace(self, task="", success=None)

    def log_range(self, first_ns: int, end_ns: int) -> tuple[int, int]:
        """Return the used range of log times, start and exclusive end.

        Args:
            first_ns: log time of the recording's first message.
            end_ns: exclusive end, after its last message.

        Errors:
            RoboCacheError: the part is not within the recording.
        """
        start_ns = self.start.after(first_ns) if self.start else first_ns
        stop_ns = self.stop.after(first_ns) if self.stop else end_ns
        length_s = (end_ns - first_ns) / 1e9
        for name, outside, at_ns in (("from", start_ns >= end_ns, start_ns), ("to", stop_ns <= first_ns, stop_ns)):
            if outside:
                raise RoboCacheError(
                    f"{self.where}: {name} is {(at_ns - first_ns) / 1e9:.3f} s after the first message of a recording "
                    f"of {length_s:.3f} s; correct it"
                )
        if stop_ns <= start_ns:
            raise RoboCacheError(f"{self.where}: to is not after from; exchange them, or correct one")
        return max(start_ns, first_ns), min(stop_ns, end_ns)


def planned(recordings: Iterable[str | Path | PlannedRecording]) -> tuple[PlannedRecording, ...]:
    """Return paths and planned recordings as planned recordings, in the same order."""
    return tuple(
        r if isinstance(r, PlannedRecording) else PlannedRecording(any_path(r, "recordings")) for r in recordings
    )


def repeated(recordings: Iterable[tuple[PlannedRecording, Sequence[str]]]) -> list[str]:
    """Return a note for each recording that is another one under another name, given the SHA-256 of their files."""
    found: dict[object, list[Path]] = {}
    for each, digests in recordings:
        same = (*digests, each.start, each.stop, each.task, each.success)
        found.setdefault(same, []).append(each.path)
    return [
        f"{printable(first, 120)} and {printable(other, 120)}: the same files (by SHA-256), so the dataset has their "
        f"episodes {number_of(1 + len(others), 'time')}; leave one out"
        for first, *others in found.values()
        for other in others[-1:]
    ]
