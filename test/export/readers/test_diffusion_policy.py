"""Datasets in the layout of Diffusion Policy's ReplayBuffer, read by its version of zarr, against the engine's frames.

If ROBOCACHE_DIFFUSION_POLICY names a checkout of Diffusion Policy, its own ReplayBuffer reads them too.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from robocache_ros.spec import FusionSpec
from robocache_ros.spec.dataset import DatasetOptions
from test.export.readers.environments import needs, probe
from test.export.sensor_recording import Rows, engine_episodes, sensor_spec
from test.exporting import export

pytestmark = needs("zarr")
OPTIONS = DatasetOptions(formats=("diffusion_policy",), task="lift the cube")
OF_TOPIC = replace(OPTIONS, task_topic="/task")
NAMES = ("lift", "sensors")
Sources = dict[str, tuple[list[Path], FusionSpec]]


@dataclass(frozen=True)
class Read:
    spec: FusionSpec
    episodes: list[Rows]  # of the engine
    reported: dict[str, Any]
    data: Rows  # what the reader returned

    def engine(self, name: str) -> np.ndarray:
        return np.concatenate([episode[name] for episode in self.episodes])


def read_dataset(recordings: list[Path], spec: FusionSpec, folder: Path, options: DatasetOptions = OPTIONS) -> Read:
    result = export(recordings, spec, folder / "set", options)
    checkout = filter(None, [os.environ.get("ROBOCACHE_DIFFUSION_POLICY")])
    reported = probe("zarr", folder, folder / "set" / "replay_buffer.zarr", folder, *checkout)
    return Read(spec, engine_episodes(result, spec), reported, dict(np.load(folder / "data.npz")))


@pytest.fixture(scope="module")
def read(sources: Sources, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Read]:
    done: dict[str, Read] = {}

    def get(name: str) -> Read:
        if name not in done:
            done[name] = read_dataset(*sources[name], tmp_path_factory.mktemp(name))
        return done[name]

    return get


@pytest.mark.parametrize("name", NAMES)
def test_every_value_is_the_engines(read: Callable[[str], Read], name: str) -> None:
    dataset = read(name)
    (action,) = [s.name for s in dataset.spec.streams if s.role == "action"]
    wanted = {s.name: s.name for s in dataset.spec.streams if s.role == "observation"} | {"action": action}
    assert {key for key in dataset.data if not key.startswith("robocache.")} == set(wanted)
    for key, stream in wanted.items():
        assert dataset.data[key].dtype == dataset.engine(stream).dtype
        assert np.array_equal(dataset.data[key], dataset.engine(stream)), key


@pytest.mark.parametrize("name", NAMES)
def test_times_validity_and_ages_are_the_engines(read: Callable[[str], Read], name: str) -> None:
    dataset = read(name)
    keys = [key for key in dataset.data if key.startswith("robocache.")]
    assert len(keys) == (4 if name == "lift" else 6)  # with the mask and the ages of a window
    for key in keys:
        assert np.array_equal(dataset.data[key], dataset.engine(key.removeprefix("robocache."))), key


def test_episodes_end_where_the_engines_do(read: Callable[[str], Read]) -> None:
    dataset = read("lift")
    assert dataset.reported["episode_ends"] == np.cumsum([len(e["tick_ns"]) for e in dataset.episodes]).tolist()
    assert len(dataset.episodes) > dataset.reported["recordings"] == 2
    assert (dataset.reported["tasks"], set(dataset.reported["task_index"])) == (["lift the cube"], {0})
    assert set(dataset.reported["success"]) == {-1}


def test_an_image_is_a_chunk(read: Callable[[str], Read]) -> None:
    chunks = read("sensors").reported["chunks"]
    assert (chunks["color"], chunks["gray"], chunks["depth"]) == ([1, 23, 31, 3], [1, 9, 17, 3], [1, 6, 8, 1])


def test_columns_have_names(read: Callable[[str], Read]) -> None:
    columns = read("lift").reported["columns"]
    assert columns["gripper"] == ["panda_finger_joint1", "panda_finger_joint2"]
    assert columns["robocache.valid"] == [stream.name for stream in read("lift").spec.streams]


def test_tasks_rewards_and_success_are_those_of_the_recordings(sources: Sources, tmp_path: Path) -> None:
    dataset = read_dataset(sources["sensors"][0][:2], sensor_spec(outcomes=True), tmp_path, OF_TOPIC)
    assert (dataset.reported["tasks"], dataset.reported["task_index"]) == (["task 0", "task 1"], [0, 1])
    assert dataset.reported["success"] == [1, 0]
    assert np.array_equal(dataset.data["reward"], dataset.engine("reward")[:, 0])
    assert "success" not in dataset.data


def test_a_dataset_without_actions_opens(sources: Sources, tmp_path: Path) -> None:
    dataset = read_dataset(sources["sensors"][0][:1], sensor_spec(actions=False), tmp_path)
    assert "action" not in dataset.data
    assert np.array_equal(dataset.data["state"], dataset.engine("state"))
