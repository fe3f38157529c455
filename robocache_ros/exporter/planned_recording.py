"""A recording of an export: its path, the part of it that is used, its task and its outcome."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from typing import Any, NamedTuple

from robocache_ros.errors import RoboCacheError, number_of, printable
from robocache_ros.spec.dataset import check_line
from robocache_ros.spec.keys import KeyType, refuse, show_value
from robocache_ros.storage.paths import AnyPath, any_path
from robocache_ros.units import NS_PER_S

MAX_SECONDS = 10**9  # numbers below it are seconds from the start,
MIN_STAMP = 10**15  # numbers from it on are nanoseconds since the epoch
MAX_STAMP = 2**63 - 1

_NUMBER = re.compile(r"[-+]?(?P<whole>[0-9]{1,19})?(?P<fraction>\.[0-9]{0,18})?(?P<exponent>[eE][-+]?[0-9]{1,2})?")
_ISO = re.compile(
    r"(?P<seconds>[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}:[0-9]{2})(\.(?P<fraction>[0-9]{1,9}))?"
    r"(?P<zone>Z|z|(?P<sign>[-+])(?P<hours>[0-9]{2}):?(?P<minutes>[0-9]{2}))?"
)
_EPOCH = datetime(1970, 1, 1)


class Moment(NamedTuple):
    """A time in a recording, on the clock of its log times.

    Attributes:
        ns: nanoseconds.
        relative: counted from the first message of the recording; otherwise since the epoch.
    """

    ns: int
    relative: bool

    def after(self, start_ns: int) -> int:
        """Return the log time in ns, for a recording whose first message has the log time `start_ns`."""
        return start_ns + self.ns if self.relative else self.ns


def moment(raw: float | str) -> Moment:
    """Read a moment.

    Args:
        raw: seconds from the start of the recording (below 10**9); nanoseconds since the epoch (an integer of 10**15 or
            more); or a time in ISO 8601 with its zone and up to nine decimals, `2025-09-10T13:03:56.25Z`.

    Errors:
        RoboCacheError: none of these.
    """
    found: Moment = MOMENT.read(raw)
    return found


def _parse(raw: Any) -> Moment:
    value = _number(raw) if isinstance(raw, str) else raw
    if isinstance(value, str):
        return _iso(value)
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or (isinstance(value, float) and not math.isfinite(value)):
        raise refuse(f"{show_value(raw)} is not a time; write seconds from the start, such as 2.5, or an ISO 8601 time")
    if value < 0:
        raise refuse(f"{show_value(raw)} is before the recording; write seconds from its start, 0 or more")
    if value < MAX_SECONDS:
        return Moment(round(value * NS_PER_S), True)
    if isinstance(value, int) and MIN_STAMP <= value <= MAX_STAMP:
        return Moment(value, False)
    raise refuse(f"{show_value(raw)} is neither seconds nor a stamp; write seconds below 10**9, or a stamp in whole ns")


def _number(text: str) -> float | str:
    """Return the number in a text, which is how CSV files contain it; the text if it is not a number."""
    match = _NUMBER.fullmatch(text)
    if not match or not (match["whole"] or (match["fraction"] or ".") != "."):
        return text
    return float(text) if match["fraction"] or match["exponent"] else int(text)


def _iso(text: str) -> Moment:
    match = _ISO.fullmatch(text)
    if not match:
        raise refuse(
            f"{show_value(text)} is not a time; write seconds from the start, such as 2.5, or an ISO 8601 time"
        )
    if not match["zone"]:
        raise refuse(f"{show_value(text)} has no time zone; append Z for UTC, or an offset such as +02:00")
    try:
        local = datetime.fromisoformat(match["seconds"])
        east = timedelta(hours=int(match["hours"] or 0), minutes=int(match["minutes"] or 0))
        timezone(east)  # refuses offsets of a day and more
        since = local - _EPOCH - (-east if match["sign"] == "-" else east)
    except (ValueError, OverflowError):
        raise refuse(f"{show_value(text)} is not a date and time; correct it") from None
    ns = (since.days * 86_400 + since.seconds) * NS_PER_S + int((match["fraction"] or "").ljust(9, "0"))
    if not 0 <= ns <= MAX_STAMP:
        raise refuse(f"{show_value(text)} is out of range; write a time from 1970 to 2262")
    return Moment(ns, False)


MOMENT = KeyType("seconds from the start, or an absolute time", _parse, {"type": ["number", "string"]})


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

    path: AnyPath
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
        """Return the used range of log times, given that of all messages; ends are exclusive.

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


def planned(recordings: Iterable[str | AnyPath | PlannedRecording]) -> tuple[PlannedRecording, ...]:
    """Return paths and planned recordings as planned recordings, in the same order."""
    return tuple(
        r if isinstance(r, PlannedRecording) else PlannedRecording(any_path(r, "recordings")) for r in recordings
    )


def repeated(recordings: Iterable[tuple[PlannedRecording, Sequence[str]]]) -> list[str]:
    """Return a note for each recording that is another one under another name, given the SHA-256 of their files."""
    found: dict[object, list[AnyPath]] = {}
    for each, digests in recordings:
        same = (*digests, each.start, each.stop, each.task, each.success)
        found.setdefault(same, []).append(each.path)
    return [
        f"{printable(first, 120)} and {printable(other, 120)}: the same files (by SHA-256), so the dataset has their "
        f"episodes {number_of(1 + len(others), 'time')}; leave one out"
        for first, *others in found.values()
        for other in others[-1:]
    ]
