"""The progress of an export on stderr: a bar on a terminal, a few lines elsewhere, or a log in JSON."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import typer
from rich.markup import escape
from rich.progress import BarColumn, SpinnerColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from robocache_ros.cli import tables
from robocache_ros.cli.program import log_line
from robocache_ros.errors import number_of, printable
from robocache_ros.exporter.planned_recording import PlannedRecording
from robocache_ros.exporter.progress import Advanced, Converted, Ended, Event, Failed, Merging, Progress, Started


class Tally:
    """The state of an export, from its events.

    Attributes:
        total, reused: numbers of recordings.
        current: the recording that advanced last.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.total = self.reused = 0
        self.current = ""
        self._clock = clock
        self._began_s = clock()
        self._sizes: Mapping[PlannedRecording, int] = {}
        self._shares: dict[PlannedRecording, float] = {}
        self._ticks: dict[PlannedRecording, int] = {}
        self._skipped = 0  # bytes that this export does not convert
        self._done: set[PlannedRecording] = set()
        self._failed: set[PlannedRecording] = set()  # in one of several datasets, or in all

    def add(self, event: Event) -> None:
        """Count an event."""
        if isinstance(event, Started):
            self._done -= set(event.recordings)  # those that failed in another dataset
            self.total = len(event.recordings) + len(self._done)
            self._began_s = self._clock()
            self._sizes = dict(zip(event.recordings, event.sizes, strict=True))
        elif isinstance(event, Advanced):
            self.current = event.recording.path.name
            self._shares[event.recording] = event.share
            self._ticks[event.recording] = event.ticks
        elif isinstance(event, (Converted, Failed)):
            first = event.recording not in self._done
            self._done.add(event.recording)
            if isinstance(event, Converted) and not event.reused:
                self._shares[event.recording] = 1.0
            elif first:
                converted = self._shares.pop(event.recording, 0.0)
                self._skipped += round(self._sizes.get(event.recording, 0) * (1 - converted))
            if isinstance(event, Failed):
                self._failed.add(event.recording)
            else:
                self.reused += event.reused

    @property
    def done(self) -> int:
        """Number of recordings that are converted, reused or failed."""
        return len(self._done)

    @property
    def failed(self) -> int:
        """Number of recordings that failed."""
        return len(self._failed)

    @property
    def seconds(self) -> float:
        """Time since the first recording was started."""
        return max(self._clock() - self._began_s, 1e-9)

    @property
    def read_bytes(self) -> float:
        """Bytes of recordings that have been converted."""
        return sum(self._sizes.get(recording, 0) * share for recording, share in self._shares.items())

    @property
    def share(self) -> float:
        """Completed share of the work, 0 to 1, by the sizes of the recordings."""
        total = sum(self._sizes.values()) - self._skipped
        return min(self.read_bytes / total, 1.0) if total > 0 else float(self.done == self.total)

    @property
    def frames_per_s(self) -> float:
        """Ticks per second."""
        return sum(self._ticks.values()) / self.seconds

    @property
    def mb_per_s(self) -> float:
        """Megabytes of recordings per second."""
        return self.read_bytes / 1e6 / self.seconds

    @property
    def left_s(self) -> float | None:
        """Seconds until all recordings are converted, if the rest is as fast; None as long as nothing is done."""
        return self.seconds * (1 - self.share) / self.share if self.share > 0 else None

    def text(self) -> str:
        """Describe the state in one line."""
        parts = [f"{self.done:,} of {number_of(self.total, 'recording')}"]
        if self.failed:
            parts.append(f"{self.failed} failed")
        if self._ticks:
            parts.append(f"{self.frames_per_s:,.0f} frames/s")
            parts.append(f"{self.mb_per_s:.1f} MB/s")
        if self.left_s is not None and self.done < self.total:
            parts.append(f"{duration(self.left_s)} left")
        return ", ".join(parts)

    def numbers(self) -> dict[str, Any]:
        """Return the state for a log."""
        return {
            "recordings": self.total,
            "done": self.done,
            "failed": self.failed,
            "reused": self.reused,
            "share": round(self.share, 4),
            "frames_per_s": round(self.frames_per_s, 1),
            "mb_per_s": round(self.mb_per_s, 2),
            "left_s": None if self.left_s is None else round(self.left_s, 1),
        }


def duration(seconds: float) -> str:
    """Format a duration: `45 s`, `12 min` or `3 h 5 min`."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"


EVERY_S = 30.0  # time between two lines; an export that is faster prints none


@contextmanager
def shown_progress(*, log_json: bool = False) -> Iterator[Progress]:
    """Yield the function that receives the events of an export."""
    if log_json:
        yield JsonLog(log_line)
    elif tables.errors.is_terminal:
        with _bar() as progress:
            yield progress
    else:
        yield Lines(lambda line: typer.echo(line, err=True))


class Lines:
    """Prints a line from time to time."""

    def __init__(self, write: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._write, self._clock = write, clock
        self._tally = Tally(clock)
        self._last_s = clock()
        self._slow = False

    def __call__(self, event: Event) -> None:
        """Receive an event."""
        self._tally.add(event)
        due = self._clock() - self._last_s >= EVERY_S
        if isinstance(event, (Advanced, Converted)) and due:
            self._slow, self._last_s = True, self._clock()
            self._write(f"robocache: {self._tally.text()}")
        elif isinstance(event, Merging) and (self._slow or due):
            self._write(f"robocache: {self._tally.text()}; merging them into {', '.join(event.formats)}")


class JsonLog:
    """Writes an object per line: `start`, `progress`, `recording_done`, `recording_failed`, `merge` and `end`."""

    def __init__(self, log: Callable[..., None], clock: Callable[[], float] = time.monotonic) -> None:
        self._log, self._clock = log, clock
        self._tally = Tally(clock)
        self._last_s = clock()

    def __call__(self, event: Event) -> None:
        """Receive an event."""
        self._tally.add(event)
        if isinstance(event, Started):
            self._log("start", recordings=len(event.recordings), size_bytes=sum(event.sizes), jobs=event.jobs)
        elif isinstance(event, Converted):
            self._log("recording_done", path=event.recording.path, reused=event.reused, so_far=self._tally.numbers())
        elif isinstance(event, Failed):
            stated = {"path": event.recording.path, "reason": event.reason, **_dataset(event)}
            self._log("recording_failed", **stated, so_far=self._tally.numbers())
        elif isinstance(event, Merging):
            self._log("merge", formats=event.formats, recordings=event.recordings, **_dataset(event))
        elif isinstance(event, Ended):
            self._log("end", **asdict(event))
        elif self._clock() - self._last_s >= EVERY_S:
            self._last_s = self._clock()
            self._log("progress", so_far=self._tally.numbers())


def _dataset(event: Failed | Merging) -> dict[str, str]:
    """Return the name of the dataset of an event, if there are several datasets."""
    return {"dataset": event.dataset} if event.dataset else {}


@contextmanager
def _bar() -> Iterator[Progress]:
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
    )
    tally = Tally()
    with Bar(*columns, console=tables.errors, transient=True) as bar:
        task = bar.add_task("", total=1.0)

        def progress(event: Event) -> None:
            tally.add(event)
            text = f"merging {number_of(tally.done, 'recording')}" if isinstance(event, Merging) else tally.text()
            if isinstance(event, Advanced):
                text = f"{printable(tally.current, 40)}: {text}"
            bar.update(task, description=escape(text), completed=tally.share)

        yield progress
