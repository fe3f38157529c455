"""`robocache fleet`: the state of exports by many machines, and what they left."""

# No `from __future__ import annotations`: typer 0.9 does not evaluate string annotations.

import re
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from robocache_ros.cli.options import AsJson, OptionalText, OptionalTexts, place
from robocache_ros.cli.program import finish
from robocache_ros.errors import RoboCacheError, number_of, printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from robocache_ros.exporter.fleet import Attempt, FleetStatus, FleetTarget

_TIME = re.compile(r"(\d{1,6})([smhd])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}

Out = Annotated[str, typer.Argument(parser=place, metavar="OUT", help="The target of an export: a folder or a URL.")]
Shared = Annotated[
    OptionalText,
    typer.Option("--pieces", parser=place, metavar="DIR", help="The folder or URL of --pieces of the export."),
]

fleet = typer.Typer(
    help="Show what exports have made, what failed, and what they left; also of those on one machine.",
    no_args_is_help=True,
)


@fleet.command()
def status(out: Out, pieces: Shared = None, json: AsJson = False) -> None:
    """Show what is done, what failed and why, and what is in progress.

    Exit codes: 0 the dataset is complete; 1 recordings failed; 3 not complete yet; 2 a mistake in arguments, or no
    access.
    """
    found = _target(out, pieces).status()
    show = partial(_show_status, out, found)
    finish("fleet status", _status_facts(out, found), show, json=json, code=found.state.value)


@fleet.command()
def retry(
    out: Out,
    recordings: Annotated[
        OptionalTexts,
        typer.Argument(metavar="RECORDING", help="Names, paths or URLs, with * and ?; all that failed by default."),
    ] = None,
    pieces: Shared = None,
    json: AsJson = False,
) -> None:
    """Let the next export try recordings again that failed."""
    from robocache_ros.cli import tables

    chosen = _target(out, pieces).retry(recordings or ())

    def show() -> None:
        for failure in chosen:
            tables.say(f"{printable(failure.recording, 120)}: is tried again by the next export")
        if not chosen:
            none = f"{printable(out, 80)}: no recording of this name failed"
            tables.say(none if recordings else "no recording failed")

    finish("fleet retry", {"out": out, "recordings": [failure.recording for failure in chosen]}, show, json=json)


@fleet.command()
def gc(
    out: Out,
    pieces: Shared = None,
    older_than: Annotated[
        str, typer.Option(metavar="TIME", help="Keep what is younger, such as 90s, 30m, 12h or 7d.")
    ] = "1d",
    give_up: Annotated[
        bool, typer.Option("--give-up", help="End the plan of a killed export to OUT, so that another one may begin.")
    ] = False,
    json: AsJson = False,
) -> None:
    """Remove attempts of processes that were killed, and the pieces of exports that were stopped."""
    from robocache_ros.cli import tables

    removed = _target(out, pieces).collect(_time(older_than), give_up=give_up)
    text = "nothing to remove"
    if removed.attempts or removed.pieces:
        counts = f"{number_of(removed.attempts, 'attempt')} and {number_of(removed.pieces, 'piece')}"
        text = f"removed {counts}, {removed.size / 1e6:,.1f} MB"
    content = {"out": out, "attempts": removed.attempts, "pieces": removed.pieces, "size_bytes": removed.size}
    finish("fleet gc", content, lambda: tables.say(text), json=json)


def _target(out: str, pieces: str | None) -> "FleetTarget":
    from robocache_ros.exporter.fleet import FleetTarget
    from robocache_ros.storage.paths import any_path

    return FleetTarget(any_path(out, "datasets"), pieces)


def _time(text: str) -> timedelta:
    match = _TIME.fullmatch(text)
    if match is None:
        raise RoboCacheError(f"--older-than: {printable(text, 40)} is not a time; give one such as 30m, 12h or 7d")
    return timedelta(seconds=int(match[1]) * _SECONDS[match[2]])


# The output.


_MAX_FAILURE_LINES = 20  # failures; --json has all of them


def _show_status(out: str, found: "FleetStatus") -> None:
    """Print the state of a target."""
    from robocache_ros.cli import tables

    pieces, where = found.pieces, printable(out, 100)
    if not found.state.value:
        tables.say(f"{where}: complete")
    else:
        done = number_of(len(pieces.done), "recording")
        if found.needed is not None:
            done = f"{len(pieces.done):,} of {number_of(found.needed, 'recording')}"
        started = f"; the export began {printable(found.started, 25)}" if found.started else ""
        stopped = " and was stopped" if found.stopped else ""
        tables.say(f"{where}: not complete{started}{stopped}")
        tables.say(f"done: {done}, {_bytes(list(pieces.done.values()))}")
        tables.say("if no export to it is running, the same command continues it")
    if failed := len(pieces.failures):
        them = "it" if failed == 1 else "them"
        tables.say(f"failed: {number_of(failed, 'recording')}; robocache fleet retry lets the next export try {them}")
    for failure in list(pieces.failures.values())[:_MAX_FAILURE_LINES]:
        tables.say(f"  {printable(failure.error, 180)}")
    if len(pieces.failures) > _MAX_FAILURE_LINES:
        tables.say(f"  and {len(pieces.failures) - _MAX_FAILURE_LINES:,} more; --json lists all")
    if pieces.in_progress:
        tables.say(f"in progress: {number_of(len(pieces.in_progress), 'attempt')}, {_bytes(pieces.in_progress)}")
    if pieces.left_over:
        attempts = number_of(len(pieces.left_over), "attempt")
        tables.say(f"left over: {attempts}, {_bytes(pieces.left_over)}; robocache fleet gc removes them")


def _status_facts(out: str, found: "FleetStatus") -> dict[str, Any]:
    """Return the state of a target, for a JSON document."""
    pieces = found.pieces
    return {
        "out": out,
        "state": found.state.name,
        "needed": found.needed,
        "started": found.started or None,
        "stopped": found.stopped,
        "done": len(pieces.done),
        "done_bytes": sum(each.size for each in pieces.done.values()),
        "failed": [
            {"path": each.recording, "reason": each.error, "dropped": each.dropped} for each in pieces.failures.values()
        ],
        "in_progress": [_attempt_facts(each) for each in pieces.in_progress],
        "left_over": [_attempt_facts(each) for each in pieces.left_over],
    }


def _attempt_facts(attempt: "Attempt") -> dict[str, Any]:
    return {"name": attempt.name, "size_bytes": attempt.size, "age_s": attempt.age.total_seconds()}


def _bytes(attempts: "Sequence[Attempt]") -> str:
    return f"{sum(attempt.size for attempt in attempts) / 1e6:,.1f} MB"
