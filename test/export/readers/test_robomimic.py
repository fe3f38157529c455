"""Datasets in robomimic's format, read by robomimic 0.3.0, against the engine's frames."""

from __future__ import annotations

import json
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

pytestmark = needs("robomimic")
OPTIONS = DatasetOptions(formats=("robomimic",), task="lift the cube", robot_type="panda")
OF_TOPIC = replace(OPTIONS, task_topic="/task")
NAMES = ("lift", "sensors")
Sources = dict[str, tuple[list[Path], FusionSpec]]


@dataclass(frozen=True)
class Read:
    spec: FusionSpec
    episodes: list[Rows]  # of the engine
    reported: dict[str, Any]
    arrays: dict[str, Rows]  # what the reader returned: items, sequence, robocache, action_dict

    def engine(self, name: str) -> np.ndarray:
        return np.concatenate([episode[name] for episode in self.episodes])


def read_dataset(recordings: list[Path], spec: FusionSpec, folder: Path, options: DatasetOptions = OPTIONS) -> Read:
    result = export(recordings, spec, folder / "set", options)
    rgb = [s.name for s in spec.media if s.kind == "image" and s.name != "depth"]
    other = [s.name for s in (*spec.vectors, *spec.media) if s.role == "observation" and s.name not in (*rgb, "depth")]
    keys = {"low_dim": other, "rgb": rgb, "depth": ["depth"] if "depth" in [s.name for s in spec.media] else []}
    reported = probe("robomimic", folder, folder / "set" / "dataset.hdf5", folder, json.dumps(keys))
    arrays = {name: dict(np.load(folder / f"{name}.npz")) for name in ("items", "sequence", "robocache", "action_dict")}
    return Read(spec, engine_episodes(result, spec), reported, arrays)


@pytest.fixture(scope="module")
def read(sources: Sources, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Read]:
    done: dict[str, Read] = {}

    def get(name: str) -> Read:
        if name not in done:
            done[name] = read_dataset(*sources[name], tmp_path_factory.mktemp(name))
        return done[name]

    return get


@pytest.mark.parametrize("name", NAMES)
def test_every_observation_is_the_engines(read: Callable[[str], Read], name: str) -> None:
    dataset = read(name)
    streams = [s.name for s in dataset.spec.streams if s.role == "observation"]
    assert {key for key in dataset.arrays["items"] if key.startswith("obs/")} == {f"obs/{s}" for s in streams}
    for stream in streams:
        values = dataset.arrays["items"][f"obs/{stream}"]
        assert (values.dtype, values.shape) == (dataset.engine(stream).dtype, dataset.engine(stream).shape)
        assert np.array_equal(values, dataset.engine(stream)), stream


@pytest.mark.parametrize("name", NAMES)
def test_next_obs_is_the_observation_of_the_next_tick(read: Callable[[str], Read], name: str) -> None:
    dataset = read(name)
    for key, values in dataset.arrays["items"].items():
        if key.startswith("next_obs/"):
            of = key.removeprefix("next_obs/")
            wanted = [np.concatenate([episode[of][1:], episode[of][-1:]]) for episode in dataset.episodes]
            assert np.array_equal(values, np.concatenate(wanted)), key


@pytest.mark.parametrize("name", NAMES)
def test_times_validity_and_ages_are_the_engines(read: Callable[[str], Read], name: str) -> None:
    dataset = read(name)
    assert {"tick_ns", "stamp_ns", "valid", "age_ns"} <= set(dataset.arrays["robocache"])
    for key, values in dataset.arrays["robocache"].items():
        assert np.array_equal(values, dataset.engine(key)), key


