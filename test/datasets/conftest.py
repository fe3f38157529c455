"""Datasets of every format: real ones, and exports of a recording."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from robocache_ros.bags.reader import Bag
from robocache_ros.bags.write import write_bag
from robocache_ros.spec import FusionSpec, load_spec
from robocache_ros.spec.dataset import DatasetOptions
from test.exporting import export
from test.shared import once

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def spec() -> FusionSpec:
    return load_spec(ROOT / "config" / "panda_lift.yaml")


@pytest.fixture(scope="session")
def bag(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short cut of the Panda recording around its gap: two episodes."""
    folder = tmp_path_factory.mktemp("bag")
    with Bag(ROOT / "test" / "data" / "panda_lift") as complete:
        types = {name: topic.type for name, topic in complete.topics.items()}
        start = complete.start_ns + 3_500_000_000
        return write_bag(folder / "lift", types, list(complete.messages(None, start, start + 1_500_000_000)))


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory, bag: Path, spec: FusionSpec) -> Callable[[str], Path]:
    """The recording in all formats, by how its images are stored."""

    def make(folder: Path) -> Path:
        formats = ("lerobot", "lerobot21", "robomimic", "rlds", "webdataset", "diffusion_policy", "mcap", "delta")
        media = folder.name.rpartition("_")[2]
        options = DatasetOptions(formats=formats, task="lift the cube", robot_type="panda", media=media)
        return export([bag], spec, folder / "out", options).out

    return lambda media: once(tmp_path_factory, f"panda_in_all_formats_{media}", make)


@pytest.fixture
def real() -> Path:
    """The folder of recordings and datasets that others made."""
    folder = os.environ.get("ROBOCACHE_RECORDINGS")
    if not folder:
        pytest.skip("ROBOCACHE_RECORDINGS is not set")
    return Path(folder)
