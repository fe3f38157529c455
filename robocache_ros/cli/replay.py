"""`robocache replay`: recomputes the ticks of a run and compares them with those of the node."""

# No `from __future__ import annotations`: typer 0.9 does not evaluate string annotations.

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from robocache_ros.cli.options import AsJson
from robocache_ros.cli.program import print_document
from robocache_ros.errors import RoboCacheError, number_of, printable

if TYPE_CHECKING:
    from robocache_ros.recorder.run_log import Verification


def replay(
    run: Annotated[Path, typer.Argument(help="A run log, which the node's parameter record_run writes.")],
    verify: Annotated[bool, typer.Option("--verify", help="Compare every tick with the recorded one.")] = False,
    first: Annotated[
        Optional[int],  # noqa: UP045 - typer reads it at run time
        typer.Option("--from", metavar="TICK", help="With --export: the first tick, by its index on the tick grid."),
    ] = None,
    last: Annotated[
        Optional[int],  # noqa: UP045 - typer reads it at run time
        typer.Option("--to", metavar="TICK", help="With --export: the last tick."),
    ] = None,
    export: Annotated[
        Optional[Path],  # noqa: UP045 - typer reads it at run time
        typer.Option("--export", metavar="PATH", help="Write the part of the run that recomputes these ticks."),
    ] = None,
    json: AsJson = False,
) -> None:
    """Recompute the ticks of a run to the bit; exit code 1 if one differs, with its stream and its column."""
    from robocache_ros.recorder import run_log

    if export is not None:
        if first is None or last is None:
            raise RoboCacheError("replay: --export needs --from and --to; give two ticks that --verify names")
        found = run_log.cut(run, export, first, last)
    elif verify:
        found = run_log.verify(run)
    else:
        raise RoboCacheError("replay: nothing to do; give --verify, or --from, --to and --export")
    wrong = found.first is not None
    if json:
        print_document("replay", {"run": export or run, **vars(found)}, exit_code=int(wrong))
    else:
        _print(export or run, found)
    if wrong:
        raise typer.Exit(1)


def _print(path: Path, found: "Verification") -> None:
    for note in found.notes:
        typer.echo(f"note: {note}")
    if found.first:
        typer.echo(f"the first difference: {found.first}")
    ticks, messages = number_of(found.ticks, "tick"), number_of(found.messages, "message")
    span = f" ({found.first_tick} to {found.last_tick})" if found.ticks else ""
    outcome = f"{found.different:,} differ" if found.different else "all are equal, bit for bit"
    typer.echo(
        f"{printable(path.name, 60)}: {ticks}{span} of {messages}: {outcome if found.ticks else 'none to compare'}"
    )
