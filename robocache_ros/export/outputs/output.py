"""One of several datasets that an export makes from the same recordings."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.export.export_options import ExportOptions
from robocache_ros.spec import FusionSpec

MAX_OUTPUTS = 32  # each has an engine and encoders of its own while a recording is converted


@dataclass(frozen=True)
class Output:
    """A dataset of an export with several.

    Attributes:
        name: of its folder.
        spec: the streams.
        options: of the export.
    """

    name: str
    spec: FusionSpec
    options: ExportOptions = field(default_factory=ExportOptions)

    def __post_init__(self) -> None:
        if Path(self.name).name != self.name or self.name.startswith("."):
            raise RoboCacheError(f"outputs: {printable(self.name, 60)!r} cannot be the name of a folder; rename it")


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
    specs: Iterable[tuple[str, FusionSpec]], rates_hz: Sequence[int], options: ExportOptions
) -> list[Output]:
    """Return the datasets of specs and rates: each spec at each rate, named `<spec>-<rate>hz` if there are several.

    Args:
        specs: name and streams of each.
        rates_hz: ticks per second; empty: those of the specs.
        options: of the export; their rate is not used.

    Errors:
        RoboCacheError: two datasets have the same name.
    """
    outputs = [
        Output(f"{name}-{rate_hz or spec.rate_hz}hz", spec, replace(options, rate_hz=rate_hz))
        for name, spec in specs
        for rate_hz in rates_hz or (None,)
    ]
    check_outputs(outputs)
    return outputs if len(outputs) > 1 else [replace(outputs[0], name="")]
