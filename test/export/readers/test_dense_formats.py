"""robomimic 0.3.0 and Diffusion Policy's version of zarr read what the engine computed.

If ROBOCACHE_DIFFUSION_POLICY names a checkout of Diffusion Policy, its own ReplayBuffer reads the datasets too.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from robocache_ros.spec import FusionSpec
from robocache_ros.spec.dataset import DatasetOptions
from test.export.readers.environments import needs, probe, reads
from test.export.sensor_recording import Rows, engine_episodes, sensor_spec
from test.exporting import export

ROBOMIMIC, ZARR = (pytest.param(name, marks=needs(name)) for name in ("robomimic", "zarr"))
NAMES = ("lift", "sensors")


@dataclass(frozen=True)
class Read:
    """A dataset as its reader reads it.

    Attributes:
        spec: of the export.
        episodes: what the engine computes.
        reported: what the probe says.
        observations: by stream.
        own: the columns that this package adds, such as `valid`.
        others: the arrays of robomimic by kind; of Diffusion Policy all in `data`.
    """

    spec: FusionSpec
    episodes: list[Rows]
    reported: dict[str, Any]
    observations: Rows
    own: Rows
    others: dict[str, Rows]

    def engine(self, name: str) -> np.ndarray:
        return np.concatenate([episode[name] for episode in self.episodes])

    @property
    def action(self) -> str:
        (name,) = [s.name for s in self.spec.streams if s.role == "action"]
        return name


def read_dataset(reader: str, recordings: list[Path], spec: FusionSpec, folder: Path, **options: Any) -> Read:
    name = "robomimic" if reader == "robomimic" else "diffusion_policy"
    given = DatasetOptions(formats=(name,), task="lift the cube", robot_type="panda", **options)
    result = export(recordings, spec, folder / "set", given)
    if reader == "zarr":
        checkout = filter(None, [os.environ.get("ROBOCACHE_DIFFUSION_POLICY")])
        reported = probe("zarr", folder, result.out / "replay_buffer.zarr", folder, *checkout)
        others = {"data": dict(np.load(folder / "data.npz"))}
        own = {key.removeprefix("robocache."): of for key, of in others["data"].items() if key.startswith("robocache.")}
        not_observed = ("robocache.", "action", "reward")
        observations = {key: of for key, of in others["data"].items() if not key.startswith(not_observed)}
    else:
        rgb = [s.name for s in spec.media if s.kind == "image" and s.name != "depth"]
        depth = [s.name for s in spec.media if s.name == "depth"]
        rest = [s.name for s in (*spec.vectors, *spec.media) if s.role == "observation"]
        keys = {"low_dim": [s for s in rest if s not in (*rgb, *depth)], "rgb": rgb, "depth": depth}
        reported = probe("robomimic", folder, result.out / "dataset.hdf5", folder, json.dumps(keys))
        kinds = ("items", "sequence", "robocache", "action_dict")
        others = {kind: dict(np.load(folder / f"{kind}.npz")) for kind in kinds}
        own = others["robocache"]
        observations = {key[4:]: values for key, values in others["items"].items() if key.startswith("obs/")}
    return Read(spec, engine_episodes(result, spec), reported, observations, own, others)


@pytest.fixture(scope="module")
def read(sources, tmp_path_factory) -> Callable[[str, str], Read]:
    """By the reader, and the name of the recordings."""
    return cache(lambda reader, name: read_dataset(reader, *sources[name], tmp_path_factory.mktemp(name)))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("reader", [ROBOMIMIC, ZARR])
def test_observations_times_validity_and_ages_are_the_engines(read, reader, name):
    dataset = read(reader, name)
    assert set(dataset.observations) == {s.name for s in dataset.spec.streams if s.role == "observation"}
    for stream, values in dataset.observations.items():
        assert (values.dtype, values.shape) == (dataset.engine(stream).dtype, dataset.engine(stream).shape)
        assert np.array_equal(values, dataset.engine(stream)), stream
    assert {"tick_ns", "stamp_ns", "valid", "age_ns"} <= set(dataset.own)
    assert len(dataset.own) == (4 if name == "lift" else 6)  # with the mask and the ages of a window
    for key, values in dataset.own.items():
        assert np.array_equal(values, dataset.engine(key)), key


@pytest.mark.parametrize("reader", [ROBOMIMIC, ZARR])
def test_a_dataset_without_actions_opens(sources, tmp_path, reader):
    dataset = read_dataset(reader, sources["sensors"][0][:1], sensor_spec(actions=False), tmp_path)
    assert np.array_equal(dataset.observations["state"], dataset.engine("state"))
    assert dataset.reported["ac_dim"] == 0 if reader == "robomimic" else "action" not in dataset.others["data"]


# robomimic


@reads("robomimic")
@pytest.mark.parametrize("name", NAMES)
def test_next_obs_is_the_observation_of_the_next_tick(read, name):
    dataset = read("robomimic", name)
    for key, values in dataset.others["items"].items():
        if key.startswith("next_obs/"):
            of = key.removeprefix("next_obs/")
            wanted = [np.concatenate([episode[of][1:], episode[of][-1:]]) for episode in dataset.episodes]
            assert np.array_equal(values, np.concatenate(wanted)), key


@reads("robomimic")
@pytest.mark.parametrize("name", NAMES)
def test_actions_are_scaled_to_one_and_kept_as_recorded(read, name):
    dataset = read("robomimic", name)
    recorded, scaled = dataset.engine(dataset.action), dataset.others["items"]["actions"]
    assert np.array_equal(dataset.others["action_dict"][dataset.action], recorded)
    assert (scaled.min(), scaled.max()) == (-1, 1)
    assert scaled.dtype == np.float32
    has = dataset.engine("valid")[:, [s.name for s in dataset.spec.streams].index(dataset.action)] > 0
    restored = scaled * np.array(dataset.reported["scaling"]["scale"]) + dataset.reported["scaling"]["offset"]
    # `actions` has 24 bits of mantissa.
    np.testing.assert_allclose(restored[has], recorded[has], atol=1e-6)
    assert (scaled[~has] == 0).all()
    assert has.all() == (name == "lift")


@reads("robomimic")
def test_episodes_are_demos_with_their_task_and_end_with_done(read):
    lift = read("robomimic", "lift")
    wanted = {
        "demos": [f"demo_{k}" for k in range(len(lift.episodes))],
        "lengths": [len(episode["tick_ns"]) for episode in lift.episodes],
        "languages": ["lift the cube"] * len(lift.episodes),
        "env": {"env_name": "panda", "type": 2, "env_kwargs": {}},
        "recordings": 2,
    }
    assert {key: lift.reported[key] for key in wanted} == wanted
    sensors = read("robomimic", "sensors")
    ends = np.cumsum(sensors.reported["lengths"]) - 1
    assert np.flatnonzero(sensors.others["items"]["dones"]).tolist() == ends.tolist()
    assert not sensors.others["items"]["rewards"].any()
    assert sensors.reported["masks"] == {"train": ["demo_0", "demo_2"], "valid": ["demo_1"]}  # a whole recording
    shapes = {"state": [3], "force": [6, 2], "color": [3, 23, 31], "gray": [3, 9, 17], "depth": [1, 6, 8]}
    assert (sensors.reported["shapes"], sensors.reported["ac_dim"]) == (shapes, 2)  # as policies get them


@reads("robomimic")
def test_sequences_are_stacked_frames_and_actions(read):
    dataset = read("robomimic", "sensors")  # item 3 with frame_stack 2 and seq_length 4: from tick 2 to tick 6
    sequence = dataset.others["sequence"]
    for stream in ("state", "color", "gray"):
        assert np.array_equal(sequence[f"obs/{stream}"], dataset.episodes[0][stream][2:7])
    assert np.array_equal(sequence["actions"], dataset.others["items"]["actions"][2:7])


@reads("robomimic")
def test_tasks_and_rewards_of_robomimic_are_those_of_the_recordings(sources, tmp_path):
    recordings, spec = sources["sensors"][0][:2], sensor_spec(outcomes=True)
    dataset = read_dataset("robomimic", recordings, spec, tmp_path, task_topic="/task")
    masks = {"train": ["demo_0"], "valid": ["demo_1"], "task_0": ["demo_0"], "task_1": ["demo_1"]}
    assert (dataset.reported["languages"], dataset.reported["masks"]) == (["task 0", "task 1"], masks)
    assert np.array_equal(dataset.others["items"]["rewards"], dataset.engine("reward")[:, 0])
    assert not {"reward", "success"} & set(dataset.observations)


# Diffusion Policy


@reads("zarr")
def test_episodes_end_where_the_engines_do_and_columns_have_names(read):
    dataset = read("zarr", "lift")
    assert np.array_equal(dataset.others["data"]["action"], dataset.engine(dataset.action))
    reported = dataset.reported
    assert reported["episode_ends"] == np.cumsum([len(e["tick_ns"]) for e in dataset.episodes]).tolist()
    assert len(dataset.episodes) > reported["recordings"] == 2
    assert (reported["tasks"], set(reported["task_index"])) == (["lift the cube"], {0})
    assert set(reported["success"]) == {-1}
    assert reported["columns"]["gripper"] == ["panda_finger_joint1", "panda_finger_joint2"]
    assert reported["columns"]["robocache.valid"] == [stream.name for stream in dataset.spec.streams]


@reads("zarr")
def test_an_image_is_a_chunk_and_an_action_the_engines(read):
    dataset = read("zarr", "sensors")
    chunks = {"color": [1, 23, 31, 3], "gray": [1, 9, 17, 3], "depth": [1, 6, 8, 1]}
    assert {name: dataset.reported["chunks"][name] for name in chunks} == chunks
    action = dataset.others["data"]["action"]
    assert action.dtype == dataset.engine(dataset.action).dtype
    assert np.array_equal(action, dataset.engine(dataset.action))


@reads("zarr")
def test_tasks_rewards_and_success_of_a_replay_buffer_are_those_of_the_recordings(sources, tmp_path):
    recordings, spec = sources["sensors"][0][:2], sensor_spec(outcomes=True)
    dataset = read_dataset("zarr", recordings, spec, tmp_path, task_topic="/task")
    assert (dataset.reported["tasks"], dataset.reported["task_index"]) == (["task 0", "task 1"], [0, 1])
    assert dataset.reported["success"] == [1, 0]
    assert np.array_equal(dataset.others["data"]["reward"], dataset.engine("reward")[:, 0])
    assert "success" not in dataset.others["data"]
