"""Files written with h5py as robomimic's scripts write them, read value by value.

As `conversion/convert_robosuite.py`, `dataset_states_to_obs.py --compress` and `split_train_val.py` of robomimic 0.3 to
0.5: float64 actions, rewards and states, integer dones, gzip for observations, masks as byte strings.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from robocache_ros.datasets import RoboMimicDataset

LENGTHS = {"demo_0": 6, "demo_1": 1, "demo_2": 4, "demo_10": 3}
OBSERVATIONS = ("object", "robot0_eef_pos", "robot0_eef_quat", "robot0_gripper_qpos")  # alphabetical
WIDTHS = (10, 3, 4, 2)


def contents() -> dict[str, dict[str, Any]]:
    rng = np.random.default_rng(0)
    demos: dict[str, dict[str, Any]] = {}
    for name, length in LENGTHS.items():
        obs = {key: rng.normal(size=(length, width)) for key, width in zip(OBSERVATIONS, WIDTHS, strict=True)}
        obs["robot0_eef_quat"] /= np.linalg.norm(obs["robot0_eef_quat"], axis=1, keepdims=True)
        obs["agentview_image"] = rng.integers(0, 256, (length, 20, 24, 3), np.uint8)
        obs["agentview_depth"] = rng.random((length, 20, 24, 1), np.float32)
        rewards = np.zeros(length)
        rewards[-1] = 1.0
        demos[name] = {"obs": obs, "actions": rng.uniform(-1, 1, (length, 7)), "rewards": rewards}
    return demos


def write(path: Path, *, compressed: bool) -> dict[str, dict[str, Any]]:
    demos = contents()
    options = {"compression": "gzip"} if compressed else {}
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        for name, demo in demos.items():
            group, length = data.create_group(name), len(demo["actions"])
            group.create_dataset("actions", data=demo["actions"])
            group.create_dataset("states", data=np.zeros((length, 32)))
            group.create_dataset("rewards", data=demo["rewards"])
            group.create_dataset("dones", data=demo["rewards"].astype(int))
            for key, values in demo["obs"].items():
                group.create_dataset(f"obs/{key}", data=values, **options)
                following = np.concatenate([values[1:], values[-1:]])
                group.create_dataset(f"next_obs/{key}", data=following, **options)
            group.attrs["model_file"] = "<mujoco/>"
            group.attrs["num_samples"] = length
        data.attrs["total"] = sum(LENGTHS.values())
        env = {"env_name": "Lift", "type": 1, "env_version": "1.4.1", "env_kwargs": {"control_freq": 20}}
        data.attrs["env_args"] = json.dumps(env, indent=4)
        file["mask/train"] = np.array(["demo_0", "demo_10", "demo_2"], dtype="S")
        file["mask/valid"] = np.array(["demo_1"], dtype="S")
    return demos


@pytest.mark.parametrize("compressed", [False, True])
def test_every_value_is_the_written_one(compressed: bool, tmp_path: Path) -> None:
    demos = write(tmp_path / "lift.hdf5", compressed=compressed)
    dataset = RoboMimicDataset(tmp_path / "lift.hdf5", obs_modality="image", target_hz=20)

    assert len(dataset) == len(LENGTHS)
    for sample, demo in zip((dataset[index] for index in range(len(dataset))), demos.values(), strict=True):
        wanted = np.concatenate([demo["obs"][key] for key in OBSERVATIONS], axis=1).astype(np.float32)
        assert np.array_equal(sample["proprio"], wanted)
        assert np.array_equal(sample["actions"], demo["actions"].astype(np.float32))
        assert np.array_equal(sample["rewards"], demo["rewards"].astype(np.float32))
        assert np.array_equal(sample["vision"][:, 0], demo["obs"]["agentview_image"])
        assert (sample["valid"] == 1).all()


@pytest.mark.parametrize(("mask", "names"), [("train", ["demo_0", "demo_2", "demo_10"]), ("valid", ["demo_1"])])
def test_masks_select_demonstrations_in_the_order_of_their_numbers(mask: str, names: list[str], tmp_path: Path) -> None:
    demos = write(tmp_path / "lift.hdf5", compressed=True)
    dataset = RoboMimicDataset(tmp_path / "lift.hdf5", mask=mask, target_hz=20)

    assert len(dataset) == len(names)
    for index, name in enumerate(names):
        assert np.array_equal(dataset[index]["actions"], demos[name]["actions"].astype(np.float32))


def test_chosen_observations_have_the_order_in_which_they_were_chosen(tmp_path: Path) -> None:
    demos = write(tmp_path / "lift.hdf5", compressed=True)
    keys = ["robot0_gripper_qpos", "object"]

    sample = RoboMimicDataset(tmp_path / "lift.hdf5", obs_keys=keys, target_hz=20)[0]

    wanted = np.concatenate([demos["demo_0"]["obs"][key] for key in keys], axis=1).astype(np.float32)
    assert np.array_equal(sample["proprio"], wanted)
