from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

from robocache_ros.datasets import DatasetError, RoboMimicDataset

LIFT = "robomimic_lift/lift_two_demos.hdf5"


def write_demos(path: Path, lengths: tuple[int, ...] = (5, 1), env: dict[str, Any] | None = None) -> Path:
    """Write a file as robomimic does."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        data.attrs["env_args"] = json.dumps({"env_name": "Lift", "type": 1, "env_kwargs": env or {}})
        for index, length in enumerate(lengths):
            demo = data.create_group(f"demo_{index}")
            demo["actions"] = np.full((length, 2), index, np.float64)
            demo["obs/eef_pos"] = np.arange(length * 3, dtype=np.float64).reshape(length, 3)
        file["mask/train"] = np.array(["demo_1"], "S")
    return path


def test_values_are_those_of_the_real_file(real: Path) -> None:
    dataset = RoboMimicDataset(real / LIFT, target_hz=20)
    with h5py.File(real / LIFT) as file:
        for index in range(2):
            demo = file[f"data/demo_{index}"]
            keys = [key for key in sorted(demo["obs"]) if demo["obs"][key].ndim == 2]
            wanted = np.concatenate([demo["obs"][key][()] for key in keys], axis=1).astype(np.float32)
            assert np.array_equal(dataset[index]["proprio"], wanted)
            assert np.array_equal(dataset[index]["actions"], demo["actions"][()].astype(np.float32))
            assert np.array_equal(dataset[index]["rewards"], demo["rewards"][()].astype(np.float32))


def test_images_are_those_of_the_real_file(real: Path) -> None:
    dataset = RoboMimicDataset(real / LIFT, obs_modality="image", target_hz=20)

    with h5py.File(real / LIFT) as file:
        obs = file["data/demo_0/obs"]
        wanted = np.stack([obs["agentview_image"][()], obs["robot0_eye_in_hand_image"][()]], axis=1)
    assert np.array_equal(dataset[0]["vision"], wanted)


def test_every_fifth_tick_at_50_hz_is_every_second_step_of_20_hz(real: Path) -> None:
    dataset = RoboMimicDataset(real / LIFT)

    with h5py.File(real / LIFT) as file:
        wanted = file["data/demo_0/actions"][::2].astype(np.float32)
    assert np.array_equal(dataset[0]["actions"][::5], wanted)


def test_quaternions_stay_of_unit_length(real: Path) -> None:
    dataset = RoboMimicDataset(real / LIFT, obs_keys=["robot0_eef_quat"])

    assert (dataset[0]["proprio"].double().norm(dim=1) - 1).abs().max() < 1e-6  # float32, rounded a few times


def test_a_mask_selects_demonstrations(tmp_path: Path) -> None:
    dataset = RoboMimicDataset(write_demos(tmp_path / "a.hdf5"), mask="train")

    assert [dataset[k]["actions"][0, 0].item() for k in range(len(dataset))] == [1]


def test_an_unknown_mask_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"no test in .*; there are: train"):
        RoboMimicDataset(write_demos(tmp_path / "a.hdf5"), mask="test")


def test_the_rate_is_that_of_the_file(tmp_path: Path) -> None:
    dataset = RoboMimicDataset(write_demos(tmp_path / "a.hdf5", env={"control_freq": 10}))

    assert dataset[0]["length"] == 21


def test_tasks_are_files(tmp_path: Path) -> None:
    write_demos(tmp_path / "lift.hdf5")
    write_demos(tmp_path / "can" / "ph" / "low_dim_v141.hdf5")

    assert len(RoboMimicDataset(tmp_path, tasks=["lift", "can"])) == 4


@pytest.mark.parametrize("name", ["lift_two_demos.hdf5", "lift/image.hdf5"])
def test_the_only_file_of_a_task_is_used_whatever_its_name(tmp_path: Path, name: str) -> None:
    write_demos(tmp_path / name)
    write_demos(tmp_path / "can.hdf5")

    assert len(RoboMimicDataset(tmp_path, tasks=["lift"])) == 2


def test_a_task_without_a_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="0 files of square"):
        RoboMimicDataset(tmp_path, tasks=["square"])


def test_a_demonstration_of_one_step_is_one_tick(tmp_path: Path) -> None:
    sample = RoboMimicDataset(write_demos(tmp_path / "a.hdf5"))[1]

    assert (sample["length"], sample["proprio"].shape) == (1, (1, 3))


def test_an_observation_of_another_length_is_refused(tmp_path: Path) -> None:
    path = write_demos(tmp_path / "a.hdf5")
    with h5py.File(path, "a") as file:
        file["data/demo_0/obs/short"] = np.zeros((3, 1))

    with pytest.raises(DatasetError, match="demo_0: short: 3 values for 5 steps"):
        RoboMimicDataset(path)[0]


def test_it_can_be_pickled_after_use(tmp_path: Path) -> None:
    import pickle

    dataset = RoboMimicDataset(write_demos(tmp_path / "a.hdf5"))
    before = dataset[0]["fused"]

    assert torch.equal(pickle.loads(pickle.dumps(dataset))[0]["fused"], before)


def test_an_array_that_would_fill_the_memory_is_refused(tmp_path: Path) -> None:
    path = write_demos(tmp_path / "a.hdf5")
    with h5py.File(path, "a") as file:  # takes no space in the file
        file["data/demo_0/obs"].create_dataset("huge", (5, 10**11), "f8", chunks=(1, 1024))

    with pytest.raises(DatasetError, match="demo_0: huge: 4,000,000,000,000 bytes"):
        RoboMimicDataset(path)[0]
