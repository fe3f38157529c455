"""A request for an export: its recordings, datasets, target and options, resolved and checked once."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.exporter.options import ExportOptions
from robocache_ros.exporter.planned_recording import PlannedRecording, planned
from robocache_ros.spec import FusionSpec
from robocache_ros.spec.dataset import DatasetOptions
from robocache_ros.spec.keys import read_values
from robocache_ros.storage.cache import VARIABLE, cache_bytes_of
from robocache_ros.storage.paths import AnyPath, any_path

MAX_OUTPUTS = 32  # each has an engine and encoders of its own while a recording is converted
_OF_DATASETS = frozenset(field.name for field in fields(DatasetOptions))


@dataclass(frozen=True)
class Output:
    """A dataset of an export."""

    name: str  # of its folder; empty if it is the only dataset
    spec: FusionSpec  # the streams
    options: DatasetOptions = field(default_factory=DatasetOptions)  # of the dataset

    def __post_init__(self) -> None:
        if Path(self.name).name != self.name or self.name.startswith("."):
            raise RoboCacheError(f"outputs: {printable(self.name, 60)!r} cannot be the name of a folder; rename it")
        if isinstance(self.options, ExportOptions):
            raise RoboCacheError(
                "options: those of a run are not of a dataset; give DatasetOptions, and them as keywords"
            )


def check_outputs(outputs: Sequence[Output]) -> None:
    """Refuse outputs that would be in one folder, or too many of them."""
    names = [output.name for output in outputs]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise RoboCacheError(
            f"outputs: {printable(twice[0], 60)} is the name of two datasets; name each spec and rate once, and "
            "specs of one name differently"
        )
    if not 1 <= len(outputs) <= MAX_OUTPUTS:
        raise RoboCacheError(f"outputs: {len(outputs)} datasets; use 1 to {MAX_OUTPUTS}")


def outputs_of(
    specs: Iterable[tuple[str, FusionSpec]],
    rates_hz: Sequence[int] = (),
    options: DatasetOptions | None = None,
    given: Mapping[str, Any] | None = None,
) -> list[Output]:
    """Return the datasets of specs and rates: each spec at each rate, named `<spec>-<rate>hz` if there are several.

    Args:
        specs: name and streams of each.
        rates_hz: ticks per second; empty: those of the options, or of the specs.
        options: of the datasets; None: those of the section `dataset` of each spec.
        given: options that take the place of these, by name.

    Errors:
        RoboCacheError: two datasets have the same name.
    """
    outputs = []
    for name, spec in specs:
        chosen = replace(options or spec.dataset or DatasetOptions(), **(given or {}))
        # Without the section, which the options contain: flags, the section and keywords give the same dataset.
        outputs += [
            Output(
                f"{name}-{rate or spec.rate_hz}hz", replace(spec, dataset=None, run=None), replace(chosen, rate_hz=rate)
            )
            for rate in rates_hz or (chosen.rate_hz,)
        ]
    check_outputs(outputs)
    return outputs if len(outputs) > 1 else [replace(outputs[0], name="")]


@dataclass(frozen=True)
class ExportRequest:
    """What an export makes, and how."""

    recordings: tuple[PlannedRecording, ...]  # in the order of their episodes; a recording may occur several times
    outputs: tuple[Output, ...]  # the datasets
    out: AnyPath  # the folder of the datasets, or its URL, as it is shown
    options: ExportOptions = field(default_factory=ExportOptions)  # of the run; those of the datasets are in `outputs`

    def __post_init__(self) -> None:
        if not self.recordings:
            raise RoboCacheError("bags: none given; name at least one recording")
        check_outputs(self.outputs)

    @classmethod
    def of(
        cls,
        recordings: Sequence[str | Path | PlannedRecording],
        outputs: Sequence[Output],
        out: str | AnyPath,
        given: Mapping[str, Any],
    ) -> ExportRequest:
        """Return the request of arguments, with the options of the run that are given."""
        if isinstance(recordings, (str, Path, PlannedRecording)):
            raise RoboCacheError(f"bags: {printable(recordings)} is one path; give a list of recordings")
        options = ExportOptions(**read_values(ExportOptions, given))
        return cls(planned(recordings), tuple(outputs), any_path(out, "datasets"), options)

    @property
    def target(self) -> AnyPath:
        """The target as it is used: an absolute path, or the URL."""
        return Path(os.path.abspath(self.out)) if isinstance(self.out, Path) else self.out


def divided(given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Divide options by name into those of datasets and those of the run."""
    of_datasets = {name: value for name, value in given.items() if name in _OF_DATASETS}
    return of_datasets, {name: value for name, value in given.items() if name not in _OF_DATASETS}


def apply_cache_bytes(options: ExportOptions, where: str) -> None:
    """Set the size of the cache of downloads, also for the processes that are started."""
    if options.cache_bytes is not None:
        os.environ[VARIABLE] = str(cache_bytes_of(options.cache_bytes, where))
