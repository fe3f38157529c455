"""Recordings for the real readers."""

from __future__ import annotations

from pathlib import Path

import pytest

from robocache_ros.spec import FusionSpec
from test.export.readers.sensor_recording import sensor_recording, sensor_spec


@pytest.fixture(scope="session")
def sources(
    bags: list[Path], spec: FusionSpec, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[list[Path], FusionSpec]]:
    """Recordings and their spec by name: `lift`, a robot with gaps, voxels and cameras; `sensors`, the rest."""
    folder = tmp_path_factory.mktemp("sensors")
    sensors = [sensor_recording(folder / f"recording_{seed}", seed) for seed in range(3)]
    return {"lift": (bags, spec), "sensors": (sensors, sensor_spec())}
