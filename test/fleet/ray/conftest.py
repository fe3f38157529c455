"""One Ray on this machine for all tests, and the recordings that they export."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from robocache_ros.exporter import executors as ray_session
from robocache_ros.exporter.job import export
from test.export.conftest import Contents, contents
from test.export.sensor_recording import sensor_recording, sensor_spec

ROOT = Path(__file__).parents[3]
os.environ.setdefault(ray_session.ONLY_LOOPBACK, "0")  # before tests import Ray
CPUS = 4  # of the Ray, whatever this machine has


@pytest.fixture(scope="session")
def ray_address() -> Iterator[str]:
    """The address of a Ray, to which this process is connected."""
    pytest.importorskip("ray", reason="needs ray (the fleet extra)")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))  # of its workers
        patch.delenv(ray_session.ADDRESS, raising=False)
        with ray_session.ray_session(None, slots=CPUS) as ray:
            yield ray.get_runtime_context().gcs_address


@pytest.fixture(scope="session")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Five recordings of different lengths."""
    folder = tmp_path_factory.mktemp("recordings")
    return [sensor_recording(folder / f"recording_{seed}", seed, 0.6 + 0.1 * seed) for seed in range(5)]


@pytest.fixture(scope="session")
def undisturbed(recordings: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Contents:
    """The dataset of the recordings that one process makes."""
    return contents(export(recordings, sensor_spec(), tmp_path_factory.mktemp("undisturbed") / "set").out)
