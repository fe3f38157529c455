"""`robocache report`: the quality report of a recording, without a dataset."""

# No `from __future__ import annotations`: typer 0.9 does not evaluate string annotations.

from pathlib import Path
from typing import Annotated

import typer

from robocache_ros.cli import option_types as given
from robocache_ros.errors import RoboCacheError, printable


def report(
    bag: given.Recording,
    spec: given.SpecFile,
    out: Annotated[Path, typer.Option("--out", "-o", help="The file to write.")] = Path("report.html"),
    visibility: given.Sees = given.Visibility.ideal,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing file.")] = False,
    json: given.AsJson = False,
) -> None:
    """Write the quality report of a recording, without a dataset."""
    from robocache_ros.cli.output import tables
    from robocache_ros.cli.output.export_outcome import recording_facts
    from robocache_ros.cli.output.json_output import print_document
    from robocache_ros.cli.output.progress_display import shown_progress
    from robocache_ros.export.job import summarize
    from robocache_ros.export.report.page import write_report
    from robocache_ros.spec import load_spec

    if out.exists() and not overwrite:
        raise RoboCacheError(f"{printable(out)}: already exists; choose another file, or give --overwrite")
    with shown_progress() as progress:
        recording = summarize(bag, load_spec(spec), visibility=visibility.value, progress=progress)
    write_report([recording], out, overwrite=overwrite)
    if json:
        print_document("report", {"wrote": out, "recording": recording_facts(recording)})
    else:
        tables.say(f"wrote {out}")
