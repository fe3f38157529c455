"""The output of `robocache export` at its end, for complete and stopped exports."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rich.markup import escape

from robocache_ros.cli import tables
from robocache_ros.errors import printable
from robocache_ros.export.target import finished_pieces

if TYPE_CHECKING:
    from robocache_ros.export.job import ExportResult


def show(result: ExportResult, *, report: bool) -> None:
    """Print the table of an export, its notes and its location."""
    tables.show(tables.export_table(result))
    tables.show_notes(result.notes)
    for recording in result.recordings:
        tables.show_notes(recording.notes)
        if left_out := recording.left_out():
            tables.say(f"{recording.bag.name}: {left_out}")
    tables.show_notes(f"not in the dataset: {loss.reason}" for loss in result.failed)
    tables.say(
        f"wrote {result.out} in {result.seconds:.2f} s ({result.times_real_time:.1f} x real time)"
        + (f"; open {result.out / 'report.html'}" if report else "")
    )


@contextmanager
def continued(out: Path) -> Iterator[None]:
    """If Ctrl-C or SIGTERM stops an export, print what is kept and how to continue."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit) as stop:
        kept = finished_pieces(out)
        if kept:
            where = escape(printable(out, 60))
            text = f"robocache: stopped; {kept} converted recordings are kept in {where}: run the same command again"
        else:
            text = "robocache: stopped; nothing is kept"
        tables.errors.print(text, soft_wrap=True, highlight=False)
        if isinstance(stop, KeyboardInterrupt):  # typer 0.9 would exit with 1
            raise SystemExit(128 + signal.SIGINT) from None
        raise
