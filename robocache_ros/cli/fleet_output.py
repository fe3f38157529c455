"""The output of `robocache fleet`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from robocache_ros.cli import tables
from robocache_ros.errors import number_of, printable
from robocache_ros.exporter.fleet import Attempt, FleetStatus, Removed, State

MAX_FAILURE_LINES = 20  # failures; --json has all of them


def show_status(out: Path, found: FleetStatus) -> None:
    """Print the state of a target."""
    pieces, where = found.pieces, printable(out, 100)
    if found.state is State.complete:
        tables.say(f"{where}: complete")
    else:
        done = number_of(len(pieces.done), "recording")
        if found.needed is not None:
            done = f"{len(pieces.done):,} of {number_of(found.needed, 'recording')}"
        begun = f"; the export began {printable(found.started, 25)}" if found.started else ""
        stopped = " and was stopped" if found.stopped else ""
        tables.say(f"{where}: not complete{begun}{stopped}")
        tables.say(f"done: {done}, {_bytes(list(pieces.done.values()))}")
        tables.say("if no export to it is running, the same command continues it")
    if failed := len(pieces.failures):
        them = "it" if failed == 1 else "them"
        tables.say(f"failed: {number_of(failed, 'recording')}; robocache fleet retry lets the next export try {them}")
    for failure in list(pieces.failures.values())[:MAX_FAILURE_LINES]:
        tables.say(f"  {printable(failure.error, 180)}")
    if len(pieces.failures) > MAX_FAILURE_LINES:
        tables.say(f"  and {len(pieces.failures) - MAX_FAILURE_LINES:,} more; --json lists all")
    if pieces.in_progress:
        tables.say(f"in progress: {number_of(len(pieces.in_progress), 'attempt')}, {_bytes(pieces.in_progress)}")
    if pieces.left_over:
        attempts = number_of(len(pieces.left_over), "attempt")
        tables.say(f"left over: {attempts}, {_bytes(pieces.left_over)}; robocache fleet gc removes them")


def facts(out: Path, found: FleetStatus) -> dict[str, Any]:
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
        "in_progress": [_facts(each) for each in pieces.in_progress],
        "left_over": [_facts(each) for each in pieces.left_over],
    }


def removed_line(removed: Removed) -> str:
    """Return a line that says what was removed."""
    if not removed.attempts and not removed.pieces:
        return "nothing to remove"
    return (
        f"removed {number_of(removed.attempts, 'attempt')} and {number_of(removed.pieces, 'piece')}, "
        f"{removed.size / 1e6:,.1f} MB"
    )


def _facts(attempt: Attempt) -> dict[str, Any]:
    return {"name": attempt.name, "size_bytes": attempt.size, "age_s": attempt.age.total_seconds()}


def _bytes(attempts: Sequence[Attempt]) -> str:
    return f"{sum(attempt.size for attempt in attempts) / 1e6:,.1f} MB"
