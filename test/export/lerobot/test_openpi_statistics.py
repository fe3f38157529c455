"""openpi's norm_stats.json."""

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
from robocache_ros.exporter.job import ExportResult
from robocache_ros.formats.lerobot.openpi import write_chunk_norm_stats
from robocache_ros.formats.validate import validate

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
