"""An export from paths and options: what `robocache export` and `robocache_ros.export` run."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from robocache_ros.errors import RoboCacheError
from robocache_ros.exporter.append import append_outputs
from robocache_ros.exporter.executors.base import Executor
from robocache_ros.exporter.executors.ray import chosen_executor
from robocache_ros.exporter.job import ExportResult, Output, export_together, outputs_of
from robocache_ros.exporter.options import ExportOptions
from robocache_ros.exporter.planned_recording import PlannedRecording
from robocache_ros.exporter.progress import Progress
from robocache_ros.exporter.recordings import recordings_of
from robocache_ros.exporter.shards import Shard, ShardResult, export_shard
from robocache_ros.spec import FusionSpec, load_spec
from robocache_ros.spec.dataset import DatasetOptions
from robocache_ros.spec.keys import read_values, refusal
from robocache_ros.storage.cache import VARIABLE, cache_bytes_of
from robocache_ros.storage.paths import any_path


def outputs_with_sections(
    specs: Sequence[tuple[str, FusionSpec]], rates_hz: Sequence[int], given: Mapping[str, Any]
) -> list[Output]:
    """Return the datasets of specs and rates, as `outputs_of`.

    The options of each are the given ones, else those of the section `dataset` of its spec, else the defaults.
    """
    names = {field_.name for field_ in fields(DatasetOptions)}
    chosen = {name: value for name, value in given.items() if name in names}
    resolved = [
        (name, replace(spec, dataset=replace(spec.dataset or DatasetOptions(), **chosen))) for name, spec in specs
    ]
    return [
        replace(output, spec=replace(output.spec, dataset=None), options=replace(output.spec.dataset, rate_hz=rate_hz))
        for output in outputs_of(resolved, rates_hz, DatasetOptions())
        if output.spec.dataset is not None
        for rate_hz in [output.options.rate_hz]
    ]


def executor_of(options: ExportOptions) -> Executor:
    """Return what runs the tasks of an export."""
    return chosen_executor(options.executor, jobs=options.jobs, address=options.address, per_task=options.per_task)


def run_export(
    recordings: Sequence[PlannedRecording],
    outputs: Sequence[Output],
    out: str | Path,
    options: ExportOptions,
    progress: Progress | None = None,
) -> tuple[ExportResult, ...] | ShardResult:
    """Make datasets of recordings: all of them, a shard, or an append.

    Args:
        recordings: in the order of their episodes.
        outputs: the datasets, each with its options.
        out: the folder of the datasets, or its URL.
        options: of the run; those of the datasets are not used.
        progress: called with the events of the export.
    """
    arguments: dict[str, Any] = {
        "overwrite": options.overwrite,
        "report": options.report,
        "on_error": options.on_error,
        "progress": progress,
        "device": options.device,
        "engine": executor_of(options),
        "pieces": options.pieces,
    }
    if options.append:
        return append_outputs(recordings, outputs, out, shard=options.shard, **arguments)
    if options.shard:
        return export_shard(recordings, outputs, out, Shard.parse(options.shard), **arguments)
    return export_together(recordings, outputs, out, **arguments)


def apply_cache_bytes(options: ExportOptions, where: str) -> None:
    """Set the size of the cache of downloads, also for the processes that are started."""
    if options.cache_bytes is not None:
        os.environ[VARIABLE] = str(cache_bytes_of(options.cache_bytes, where))


# `robocache_ros.export`: its keywords are the fields of `ExportOptions`, for type checkers and editors too.


P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True)
class _Arguments(ExportOptions):
    recordings: str | Path | Sequence[str | Path | PlannedRecording]
    spec: str | Path | Mapping[str, Any] | FusionSpec
    out: str | Path
    progress: Progress | None = field(default=None, kw_only=True)


def _with_arguments(arguments: Callable[P, _Arguments]) -> Callable[[Callable[..., R]], Callable[P, R]]:
    def decorate(function: Callable[..., R]) -> Callable[P, R]:
        signature = inspect.signature(arguments).replace(
            return_annotation=inspect.signature(function).return_annotation
        )
        function.__signature__ = signature  # type: ignore[attr-defined]
        return function

    return decorate


@_with_arguments(_Arguments)
def export(
    recordings: str | Path | Sequence[str | Path | PlannedRecording],
    spec: str | Path | Mapping[str, Any] | FusionSpec,
    out: str | Path,
    *,
    progress: Progress | None = None,
    **given: Any,
) -> ExportResult:
    """Export recordings as a dataset, as `robocache export` does.

    The other keywords are the options of the command: `formats=["rlds"]`, `task="lift the cube"`, `jobs=4`, ...;
    docs/reference/commands.md lists them. They come first, then those of the section `dataset` of the spec. With more
    than one job, guard the code of the main module with `if __name__ == "__main__":`.

    Args:
        recordings: a recording, a folder, a glob or a URL, or a list of them, or of `PlannedRecording`s.
        spec: the fusion spec, or its path, its URL or its contents.
        out: the folder of the dataset, new or empty, or its URL.
        progress: called with the events of the export.
        given: options.

    Errors:
        RoboCacheError: as of `robocache export`; one line per wrong option.
    """
    if given.get("executor", "local") == "local":
        given = {"jobs": 1, **given}
    given = read_values(ExportOptions, given)
    options = ExportOptions(**given)
    if options.shard:
        raise refusal("shard", "belongs to the command; use robocache_ros.exporter.shards.export_shard")
    apply_cache_bytes(options, "cache_bytes")
    where = any_path(out, "datasets")
    found = recordings_of([recordings] if isinstance(recordings, (str, Path)) else recordings, but=where)
    loaded = spec if isinstance(spec, FusionSpec) else load_spec(spec)
    done = run_export(found, outputs_with_sections([("", loaded)], (), given), where, options, progress)
    if isinstance(done, ShardResult):
        raise RoboCacheError("shard: belongs to the command")
    return done[0]
