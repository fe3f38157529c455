"""Tasks, rewards and success that a recording states, in datasets."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from robocache_ros.datasets import open_dataset
from robocache_ros.exporter.planned_recording import PlannedRecording
from robocache_ros.formats.rlds.read import TfdsDataset
from robocache_ros.formats.validate import validate
from robocache_ros.spec.dataset import DatasetOptions
from test.export.conftest import START_NS, lerobot_rows, spec_of
from test.export.readers.environments import ffmpeg, needs, probe
from test.export.sensor_recording import sensor_recording, sensor_spec
from test.exporting import export

OUTCOMES = {
    "reward": {"topic": "/reward", "type": "std_msgs/msg/Float32", "role": "reward", "max_age_ms": 19},
    "done": {"topic": "/done", "type": "std_msgs/msg/Bool", "role": "success"},
}
EVENTS = {
    ("/episode", "std_msgs/msg/Empty"): [(5, 0)],
    ("/task", "std_msgs/msg/String"): [(0, "lift"), (5, "place")],
    ("/reward", "std_msgs/msg/Float32"): [(1, 0.5), (6, 2.0)],
    ("/done", "std_msgs/msg/Bool"): [(4, True), (9, False)],
}
FORMATS = ("lerobot", "lerobot21", "rlds", "webdataset", "diffusion_policy")
OPTIONS = DatasetOptions(
    formats=FORMATS, media="none", episode_topic="/episode", task_topic="/task", action="delta", robot_type="arm"
)
LEROBOT = DatasetOptions(formats=("lerobot", "lerobot21"), media="none", task="lift")
COLUMNS = ("next.reward", "next.done", "next.success")


def test_formats_have_the_task_the_rewards_and_the_success_of_each_episode(record, tmp_path):
    export([record(EVENTS)], spec_of(**OUTCOMES), tmp_path / "out", OPTIONS)
    for name in FORMATS:
        episodes = [open_dataset(name, tmp_path / "out" / name)[k] for k in range(2)]
        assert [(each["language"], int(each["success"])) for each in episodes] == [("lift", 1), ("place", 0)], name
        given = [np.flatnonzero(each["rewards"]).tolist() for each in episodes]
        assert [each["tick_ns"][rows].tolist() for each, rows in zip(episodes, given, strict=True)] == [
            [START_NS + 10**9],
            [START_NS + 6 * 10**9],
        ], name
        assert [each["rewards"][rows].tolist() for each, rows in zip(episodes, given, strict=True)] == [[0.5], [2.0]]
    rlds = TfdsDataset(tmp_path / "out" / "rlds" / "robocache" / "1.0.0").episodes("train")
    for episode, success in zip(rlds, (True, False), strict=True):  # a terminal step follows from success only
        terminal = episode["steps/is_terminal"]
        assert terminal.tolist() == [False] * (len(terminal) - 1) + [success]


@pytest.fixture(scope="module")
def sensors(tmp_path_factory) -> list[Path]:
    """Two recordings, of which the second one succeeds; the last value of the success stream says so."""
    folder = tmp_path_factory.mktemp("outcomes")
    return [sensor_recording(folder / f"seed_{seed}", seed) for seed in (1, 2)]


@pytest.fixture(scope="module")
def out(sensors, tmp_path_factory) -> Path:
    spec = sensor_spec(outcomes=True).without_cameras()
    return export(sensors, spec, tmp_path_factory.mktemp("out") / "set", LEROBOT, report=False).out


def by_episode(rows: Any, name: str) -> list[list[Any]]:
    episodes, values = np.array(rows["episode_index"]), np.array(rows[name].to_pylist())
    return [values[episodes == index].tolist() for index in np.unique(episodes)]


@pytest.mark.parametrize("name", LEROBOT.formats)
def test_rewards_and_success_of_streams_are_columns_with_statistics(out, name):
    rows = lerobot_rows(out / name)
    features = json.loads((out / name / "meta" / "info.json").read_text())["features"]
    for column, dtype in zip(COLUMNS, ("float32", "bool", "bool"), strict=True):
        assert features[column] == {"dtype": dtype, "shape": [1], "names": None}
    rewards = by_episode(rows, "next.reward")
    assert [len(set(values)) for values in rewards] == [25, 25]  # the reward is held between two messages
    assert by_episode(rows, "next.done") == [[False] * (len(values) - 1) + [True] for values in rewards]
    assert by_episode(rows, "next.success") == [[False] * len(rewards[0]), [True] * len(rewards[1])]
    assert [str(finding) for finding in validate(out / name)[0].found] == []
    stats = json.loads((out / name / "meta" / "stats.json").read_text())
    assert stats["next.reward"]["max"] == [max(map(max, rewards))]


def exported(bags: Sequence[Path], out: Path, outcome: bool | None) -> Any:
    """The rows of a dataset without streams of outcomes, given the outcome of the first recording."""
    first, *others = bags
    plan = [PlannedRecording(first, success=outcome), *map(PlannedRecording, others)]
    spec = sensor_spec().without_cameras()
    return lerobot_rows(export(plan, spec, out, replace(LEROBOT, formats=("lerobot",)), report=False).out)


def test_a_success_that_is_stated_next_to_the_recording_is_at_the_last_row(sensors, tmp_path):
    rows = exported(sensors, tmp_path / "set", outcome=True)
    done = by_episode(rows, "next.done")
    assert by_episode(rows, "next.success") == [done[0], [False] * len(done[1])]  # the other outcome is not known
    assert by_episode(rows, "next.reward") == [np.array(done[0], float).tolist(), [0.0] * len(done[1])]


def test_without_outcomes_there_are_no_such_columns(sensors, tmp_path):
    assert not set(COLUMNS) & set(exported(sensors, tmp_path / "set", outcome=None).column_names)


@pytest.mark.parametrize("name", [pytest.param(name, marks=needs(name)) for name in LEROBOT.formats])
def test_lerobot_reads_them(out, tmp_path, name):
    rows = lerobot_rows(out / name).to_pydict()
    reported = probe(name, tmp_path, out / name, 0, 49, 99, **ffmpeg(name, tmp_path))
    for place, item in reported["items"].items():
        for column in COLUMNS:
            value = item[column]["value"]
            assert (value[0] if isinstance(value, list) else value) == rows[column][int(place)]
        assert item["next.done"]["dtype"] == "torch.bool"
    assert reported["stats"]["next.reward"]["max"] == [max(rows["next.reward"])]