@pytest.mark.parametrize("name", NAMES)
def test_actions_are_scaled_to_one_and_kept_as_recorded(read: Callable[[str], Read], name: str) -> None:
    dataset = read(name)
    (action,) = [s.name for s in dataset.spec.streams if s.role == "action"]
    recorded, scaled = dataset.engine(action), dataset.arrays["items"]["actions"]
    assert np.array_equal(dataset.arrays["action_dict"][action], recorded)
    assert (scaled.min(), scaled.max()) == (-1, 1)
    assert scaled.dtype == np.float32
    has = dataset.engine("valid")[:, [s.name for s in dataset.spec.streams].index(action)] > 0
    restored = scaled * np.array(dataset.reported["scaling"]["scale"]) + dataset.reported["scaling"]["offset"]
    # `actions` has 24 bits of mantissa.
    np.testing.assert_allclose(restored[has], recorded[has], atol=1e-6)
    assert (scaled[~has] == 0).all()
    assert has.all() == (name == "lift")


def test_episodes_are_demos_with_their_task(read: Callable[[str], Read]) -> None:
    dataset = read("lift")
    assert dataset.reported["demos"] == [f"demo_{k}" for k in range(len(dataset.episodes))]
    assert dataset.reported["lengths"] == [len(episode["tick_ns"]) for episode in dataset.episodes]
    assert dataset.reported["languages"] == ["lift the cube"] * len(dataset.episodes)
    assert dataset.reported["env"] == {"env_name": "panda", "type": 2, "env_kwargs": {}}
    assert dataset.reported["recordings"] == 2


def test_the_last_tick_of_an_episode_is_done(read: Callable[[str], Read]) -> None:
    dataset = read("sensors")
    ends = np.cumsum(dataset.reported["lengths"]) - 1
    assert np.flatnonzero(dataset.arrays["items"]["dones"]).tolist() == ends.tolist()
    assert not dataset.arrays["items"]["rewards"].any()


def test_the_masks_hold_out_a_whole_recording(read: Callable[[str], Read]) -> None:
    masks = read("sensors").reported["masks"]
    assert masks == {"train": ["demo_0", "demo_2"], "valid": ["demo_1"]}


def test_sequences_are_stacked_frames_and_actions(read: Callable[[str], Read]) -> None:
    dataset = read("sensors")  # item 3 with frame_stack 2 and seq_length 4: from tick 2 to tick 6
    for stream in ("state", "color", "gray"):
        assert np.array_equal(dataset.arrays["sequence"][f"obs/{stream}"], dataset.episodes[0][stream][2:7])
    assert np.array_equal(dataset.arrays["sequence"]["actions"], dataset.arrays["items"]["actions"][2:7])


def test_shapes_are_those_of_policies(read: Callable[[str], Read]) -> None:
    reported = read("sensors").reported
    assert reported["shapes"] == {
        "state": [3], "force": [6, 2], "color": [3, 23, 31], "gray": [3, 9, 17], "depth": [1, 6, 8],
    }  # fmt: skip
    assert reported["ac_dim"] == 2


def test_tasks_and_rewards_are_those_of_the_recordings(sources: Sources, tmp_path: Path) -> None:
    dataset = read_dataset(sources["sensors"][0][:2], sensor_spec(outcomes=True), tmp_path, OF_TOPIC)
    assert dataset.reported["languages"] == ["task 0", "task 1"]
    assert dataset.reported["masks"] == {
        "train": ["demo_0"], "valid": ["demo_1"], "task_0": ["demo_0"], "task_1": ["demo_1"],
    }  # fmt: skip
    assert np.array_equal(dataset.arrays["items"]["rewards"], dataset.engine("reward")[:, 0])
    assert not {"obs/reward", "obs/success"} & set(dataset.arrays["items"])


def test_a_dataset_without_actions_opens(sources: Sources, tmp_path: Path) -> None:
    dataset = read_dataset(sources["sensors"][0][:1], sensor_spec(actions=False), tmp_path)
    assert dataset.reported["ac_dim"] == 0
    assert np.array_equal(dataset.arrays["items"]["obs/state"], dataset.engine("state"))
