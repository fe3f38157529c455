"""An export of planned recordings with a spec and the options of a dataset, as tests and benchmarks make it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from robocache_ros.exporter.datasets import ExportResult
from robocache_ros.exporter.executors import Executor
from robocache_ros.exporter.job import export_together
from robocache_ros.exporter.planned_recording import PlannedRecording
from robocache_ros.exporter.progress import Progress
from robocache_ros.exporter.request import divided, outputs_of
from robocache_ros.spec import FusionSpec
from robocache_ros.spec.dataset import DatasetOptions
from robocache_ros.storage.paths import AnyPath


def export(
    bags: Sequence[str | Path | PlannedRecording], spec: FusionSpec, out: str | AnyPath,
    options: DatasetOptions | None = None, *, progress: Progress | None = None, executor: str | Executor = "local",
    **given: Any,
) -> ExportResult:  # fmt: skip
    of_dataset, of_run = divided(given)
    outputs = outputs_of([("", spec)], (), options, of_dataset)
    (result,) = export_together(bags, outputs, out, progress=progress, executor=executor, **of_run)
    return result
