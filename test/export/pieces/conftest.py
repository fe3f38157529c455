"""Several small recordings, and what an undisturbed export makes of them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from robocache_ros.exporter.job import export
from robocache_ros.spec import FusionSpec
from robocache_ros.spec.dataset import DatasetOptions
from test.shared import once

Contents = dict[str, bytes]


def contents(folder: Path) -> Contents:
    """Every file of a folder, also hidden ones."""
    return {str(f.relative_to(folder)): f.read_bytes() for f in sorted(folder.rglob("*")) if f.is_file()}


@pytest.fixture(scope="session")
def recordings(bags: list[Path], tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Four recordings, the last two of which are copies of the first two under names of their own."""

    def make(folder: Path) -> list[Path]:
        return [*bags, *(shutil.copytree(bag, folder / f"copy_{bag.name}") for bag in bags)]

    return once(tmp_path_factory, "four_recordings", make)


@pytest.fixture(scope="session")
def undisturbed(
    recordings: list[Path], spec: FusionSpec, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Contents]:
    """The dataset of one process that nothing stops, by how its images are stored."""

    def make(folder: Path) -> Contents:
        options = DatasetOptions(media=folder.name.rpartition("_")[2])
        return contents(export(recordings, spec, folder / "set", options).out)

    return lambda media: once(tmp_path_factory, f"undisturbed_{media}", make)
