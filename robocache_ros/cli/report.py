"""`robocache report`: the quality report of a recording, without a dataset."""

# No `from __future__ import annotations`: typer 0.9 does not evaluate string annotations.

from pathlib import Path
from typing import Annotated

import typer

from robocache_ros.cli import options as given


def report(
    bag: given.Recording,
    spec: given.SpecFile,
    out: Annotated[
        Path, typer.Option("--out", "-o", help="The file to write; its JSON document has the ending .json.")
    ] = Path("report.html"),
    visibility: given.Sees = given.Visibility.ideal,
    compare_visibility: given.Compares = False,
    msg_path: given.MsgPath = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing file.")] = False,
    json: given.AsJson = False,
) -> None:
    """Write the quality report of a recording, without a dataset."""
    from robocache_ros.cli import tables
    from robocache_ros.cli.program import print_document
    from robocache_ros.cli.progress import shown_progress
    from robocache_ros.exporter.job import summarize
    from robocache_ros.exporter.report.page import check_new, json_file, write_report
    from robocache_ros.spec import load_spec

    check_new(out, overwrite=overwrite)
    loaded = load_spec(spec)
    with shown_progress() as progress:
        recording = summarize(
            bag,
            loaded,
            visibility=visibility.value,
            compare_visibility=compare_visibility,
            progress=progress,
            msg_path=msg_path or (),
        )
    document = write_report([recording], out, overwrite=overwrite)
    if json:
        print_document("report", {"wrote": out, "wrote_json": json_file(out), **document})
    else:
        tables.say(f"wrote {out} and {json_file(out)}")
