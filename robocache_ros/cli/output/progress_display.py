"""Shows the progress of an export on stderr: a bar on a terminal, a few lines elsewhere, or a log in JSON."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict

import typer
from rich.markup import escape
from rich.progress import BarColumn, SpinnerColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from robocache_ros.cli.output import tables
from robocache_ros.cli.output.export_tally import Tally
from robocache_ros.cli.output.json_output import log_line
from robocache_ros.errors import number_of, printable
from robocache_ros.export.pieces.progress import Advanced, Converted, Ended, Event, Failed, Merging, Progress, Started

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
    """Prints a line from time to time.

    Args:
        write: receives the lines.
        clock: seconds on a monotonic clock.
    """

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
    """Writes an object per line: `start`, `progress`, `recording_done`, `recording_failed`, `merge` and `end`.

    Args:
        log: receives the name of an event and its content.
        clock: seconds on a monotonic clock.
    """

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
            told = {"path": event.recording.path, "reason": event.reason, **_dataset(event)}
            self._log("recording_failed", **told, so_far=self._tally.numbers())
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
