"""Exports as Delta Lake tables, beside the same recordings as LeRobot."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from robocache_ros.exporter.job import export
from robocache_ros.spec import FusionSpec
from robocache_ros.spec.dataset import DatasetOptions
from test.export.readers.sensor_recording import sensor_recording, sensor_spec

Exports = Callable[[str, str], Path]


@pytest.fixture(scope="session")
def sensors(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Recordings with windows, depth and outcomes, in which some streams are silent for a while."""
    folder = tmp_path_factory.mktemp("sensors")
    return [sensor_recording(folder / f"recording_{seed}", seed) for seed in range(2)]


@pytest.fixture(scope="session")
def exports(
    bags: list[Path], spec: FusionSpec, sensors: list[Path], tmp_path_factory: pytest.TempPathFactory
) -> Exports:
    """The folder with the formats delta and lerobot, by the recordings and how images are stored."""
    folder = tmp_path_factory.mktemp("exports")
    sources = {"lift": (bags, spec), "sensors": (sensors, sensor_spec(outcomes=True))}

    def made(source: str, media: str) -> Path:
        out = folder / f"{source}-{media}"
        if not out.exists():
            options = DatasetOptions(
                formats=("delta", "lerobot"), task="lift the cube", robot_type="panda", media=media
            )
            export(*sources[source], out, options)
        return out

    return made
