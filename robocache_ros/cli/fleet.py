"""`robocache fleet`: the state of exports by many machines, and what they left."""

# No `from __future__ import annotations`: typer 0.9 does not evaluate string annotations.

import re
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from robocache_ros.cli import options as given
from robocache_ros.errors import RoboCacheError, printable

_TIME = re.compile(r"(\d{1,6})([smhd])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}

Out = Annotated[
    Path, typer.Argument(parser=given.place, metavar="OUT", help="The target of an export: a folder or a URL.")
]
Shared = Annotated[
    Optional[Path],  # noqa: UP045 - typer reads it at run time
    typer.Option("--pieces", parser=given.place, metavar="DIR", help="The folder or URL of --pieces of the export."),
]

fleet = typer.Typer(
    help="Show what exports have made, what failed, and what they left; also of those on one machine.",
    no_args_is_help=True,
)


@fleet.command()
def status(out: Out, pieces: Shared = None, json: given.AsJson = False) -> None:
    """Show what is done, what failed and why, and what is in progress.

    Exit codes: 0 the dataset is complete; 1 recordings failed; 3 not complete yet; 2 a mistake in arguments, or no
    access.
    """
    from robocache_ros.cli import fleet_output
    from robocache_ros.cli.program import print_document
    from robocache_ros.exporter.fleet import FleetTarget

    found = _target(FleetTarget, out, pieces).status()
    if json:
        print_document("fleet status", fleet_output.facts(out, found), exit_code=found.state.value)
    else:
        fleet_output.show_status(out, found)
    if found.state.value:
        raise typer.Exit(found.state.value)


@fleet.command()
def retry(
    out: Out,
    recordings: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Argument(metavar="RECORDING", help="Names, paths or URLs, with * and ?; all that failed by default."),
    ] = None,
    pieces: Shared = None,
    json: given.AsJson = False,
) -> None:
    """Let the next export try recordings again that failed."""
    from robocache_ros.cli import tables
    from robocache_ros.cli.program import print_document
    from robocache_ros.exporter.fleet import FleetTarget

    chosen = _target(FleetTarget, out, pieces).retry(recordings or ())
    if json:
        print_document("fleet retry", {"out": out, "recordings": [failure.recording for failure in chosen]})
        return
    for failure in chosen:
        tables.say(f"{printable(failure.recording, 120)}: is tried again by the next export")
    if not chosen:
        tables.say(f"{printable(out, 80)}: no recording of this name failed" if recordings else "no recording failed")


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
    json: given.AsJson = False,
) -> None:
    """Remove attempts of processes that were killed, and the pieces of exports that were stopped."""
    from robocache_ros.cli import fleet_output, tables
    from robocache_ros.cli.program import print_document
    from robocache_ros.exporter.fleet import FleetTarget

    removed = _target(FleetTarget, out, pieces).collect(_time(older_than), give_up=give_up)
    if json:
        content = {"out": out, "attempts": removed.attempts, "pieces": removed.pieces, "size_bytes": removed.size}
        print_document("fleet gc", content)
    else:
        tables.say(fleet_output.removed_line(removed))


def _target(kind: Any, out: Path, pieces: Optional[Path]) -> Any:  # noqa: UP045
    from robocache_ros.storage.paths import any_path

    return kind(any_path(out, "datasets"), pieces)


def _time(text: str) -> timedelta:
    match = _TIME.fullmatch(text)
    if match is None:
        raise RoboCacheError(f"--older-than: {printable(text, 40)} is not a time; give one such as 30m, 12h or 7d")
    return timedelta(seconds=int(match[1]) * _SECONDS[match[2]])
