"""Statistics of columns and images, and openpi's file of them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from robocache_ros.errors import RoboCacheError
from robocache_ros.formats import pieces
from robocache_ros.formats.lerobot.openpi import write_chunk_norm_stats
from robocache_ros.formats.statistics import QUANTILES, Histogram, by_column, of_columns
from robocache_ros.formats.validate import validate
from robocache_ros.spec.dataset import DatasetOptions
from test.export.conftest import lerobot_rows
from test.exporting import export


@pytest.mark.parametrize("width", [1, 5])
def test_columns_agree_with_numpy_however_the_rows_are_split(width):
    values = np.random.default_rng(0).normal(size=(30_001, width)).astype(np.float32)
    exact, stats = values.astype(np.float64), of_columns(values)
    # NumPy may change the order of sums; then a dataset's last digits change with it, and not more.
    assert stats["mean"] == pytest.approx(exact.mean(axis=0).tolist(), rel=1e-9)
    assert stats["std"] == pytest.approx(exact.std(axis=0).tolist(), rel=1e-12)
    for name, share in QUANTILES.items():
        assert stats[name] == pytest.approx(np.quantile(exact, share, axis=0).tolist())
    assert of_columns(values[:1], values[1:7000], values[7000:]) == stats
    shaped = by_column(values.T, (1, width), len(values))
    assert (shaped["q01"], shaped["count"]) == ([stats["q01"]], [30_001])


def test_one_row_is_enough_and_keeps_its_digits():
    stats, stamp = of_columns(np.array([1_760_003_600_001_119_292])), 1_760_003_600_001_119_292
    assert {name: stats[name] for name in ("min", "max", "std", "count")} == {
        "min": [stamp], "max": [stamp], "std": [0.0], "count": [1],
    }  # fmt: skip
    assert stats["mean"] == stats["q50"] == [float(stamp)]


def test_image_statistics_agree_with_numpy():
    images = np.random.default_rng(0).integers(0, 256, (4, 3, 8, 8), np.uint8)
    one, other = Histogram(), Histogram()
    for number, image in enumerate(images):
        (other if number else one).add(image)
    stats = (one + other).stats()
    for name in ("mean", "std", "min", "max"):
        assert np.ravel(stats[name]) == pytest.approx(getattr(images, name)((0, 2, 3)) / 255)
    assert np.ravel(stats["q50"]) == pytest.approx(np.quantile(images, 0.5, (0, 2, 3)) / 255, abs=1.5 / 255)
    assert stats["count"] == [4]


def test_statistics_of_a_dataset_do_not_depend_on_how_many_columns_are_read_at_once(
    made, bags, spec, tmp_path, monkeypatch
):
    monkeypatch.setattr(pieces, "STATS_BYTES", 1)
    result = export(bags, spec, tmp_path / "out", DatasetOptions(media="none"))
    assert (result.out / "meta/stats.json").read_text() == (made("none").out / "meta/stats.json").read_text()


# openpi's norm_stats.json.

HORIZON = 10


@pytest.fixture
def dataset(made, tmp_path) -> Path:
    return Path(shutil.copytree(made("none").out, tmp_path / "set"))


def norm_stats(dataset: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((dataset / "meta/openpi/norm_stats.json").read_text())["norm_stats"]
    return found


def chunks(dataset: Path, delta: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The action chunks as openpi makes them of a dataset: by LeRobot's delta_timestamps, then DeltaActions."""
    rows = lerobot_rows(dataset).to_pydict()
    made = []
    for row, episode in enumerate(rows["episode_index"]):
        last = max(k for k, other in enumerate(rows["episode_index"]) if other == episode)
        chunk = np.array([rows["action"][min(row + k, last)] for k in range(HORIZON)], np.float32)
        chunk -= np.where(delta, np.array(rows["observation.state"][row], np.float32)[: len(delta)], 0)
        made.append(chunk)
    return np.concatenate(made)


def test_an_export_has_the_statistics_of_its_rows(dataset):
    stats = json.loads((dataset / "meta/stats.json").read_text())
    for key, feature in (("state", "observation.state"), ("actions", "action")):
        assert norm_stats(dataset)[key] == {name: stats[feature][name] for name in ("mean", "std", "q01", "q99")}


@pytest.mark.parametrize("mask", [[], [True] * 6 + [False]])
def test_action_chunks_are_counted_as_openpi_counts_them(dataset, mask):
    before = norm_stats(dataset)
    wanted = chunks(dataset, np.array(mask or [False] * 7)).astype(np.float64)
    write_chunk_norm_stats(dataset, HORIZON, mask)
    found = norm_stats(dataset)
    assert found["state"] == before["state"]
    assert found["actions"]["mean"] == pytest.approx(wanted.mean(axis=0).tolist())
    assert found["actions"]["std"] == pytest.approx(wanted.std(axis=0).tolist())
    assert [str(finding) for finding in validate(dataset)[0].found] == []
    assert found["actions"]["q01"] == pytest.approx(np.quantile(wanted, 0.01, axis=0).tolist())


@pytest.mark.parametrize(("horizon", "mask"), [(0, []), (5, [True] * 30)])
def test_what_does_not_fit_is_refused(dataset, tmp_path, horizon, mask):
    with pytest.raises(RoboCacheError, match="do not fit 23 states and 7 actions"):
        write_chunk_norm_stats(dataset, horizon, mask)
    with pytest.raises(RoboCacheError, match="give the folder of a LeRobot dataset"):
        write_chunk_norm_stats(tmp_path, 5)
