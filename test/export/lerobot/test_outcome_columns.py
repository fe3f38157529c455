"""Rewards and success in the columns that LeRobot names `next.reward`, `next.done` and `next.success`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as parquet
import pytest

from robocache_ros.exporter.job import export
from robocache_ros.exporter.planned_recording import PlannedRecording
from robocache_ros.formats.validate import validate
from robocache_ros.spec.dataset import DatasetOptions
from test.export.readers.environments import ffmpeg, needs, probe
from test.export.readers.sensor_recording import sensor_recording, sensor_spec

OPTIONS = DatasetOptions(formats=("lerobot", "lerobot21"), media="none", task="lift")
COLUMNS = ("next.reward", "next.done", "next.success")
Make = Callable[..., Path]


@pytest.fixture(scope="module")
def bags(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two recordings, of which the second one succeeds; the last value of the success stream says so."""
    folder = tmp_path_factory.mktemp("outcomes")
    return [sensor_recording(folder / f"seed_{seed}", seed) for seed in (1, 2)]


@pytest.fixture(scope="module")
def out(bags: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    spec = sensor_spec(outcomes=True).without_cameras()
    return export(bags, spec, tmp_path_factory.mktemp("out") / "set", OPTIONS, report=False).out


def table(dataset: Path) -> Any:
    """The rows of all episodes."""
    files = sorted((dataset / "data").rglob("*.parquet"))
    return parquet.ParquetDataset([str(file) for file in files]).read()


def by_episode(rows: Any, name: str) -> list[list[Any]]:
    episodes = np.array(rows["episode_index"])
    values = np.array(rows[name].to_pylist())
    return [values[episodes == index].tolist() for index in np.unique(episodes)]


@pytest.mark.parametrize("name", OPTIONS.formats)
def test_rewards_and_success_of_streams_are_columns(out: Path, name: str) -> None:
    rows = table(out / name)
    features = json.loads((out / name / "meta" / "info.json").read_text())["features"]
    for column, dtype in zip(COLUMNS, ("float32", "bool", "bool"), strict=True):
        assert features[column] == {"dtype": dtype, "shape": [1], "names": None}
    rewards = by_episode(rows, "next.reward")
    assert [len(set(values)) for values in rewards] == [25, 25]  # the reward is held between two messages
    assert by_episode(rows, "next.done") == [[False] * (len(values) - 1) + [True] for values in rewards]
    assert by_episode(rows, "next.success") == [[False] * len(rewards[0]), [True] * len(rewards[1])]


@pytest.mark.parametrize("name", OPTIONS.formats)
def test_their_statistics_are_of_the_values(out: Path, name: str) -> None:
    (findings,) = validate(out / name)
    assert [str(finding) for finding in findings.found] == []
    stats = json.loads((out / name / "meta" / "stats.json").read_text())
    rewards = np.array(table(out / name)["next.reward"])
    assert stats["next.reward"]["max"] == [rewards.max()]
    if name == "lerobot":
        assert stats["next.success"]["mean"] == [0.5]
        assert stats["next.done"]["min"] == [0]


def exported(bags: Sequence[Path], out: Path, outcome: bool | None) -> Any:
    """The rows of a dataset without streams of outcomes, given the outcome of the first recording."""
    first, *others = bags
    plan = [PlannedRecording(first, success=outcome), *map(PlannedRecording, others)]
    spec = sensor_spec().without_cameras()
    return table(export(plan, spec, out, replace(OPTIONS, formats=("lerobot",)), report=False).out)


def test_a_success_that_is_stated_next_to_the_recording_is_at_the_last_row(bags: list[Path], tmp_path: Path) -> None:
    rows = exported(bags, tmp_path / "set", outcome=True)
    done = by_episode(rows, "next.done")
    assert by_episode(rows, "next.success") == [done[0], [False] * len(done[1])]  # the other outcome is not known
    assert by_episode(rows, "next.reward") == [np.array(done[0], float).tolist(), [0.0] * len(done[1])]


def test_without_outcomes_there_are_no_such_columns(bags: list[Path], tmp_path: Path) -> None:
    assert not set(COLUMNS) & set(exported(bags, tmp_path / "set", outcome=None).column_names)


@pytest.mark.parametrize(
    ("reader", "name"),
    [
        pytest.param(reader, name, marks=needs(reader))
        for reader, name in (("lerobot", "lerobot"), ("lerobot21", "lerobot21"))
    ],
)
def test_lerobot_reads_them(out: Path, tmp_path: Path, reader: str, name: str) -> None:
    rows: Mapping[str, Any] = table(out / name).to_pydict()
    places = (0, 49, 99)
    reported = probe(reader, tmp_path, out / name, *places, **ffmpeg(reader, tmp_path))
    for place in places:
        item = reported["items"][str(place)]
        for column in COLUMNS:
            value = item[column]["value"]
            assert (value[0] if isinstance(value, list) else value) == rows[column][place]
        assert item["next.done"]["dtype"] == "torch.bool"
    assert reported["stats"]["next.reward"]["max"] == [max(rows["next.reward"])]
