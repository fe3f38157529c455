"""`robocache replay`: recomputes the ticks, plans and commands of a run, and compares them with those of the nodes."""

# No `from __future__ import annotations`: typer 0.9 does not evaluate string annotations.

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from robocache_ros.cli.options import AsJson, OptionalInt, OptionalPath, OptionalText
from robocache_ros.cli.program import print_document
from robocache_ros.errors import RoboCacheError, printable

if TYPE_CHECKING:
    from robocache_ros.policy.replay import Verification


def replay(
    run: Annotated[
        Path, typer.Argument(help="A run log: of `robocache run --record`, or of a node's parameter record_run.")
    ],
    verify: Annotated[bool, typer.Option("--verify", help="Compare all that is computed with the run.")] = False,
    policy: Annotated[
        OptionalText,
        typer.Option(
            metavar="POLICY",
            help="Plans again; it must give the same plan for the same frame. (the checkpoint of the run, if it "
            "planned on the CPU)",
            show_default=False,
        ),
    ] = None,
    first: Annotated[
        OptionalInt,
        typer.Option("--from", metavar="TICK", help="With --export: the first tick, by its index on the tick grid."),
    ] = None,
    last: Annotated[OptionalInt, typer.Option("--to", metavar="TICK", help="With --export: the last tick.")] = None,
    export: Annotated[
        OptionalPath,
        typer.Option("--export", metavar="PATH", help="Write the part of the run that recomputes these ticks."),
    ] = None,
    json: AsJson = False,
) -> None:
    """Recompute a run to the bit; exit code 1 if it differs, with the first tick, its stream and its column."""
    from robocache_ros.policy import replay as runs

    if export is not None:
        if first is None or last is None:
            raise RoboCacheError("replay: --export needs --from and --to; give two ticks that --verify names")
        found = runs.cut(run, export, first, last, policy)
    elif verify:
        found = runs.verify(run, policy)
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
    typer.echo(f"{printable(path.name, 60)}: {found}")
