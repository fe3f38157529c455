"""Statistics of columns and images, and openpi's file of them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as parquet
import pytest

from robocache_ros.errors import RoboCacheError
from robocache_ros.exporter.datasets import ExportResult
from robocache_ros.formats import pieces
from robocache_ros.formats.lerobot.openpi import write_chunk_norm_stats
from robocache_ros.formats.statistics import QUANTILES, Histogram, by_column, of_columns
from robocache_ros.formats.validate import validate
from robocache_ros.spec import FusionSpec
from robocache_ros.spec.dataset import DatasetOptions
from test.exporting import export


def test_columns_agree_with_numpy() -> None:
    values = np.random.default_rng(0).normal(size=(1001, 3)).astype(np.float32)
    stats = of_columns(values)
    assert stats["mean"] == pytest.approx(values.mean(0, dtype=np.float64).tolist())
    assert stats["std"] == pytest.approx(values.std(0, dtype=np.float64).tolist())
    for name, share in QUANTILES.items():
        assert stats[name] == pytest.approx(np.quantile(values.astype(np.float64), share, axis=0).tolist())


def test_one_column_and_one_row_are_enough() -> None:
    stats = of_columns(np.array([7]))
    assert (stats["min"], stats["max"], stats["mean"], stats["std"], stats["q50"], stats["count"]) == (
        [7], [7], [7.0], [0.0], [7.0], [1],
    )  # fmt: skip


def test_sums_are_added_up_as_numpy_adds_them() -> None:
    values = np.random.default_rng(0).normal(size=(30_001, 5)).astype(np.float32)
    for table in (values, values[:, :1]):
        exact, stats = table.astype(np.float64), of_columns(table)
        # NumPy may change the order; then a dataset's last digits change with it, and not more.
        assert stats["mean"] == pytest.approx(exact.mean(axis=0).tolist(), rel=1e-9)
        assert stats["std"] == pytest.approx(exact.std(axis=0).tolist(), rel=1e-12)


def test_statistics_have_the_shape_of_a_row() -> None:
    values = np.random.default_rng(0).normal(size=(100, 6)).astype(np.float32)
    flat, shaped = of_columns(values), by_column(lambda k: values[:, k], (2, 3), 100)
    assert shaped["q01"] == np.reshape(flat["q01"], (2, 3)).tolist()
    assert shaped["count"] == [100]


@pytest.mark.parametrize("width", [1, 3])
def test_statistics_do_not_depend_on_how_the_rows_are_split(width: int) -> None:
    values = np.random.default_rng(0).normal(size=(10_001, width)).astype(np.float32)
    assert of_columns(values[:1], values[1:7000], values[7000:]) == of_columns(values)


def test_nanosecond_stamps_keep_their_digits() -> None:
    assert of_columns(np.array([1_760_003_600_001_119_292]))["max"] == [1_760_003_600_001_119_292]


def test_image_statistics_agree_with_numpy() -> None:
    images = np.random.default_rng(0).integers(0, 256, (4, 3, 8, 8), np.uint8)
    histogram = Histogram()
    for image in images:
        histogram.add(image)
    stats = histogram.stats()
    assert np.ravel(stats["mean"]) == pytest.approx(images.mean((0, 2, 3)) / 255)
    assert np.ravel(stats["std"]) == pytest.approx(images.std((0, 2, 3)) / 255)
    assert np.ravel(stats["min"]) == pytest.approx(images.min((0, 2, 3)) / 255)
    assert np.ravel(stats["max"]) == pytest.approx(images.max((0, 2, 3)) / 255)
    assert np.ravel(stats["q50"]) == pytest.approx(np.quantile(images, 0.5, (0, 2, 3)) / 255, abs=1.5 / 255)
    assert stats["count"] == [4]


def test_histograms_of_two_episodes_add_up() -> None:
    images = np.random.default_rng(0).integers(0, 256, (2, 3, 8, 8), np.uint8)
    first, second, both = Histogram(), Histogram(), Histogram()
    first.add(images[0])
    second.add(images[1])
    both.add(images[0])
    both.add(images[1])
    assert (first + second).stats() == both.stats()


def test_statistics_of_a_dataset_do_not_depend_on_how_many_columns_are_read_at_once(
    made: Callable[[str], ExportResult],
    bags: list[Path],
    spec: FusionSpec,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pieces, "STATS_BYTES", 1)
    result = export(bags, spec, tmp_path / "out", DatasetOptions(media="none"))
    stats = [(out / "meta" / "stats.json").read_text() for out in (result.out, made("none").out)]
    assert stats[0] == stats[1]


# openpi's norm_stats.json.

HORIZON = 10


@pytest.fixture
def dataset(made: Callable[[str], ExportResult], tmp_path: Path) -> Path:
    return Path(shutil.copytree(made("none").out, tmp_path / "set"))


def norm_stats(dataset: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((dataset / "meta/openpi/norm_stats.json").read_text())["norm_stats"]
    return found


def chunks(dataset: Path, delta: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The action chunks as openpi makes them of a dataset: by LeRobot's delta_timestamps, then DeltaActions."""
    rows = parquet.read_table(next(dataset.glob("data/*/*.parquet"))).to_pydict()
    made = []
    for row, episode in enumerate(rows["episode_index"]):
        last = max(k for k, other in enumerate(rows["episode_index"]) if other == episode)
        chunk = np.array([rows["action"][min(row + k, last)] for k in range(HORIZON)], np.float32)
        chunk -= np.where(delta, np.array(rows["observation.state"][row], np.float32)[: len(delta)], 0)
        made.append(chunk)
    return np.concatenate(made)


