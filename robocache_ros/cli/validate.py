"""`robocache validate`: reads a dataset as a suspicious user would."""

# No `from __future__ import annotations`: typer 0.9 does not evaluate string annotations.

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from robocache_ros.cli.options import AsJson
from robocache_ros.cli.program import print_document
from robocache_ros.errors import printable

if TYPE_CHECKING:
    from robocache_ros.formats.check import Findings


def validate(
    datasets: Annotated[list[Path], typer.Argument(help="Folders or files of datasets, of any of the formats.")],
    decode: Annotated[
        bool, typer.Option("--decode", help="Decode every image; otherwise the frames of videos are counted.")
    ] = False,
    recordings: Annotated[
        bool, typer.Option("--recordings", help="Compare the recordings that the dataset was exported from.")
    ] = False,
    json: AsJson = False,
) -> None:
    """Read every file of a dataset and print what is wrong with it, one line each; exit code 1 if anything is."""
    from robocache_ros.formats.validate import validate as read_all

    checked = [found for dataset in datasets for found in read_all(dataset, decode=decode, recordings=recordings)]
    wrong = any(findings.found for findings in checked)
    if json:
        lines = [str(finding) for findings in checked for finding in findings.found]
        content = {"datasets": [findings.to_dict() for findings in checked]}
        print_document("validate", content, exit_code=int(wrong), errors=lines)
    else:
        for findings in checked:
            _print(findings)
    if wrong:
        raise typer.Exit(1)


def _print(findings: "Findings") -> None:
    for finding in findings.found:
        typer.echo(str(finding))
    if findings.more:
        typer.echo(f"and {findings.more:,} more findings")
    for text in findings.unchecked:
        typer.echo(f"not checked: {text}")
    checked = ", ".join(f"{n:,} {name if n != 1 else name[:-1]}" for name, n in findings.counted.items())
    total = len(findings.found) + findings.more
    outcome = f"{total:,} finding{'s' if total != 1 else ''}" if total else "nothing wrong found"
    typer.echo(f"{printable(findings.dataset.name)}: {findings.title}: {outcome}; checked {checked or 'nothing'}")
