"""`robocache export`: recordings to a dataset."""

# No `from __future__ import annotations`: typer 0.9 does not evaluate string annotations.

from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from robocache_ros.cli.options import AsJson, LogJson, ManifestFile, Recordings, Target, place, with_options
from robocache_ros.cli.program import StopSignals
from robocache_ros.errors import RoboCacheError
from robocache_ros.exporter.options import ExportOptions
from robocache_ros.formats.registry import WRITERS
from robocache_ros.spec.dataset import INPUT

if TYPE_CHECKING:
    from robocache_ros.exporter.request import ExportRequest


@with_options(ExportOptions)
def export(
    spec: Annotated[
        list[str],
        typer.Option(
            *("--spec", "-s"),
            parser=place,
            metavar="PATH",
            help="Fusion spec (`info --write-spec` writes one), or its URL; repeatable.",
            rich_help_panel=INPUT,
        ),
    ],
    out: Target,
    given: dict[str, Any],
    bags: Recordings = None,
    manifest: ManifestFile = None,
    rate_hz: Annotated[
        Optional[list[int]],  # noqa: UP045 - typer reads it at run time
        typer.Option(
            *("--rate-hz",),
            metavar="HZ",
            help="Ticks per second instead of the rate of the spec; repeatable.",
            rich_help_panel=INPUT,
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be made, how large and how long; write nothing to DIR.")
    ] = False,
    json: AsJson = False,
    log_json: LogJson = False,
) -> None:
    """Export recordings as a dataset with a quality report. Run the same command again to continue a stopped one.

    Formats: {formats}.
    With several specs or rates, each spec at each rate is a dataset in DIR/<spec>-<rate>hz.
    """
    stop = StopSignals()  # by exceptions, so that files are removed
    from robocache_ros.cli import export_output
    from robocache_ros.cli.progress import shown_progress
    from robocache_ros.exporter.executors import return_freed_memory
    from robocache_ros.exporter.job import append_folders, executor_of, run_export
    from robocache_ros.exporter.recordings import recordings_of
    from robocache_ros.exporter.request import ExportRequest, apply_cache_bytes, divided, outputs_of
    from robocache_ros.exporter.shards import ShardResult
    from robocache_ros.spec import load_spec
    from robocache_ros.storage.paths import any_path

    options = ExportOptions(**given)
    apply_cache_bytes(options, "--cache-bytes")
    executor = executor_of(options)  # refuses what does not fit it, before anything is read
    export_output.check_shard(options, dry_run=dry_run)
    target = any_path(out, "datasets")
    recordings = recordings_of(bags, manifest, but=target)
    specs = [(path.stem, load_spec(path)) for path in (any_path(one, "specs") for one in spec)]
    outputs = outputs_of(specs, rate_hz or (), given=divided(given)[0])
    request = ExportRequest(recordings, tuple(outputs), target, options)
    return_freed_memory()
    if dry_run:
        _dry_run(request, json=json)
        return
    kept_in, own = append_folders(request, remote=executor.remote) if options.append else (target, None)
    continued = export_output.continued(kept_in, options.pieces or own, json=json, log_json=log_json)
    with continued, shown_progress(log_json=log_json) as progress:
        done = run_export(request, executor, stop.checked(progress))
    if isinstance(done, ShardResult):
        export_output.show_shard(done, target, json=json)
        results, code = done.results, export_output.shard_exit_code(done)
    else:
        results, code = done, int(any(not loss.dropped for result in done for loss in result.failed))
    report = options.report and not options.append  # that of an append is named in the notes
    if json and results:
        export_output.print_result_json(results, target, report=report)
    elif not json:
        for result in results:
            export_output.show_result(result, report=report)
    if code:
        raise typer.Exit(code)


export.__doc__ = (export.__doc__ or "").replace("{formats}", ", ".join(WRITERS))


def _dry_run(request: "ExportRequest", *, json: bool) -> None:
    from robocache_ros.cli import export_output, tables
    from robocache_ros.exporter.preview import dry_run

    if request.options.executor != "local":
        raise RoboCacheError("--dry-run: is computed on this machine; leave out --executor")
    found = dry_run(request, lambda recordings, name: tables.counted(recordings, f"checking {name}".strip()))
    runs = list(zip(request.outputs, found, strict=True))
    show = export_output.print_dry_run_json if json else export_output.print_dry_run
    show(runs, request.out)
    if any(len(run.accepted) < len(run.expected) for _, run in runs):
        raise typer.Exit(1)
