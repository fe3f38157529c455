"""`robocache report`: the quality report of a recording, without a dataset."""

# No `from __future__ import annotations`: typer 0.9 does not evaluate string annotations.

from pathlib import Path
from typing import Annotated, Any

import typer

from robocache_ros.cli.options import AsJson, Recording, SpecFile, with_options
from robocache_ros.spec.dataset import DatasetOptions


@with_options(DatasetOptions, "visibility", "compare_visibility", "msg_path")
def report(
    bag: Recording,
    spec: SpecFile,
    given: dict[str, Any],
    out: Annotated[
        Path, typer.Option("--out", "-o", help="The file to write; its JSON document has the ending .json.")
    ] = Path("report.html"),
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing file.")] = False,
    json: AsJson = False,
) -> None:
    """Write the quality report of a recording, without a dataset."""
    from robocache_ros.cli import tables
    from robocache_ros.cli.program import print_document
    from robocache_ros.cli.progress import shown_progress
    from robocache_ros.exporter.job import summarize
    from robocache_ros.exporter.report import json_file, write_report
    from robocache_ros.spec import load_spec
    from robocache_ros.storage.new_files import check_new

    check_new(out, json_file(out), overwrite=overwrite)
    loaded = load_spec(spec)
    with shown_progress() as progress:
        recording = summarize(bag, loaded, progress=progress, **given)
    document = write_report([recording], out, overwrite=overwrite)
    if json:
        print_document("report", {"wrote": out, "wrote_json": json_file(out), **document})
    else:
        tables.say(f"wrote {out} and {json_file(out)}")
