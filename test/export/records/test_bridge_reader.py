"""A real shard of Open X-Embodiment as the package reads it, against tensorflow-datasets."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from robocache_ros.formats.rlds.read import TfdsDataset
from test.export.readers.environments import needs, probe
from test.export.records.conftest import picture, tables

pytestmark = needs("tfds")


@pytest.fixture(scope="module")
def bridge() -> Path:
    folder = os.environ.get("ROBOCACHE_RECORDINGS")
    if not folder:
        pytest.skip("ROBOCACHE_RECORDINGS is not set")
    return Path(folder) / "rlds_bridge" / "bridge_dataset" / "1.0.0"


def test_a_real_dataset_has_the_values_that_tfds_reads(bridge: Path, tmp_path: Path) -> None:
    reported = probe("tfds", tmp_path, bridge, "val")
    episodes = list(TfdsDataset(bridge).episodes("val"))
    assert len(episodes) == len(reported["episodes"]) == 25
    for episode, about, table in zip(episodes, reported["episodes"], tables(reported), strict=True):
        steps = {name.removeprefix("steps/"): values for name, values in episode.items() if name.startswith("steps/")}
        assert sorted(set(steps.pop("language_instruction"))) == about["tasks"]
        assert steps.keys() == table.keys()
        for name, values in steps.items():
            check(values, table[name])
        metadata = {name: value for name, value in episode.items() if not name.startswith("steps/")}
        assert {name: about[name.partition("/")[2]] for name in metadata} == metadata


def check(values: Any, expected: np.ndarray) -> None:
    if isinstance(values, list):
        values = np.stack([picture(image) for image in values])
    assert values.dtype == expected.dtype
    assert np.array_equal(values, expected)
