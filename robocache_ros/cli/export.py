"""`robocache export`: recordings to a dataset."""

# No `from __future__ import annotations`: typer 0.9 does not evaluate string annotations.

import os
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from robocache_ros.cli import options as given
from robocache_ros.cli.options import with_export_options
from robocache_ros.cli.program import StopSignals
from robocache_ros.errors import RoboCacheError
from robocache_ros.spec.dataset import DatasetOptions
from robocache_ros.storage.cache import VARIABLE, cache_bytes_of

if TYPE_CHECKING:
    from robocache_ros.exporter.job import Output
    from robocache_ros.exporter.planned_recording import PlannedRecording


# More than 50 lines, because of its options.
@with_export_options
def export(
    spec: Annotated[
        list[Path],
        typer.Option(
            "--spec",
            "-s",
            parser=given.place,
            metavar="PATH",
            help="The fusion spec (YAML), or its URL; may be repeated.",
        ),
    ],
    out: given.Target,
    options: DatasetOptions,
    bags: given.Recordings = None,
    manifest: given.ManifestFile = None,
    rate_hz: Annotated[
        Optional[list[int]],  # noqa: UP045 - typer reads it at run time
        typer.Option("--rate-hz", help="Ticks per second, in place of the rate in the spec; may be repeated."),
    ] = None,
    report: Annotated[bool, typer.Option(help="Write report.html into the dataset.")] = True,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the dataset in the folder.")] = False,
    append: Annotated[
        bool, typer.Option("--append", help="Add the episodes to the dataset in the folder; for the format delta.")
    ] = False,
    jobs: given.Jobs = None,
    on_error: given.AtError = given.OnError.fail,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be made, how large and how long; write nothing to DIR.")
    ] = False,
    pieces: given.Pieces = None,
    shard: given.ShardOf = None,
    on: given.RunsOn = given.On.here,
    address: given.RayAddress = None,
    per_task: given.PerTask = None,
    device: given.Device = "cpu",
    cache_bytes: given.CacheBytes = None,
    json: given.AsJson = False,
    log_json: given.LogJson = False,
) -> None:
    """Export recordings as a dataset with a quality report. Run the same command again to continue a stopped one.

    With several specs or rates, each spec at each rate is a dataset in DIR/<spec>-<rate>hz.
    """
    stop = StopSignals()  # by exceptions, so that files are removed
    from robocache_ros.cli import export_output
    from robocache_ros.cli.given_recordings import given_recordings
    from robocache_ros.cli.progress import shown_progress
    from robocache_ros.exporter.append import append_folders, append_outputs
    from robocache_ros.exporter.executors.base import return_freed_memory
    from robocache_ros.exporter.executors.ray import chosen_executor
    from robocache_ros.exporter.job import export_together, outputs_of
    from robocache_ros.exporter.shards import ShardResult, export_shard
    from robocache_ros.spec import load_spec
    from robocache_ros.storage.paths import any_path

    if cache_bytes is not None:  # of the processes that are started too
        os.environ[VARIABLE] = str(cache_bytes_of(cache_bytes, "--cache-bytes"))
    engine = chosen_executor(on.value, jobs=jobs, address=address, per_task=per_task)
    part = export_output.shard_of(shard, pieces, dry_run=dry_run)
    out = any_path(out, "datasets")
    recordings = given_recordings(bags, manifest, but=out)
    outputs = outputs_of(
        [(path.stem, load_spec(path)) for path in (any_path(one, "specs") for one in spec)], rate_hz or (), options
    )
    return_freed_memory()
    if dry_run:
        if on is not given.On.here:
            raise RoboCacheError("--dry-run: is computed on this machine; leave out --on")
        _dry_run(recordings, outputs, out, overwrite or append, jobs, pieces, device, json)
        return
    kept_in = out
    if append and not pieces:
        kept_in, pieces = append_folders(recordings, outputs[0].spec, out, outputs[0].options, remote=engine.remote)
    continued = export_output.continued(kept_in, pieces, json=json, log_json=log_json)
    with continued, shown_progress(log_json=log_json) as progress:
        run: Callable[..., Any] = partial(export_shard, shard=part) if part else export_together
        if append:
            run = partial(append_outputs, shard=part)
        done = run(
            recordings,
            outputs,
            out,
            overwrite=overwrite,
            report=report,
            on_error=on_error.value,
            progress=stop.checked(progress),
            pieces=pieces,
            device=device,
            engine=engine,
        )
    if isinstance(done, ShardResult):
        export_output.show_shard(done, out, json=json)
        results, code = done.results, export_output.shard_exit_code(done)
    else:
        results, code = done, int(any(not loss.dropped for result in done for loss in result.failed))
    report = report and not append  # that of an append is named in the notes
    if json and results:
        export_output.print_result_json(results, out, report=report)
    elif not json:
        for result in results:
            export_output.show_result(result, report=report)
    if code:
        raise typer.Exit(code)


def _dry_run(
    recordings: "Sequence[PlannedRecording]",
    outputs: "Sequence[Output]",
    out: Path,
    overwrite: bool,
    jobs: Optional[int],  # noqa: UP045
    pieces: Optional[Path],  # noqa: UP045
    device: str,
    json: bool,
) -> None:
    from robocache_ros.cli import export_output, tables
    from robocache_ros.exporter.preview import dry_run as run

    runs = []
    for output in outputs:

        def each(items: "Sequence[PlannedRecording]", name: str = output.name) -> "Iterable[PlannedRecording]":
            return tables.counted(items, f"checking {name}".strip())

        found = run(
            recordings,
            output.spec,
            out,
            output.options,
            overwrite=overwrite,
            jobs=jobs,
            each=each,
            pieces=pieces,
            device=device,
        )
        runs.append((output, found))
    show = export_output.print_dry_run_json if json else export_output.print_dry_run
    show(runs, out)
    if any(len(found.accepted) < len(found.expected) for _, found in runs):
        raise typer.Exit(1)