def test_an_export_has_the_statistics_of_its_rows(dataset: Path) -> None:
    stats = json.loads((dataset / "meta/stats.json").read_text())
    for key, feature in (("state", "observation.state"), ("actions", "action")):
        assert norm_stats(dataset)[key] == {name: stats[feature][name] for name in ("mean", "std", "q01", "q99")}


@pytest.mark.parametrize("mask", [[], [True] * 6 + [False]])
def test_action_chunks_are_counted_as_openpi_counts_them(dataset: Path, mask: list[bool]) -> None:
    before = norm_stats(dataset)
    wanted = chunks(dataset, np.array(mask or [False] * 7)).astype(np.float64)
    write_chunk_norm_stats(dataset, HORIZON, mask)
    found = norm_stats(dataset)
    assert found["state"] == before["state"]
    assert found["actions"]["mean"] == pytest.approx(wanted.mean(axis=0).tolist())
    assert found["actions"]["std"] == pytest.approx(wanted.std(axis=0).tolist())
    assert [str(finding) for finding in validate(dataset)[0].found] == []
    assert found["actions"]["q01"] == pytest.approx(np.quantile(wanted, 0.01, axis=0).tolist())


def test_a_horizon_of_one_is_the_statistics_of_the_rows(dataset: Path) -> None:
    before = norm_stats(dataset)
    write_chunk_norm_stats(dataset, 1)
    # Columns are added up in another order.
    assert norm_stats(dataset)["actions"]["mean"] == pytest.approx(before["actions"]["mean"], rel=1e-12)
    assert norm_stats(dataset)["actions"]["q99"] == before["actions"]["q99"]


@pytest.mark.parametrize(("horizon", "mask"), [(0, []), (5, [True] * 30)])
def test_what_does_not_fit_is_refused(dataset: Path, horizon: int, mask: list[bool]) -> None:
    with pytest.raises(RoboCacheError, match="do not fit 23 states and 7 actions"):
        write_chunk_norm_stats(dataset, horizon, mask)


def test_a_folder_without_a_dataset_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RoboCacheError, match="give the folder of a LeRobot dataset"):
        write_chunk_norm_stats(tmp_path, 5)
