"""Windows of a recording, exported and read back."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as parquet
import pytest

from robocache_ros.bags.fuse import BagRun
from robocache_ros.bags.reader import Bag
from robocache_ros.exporter.job import ExportResult, export
from robocache_ros.spec import FusionSpec, load_spec
from robocache_ros.spec.dataset import DatasetOptions

NAMES = ["panda_joint1", "panda_joint2"]
JOINTS = {
    "topic": "/panda/joint_states",
    "type": "sensor_msgs/msg/JointState",
    "names": NAMES,
    "on_invalid": "mask",  # the recording has a gap
}
SHAPE = (12, 2)


@pytest.fixture(scope="module")
def windowed() -> FusionSpec:
    window = {**JOINTS, "align": "window"}
    streams = {
        "arm": JOINTS,
        "fast": {**window, "samples": SHAPE[0]},
        "effort": {**window, "samples": 30, "field": "velocity", "reduce": "rms"},
    }
    return load_spec({"robocache": 1, "actions": "none", "streams": streams})


@pytest.fixture(scope="module")
def result(windowed: FusionSpec, bags: list[Path], tmp_path_factory: pytest.TempPathFactory) -> ExportResult:
    return export(bags, windowed, tmp_path_factory.mktemp("windows") / "out", DatasetOptions())


def test_a_window_is_stored_with_its_shape_mask_and_ages(windowed, bags, result) -> None:
    with Bag(bags[0]) as bag:
        parts = list(BagRun(bag, windowed).frames())
    fused = np.concatenate([part.fused.numpy() for part in parts])
    ages = np.concatenate([part.sample_age_ms for part in parts])
    table = parquet.read_table(next(result.out.glob("data/*/*.parquet")), filters=[("episode_index", "=", 0)])
    rows = {name: np.array(table[name].to_pylist()) for name in table.column_names}
    stored = rows["observation.window.fast"].astype(np.float32)
    assert stored.shape == (len(fused), *SHAPE)
    assert stored.tobytes() == fused[:, 2:26].tobytes()
    assert np.array_equal(rows["robocache.mask.fast"], ages >= 0)
    assert rows["robocache.sample_age_ms.fast"].astype(np.float32).tobytes() == ages.tobytes()
    assert (rows["robocache.mask.fast"].sum(axis=1) >= 9).mean() > 0.8  # 500 Hz on 50 Hz ticks
    assert rows["observation.state"].shape == (len(fused), 4)  # arm and effort


def test_the_features_and_statistics_have_the_shape_of_a_window(result) -> None:
    features = json.loads((result.out / "meta" / "info.json").read_text())["features"]
    assert features["observation.window.fast"] == {
        "dtype": "float32",
        "shape": [*SHAPE],
        "names": NAMES,
    }
    assert features["robocache.mask.fast"]["shape"] == [SHAPE[0]]
    stats = json.loads((result.out / "meta" / "stats.json").read_text())["observation.window.fast"]
    assert np.shape(stats["mean"]) == np.shape(stats["q50"]) == SHAPE
    reported = json.loads((result.out / "meta" / "robocache.json").read_text())
    assert reported["layout"]["streams"]["fast"]["shape"] == [*SHAPE]


def test_samples_that_did_not_fit_are_counted_in_the_report(bags, tmp_path) -> None:
    small = load_spec(
        {"robocache": 1, "actions": "none", "streams": {"fast": {**JOINTS, "align": "window", "samples": 4}}}
    )
    result = export(bags[:1], small, tmp_path / "out", DatasetOptions())
    assert result.recordings[0].counters["fast"]["window_overflow"] > 300
    assert "window_overflow" in (result.out / "report.html").read_text()
