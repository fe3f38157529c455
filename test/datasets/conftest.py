"""Exports of a recording in every format."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from robocache_ros.spec.dataset import DatasetOptions
from test.export.conftest import bags, spec  # noqa: F401 - fixtures
from test.exporting import export
from test.shared import once


@pytest.fixture(scope="session")
def bag(bags) -> Path:  # noqa: F811
    """A short cut of the Panda recording around its gap: two episodes."""
    return bags[0]


@pytest.fixture(scope="session")
def exported(tmp_path_factory, bag, spec) -> Callable[[str], Path]:  # noqa: F811
    """The recording in all formats, by how its images are stored."""

    def make(folder: Path) -> Path:
        formats = ("lerobot", "lerobot21", "robomimic", "rlds", "webdataset", "diffusion_policy", "mcap", "delta")
        media = folder.name.rpartition("_")[2]
        options = DatasetOptions(formats=formats, task="lift the cube", robot_type="panda", media=media)
        return export([bag], spec, folder / "out", options).out

    return lambda media: once(tmp_path_factory, f"panda_in_all_formats_{media}", make)
