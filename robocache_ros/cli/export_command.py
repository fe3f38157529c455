"""`robocache export`: recordings to a dataset."""

# No `from __future__ import annotations`: typer 0.9 does not evaluate string annotations.

import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

from robocache_ros.cli import option_types as given
from robocache_ros.cli.dataset_options import with_export_options
from robocache_ros.export.export_options import ExportOptions


@with_export_options
def export(
    spec: given.SpecFile,
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder of the dataset, new or empty.")],
    options: ExportOptions,
    bags: given.Recordings = None,
    manifest: given.ManifestFile = None,
    report: Annotated[bool, typer.Option(help="Write report.html into the dataset.")] = True,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the dataset in the folder.")] = False,
    jobs: given.Jobs = None,
    on_error: given.AtError = given.OnError.fail,
    json: given.AsJson = False,
    log_json: given.LogJson = False,
) -> None:
    """Export recordings as a dataset with a quality report. Run the same command again to continue a stopped one."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # SystemExit: files are removed
    from robocache_ros.cli.given_recordings import given_recordings
    from robocache_ros.cli.output import export_outcome
    from robocache_ros.cli.output.progress_display import shown_progress
    from robocache_ros.export.freed_memory import return_freed_memory
    from robocache_ros.export.job import export as run
    from robocache_ros.spec import load_spec

    recordings = given_recordings(bags, manifest, but=out)
    return_freed_memory()
    with export_outcome.continued(out, json), shown_progress(log_json=log_json) as progress:
        result = run(
            recordings,
            load_spec(spec),
            out,
            options,
            overwrite=overwrite,
            report=report,
            jobs=jobs,
            on_error=on_error.value,
            progress=progress,
        )
    if json:
        export_outcome.print_json(result, report=report)
    else:
        export_outcome.show(result, report=report)
    if any(not loss.dropped for loss in result.failed):
        raise typer.Exit(1)
