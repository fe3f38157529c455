"""`robocache_ros.export`: an export from paths and keywords."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from robocache_ros.exporter.datasets import ExportResult
from robocache_ros.exporter.job import run_export
from robocache_ros.exporter.options import ExportOptions
from robocache_ros.exporter.planned_recording import PlannedRecording
from robocache_ros.exporter.progress import Progress
from robocache_ros.exporter.recordings import recordings_of
from robocache_ros.exporter.request import ExportRequest, apply_cache_bytes, divided, outputs_of
from robocache_ros.exporter.shards import ShardResult
from robocache_ros.spec import FusionSpec, load_spec
from robocache_ros.spec.keys import read_values, refusal
from robocache_ros.storage.paths import AnyPath, any_path

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
    out: str | AnyPath,
    *,
    progress: Progress | None = None,
    **given: Any,
) -> ExportResult:
    """Export recordings as a dataset, as `robocache export` does.

    The other keywords are the options of the command: `formats=["rlds"]`, `task="lift the cube"`, `jobs=4`, ...;
    docs/reference/commands.md lists them. They come first, then those of the section `dataset` of the spec. With more
    than one job, guard the code of the main module with `if __name__ == "__main__":`.

    Args:
        recordings: a recording, a folder, a glob or a URL, or a list of them, or of `PlannedRecording`.
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
        raise refusal("shard", "belongs to the command; use robocache_ros.exporter.job.run_export")
    apply_cache_bytes(options, "cache_bytes")
    where = any_path(out, "datasets")
    found = recordings_of([recordings] if isinstance(recordings, (str, Path)) else recordings, but=where)
    loaded = spec if isinstance(spec, FusionSpec) else load_spec(spec)
    request = ExportRequest(found, tuple(outputs_of([("", loaded)], given=divided(given)[0])), where, options)
    done = run_export(request, progress=progress)
    assert not isinstance(done, ShardResult)
    return done[0]
