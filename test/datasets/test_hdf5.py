"""robomimic files, and trajectories of one's own in HDF5 files."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from robocache_ros.datasets import (
    DatasetError,
    Hdf5Trajectories,
    RoboMimicDataset,
    TimelineDataset,
    TimelineLoader,
    Window,
)

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


def test_images_are_those_of_the_real_file(real: Path) -> None:
    dataset = RoboMimicDataset(real / LIFT, obs_modality="image", target_hz=20)
    with h5py.File(real / LIFT) as file:
        obs = file["data/demo_0/obs"]
        wanted = np.stack([obs["agentview_image"][()], obs["robot0_eye_in_hand_image"][()]], axis=1)
    assert np.array_equal(dataset[0]["vision"], wanted)


def test_quaternions_stay_of_unit_length(real: Path) -> None:
    dataset = RoboMimicDataset(real / LIFT, obs_keys=["robot0_eef_quat"])
    assert (dataset[0]["proprio"].double().norm(dim=1) - 1).abs().max() < 1e-6  # float32, rounded a few times


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


def test_an_array_that_would_fill_the_memory_is_refused(tmp_path: Path) -> None:
    path = write_demos(tmp_path / "a.hdf5")
    with h5py.File(path, "a") as file:  # takes no space in the file
        file["data/demo_0/obs"].create_dataset("huge", (5, 10**11), "f8", chunks=(1, 1024))
    with pytest.raises(DatasetError, match="demo_0: huge: 4,000,000,000,000 bytes"):
        RoboMimicDataset(path)[0]


# Files written with h5py as robomimic's scripts write them, read value by value.

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


# Trajectories of one's own in HDF5 files.


def write_trajectories(path: Path, count: int = 3, **storage: Any) -> Path:
    """Write trajectories of joints at 100 Hz and actions at 20 Hz."""
    random = np.random.default_rng(0)
    with h5py.File(path, "w") as file:
        for number in range(count):
            group = file.create_group(f"run_{number}")
            group.attrs["task"] = f"task {number}"
            for name, rate, width in (("joints", 100, 3), ("actions", 20, 2)):
                stamps = (np.arange(rate) * (10**9 / rate)).astype(np.int64)
                values = random.standard_normal((rate, width)).astype(np.float32)
                group.create_dataset(f"{name}/values", data=values, **storage)
                group.create_dataset(f"{name}/stamps_ns", data=stamps)
            group.create_dataset("notes", data=np.arange(3))
    return path


@pytest.mark.parametrize("storage", [{}, {"chunks": (10, 1), "compression": "gzip"}], ids=["one piece", "compressed"])
def test_streams_have_the_values_and_stamps_of_the_file(tmp_path: Path, storage: dict[str, Any]) -> None:
    source = pickle.loads(pickle.dumps(Hdf5Trajectories(write_trajectories(tmp_path / "runs.hdf5", **storage))))
    with h5py.File(tmp_path / "runs.hdf5") as file:
        for index in range(3):
            episode = source.read(index)
            assert list(episode.streams) == ["actions", "joints"]
            for name, stream in episode.streams.items():
                assert np.array_equal(stream.values, file[f"run_{index}/{name}/values"][()])
                assert np.array_equal(stream.stamps_ns, file[f"run_{index}/{name}/stamps_ns"][()])
    assert (episode.task, episode.streams["actions"].role, episode.streams["joints"].role) == (
        "task 2",
        "action",
        "observation",
    )
    assert source.span_ns(0) == (0, 990_000_000)


def test_trajectories_are_samples_of_a_dataset(tmp_path: Path) -> None:
    sample = TimelineDataset(Hdf5Trajectories(write_trajectories(tmp_path / "runs.hdf5")))[1]
    assert sample["proprio"].shape == (50, 3)
    assert sample["actions"].shape == (50, 2)
    assert bool(sample["measured"].all())


def test_stamps_may_be_seconds_and_streams_images(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        file["all/one/front/values"] = np.full((3, 4, 5, 3), 7, np.uint8)
        file["all/one/front/stamps_s"] = np.array([0.0, 0.1, 0.2])
    stream = Hdf5Trajectories(tmp_path / "a.hdf5", group="all").read(0).streams["vision/front"]
    assert stream.stamps_ns.tolist() == [0, 100_000_000, 200_000_000]
    assert stream.is_image


def test_roles_are_chosen_by_name(tmp_path: Path) -> None:
    source = Hdf5Trajectories(write_trajectories(tmp_path / "runs.hdf5"), roles={"joints": "action"})
    assert {stream.role for stream in source.read(0).streams.values()} == {"action"}


def test_values_of_a_mapped_file_can_be_changed_without_changing_it(tmp_path: Path) -> None:
    source = Hdf5Trajectories(write_trajectories(tmp_path / "runs.hdf5"))
    before = (tmp_path / "runs.hdf5").read_bytes()
    source.read(0).streams["joints"].values[:] = 5  # type: ignore[index]
    assert (tmp_path / "runs.hdf5").read_bytes() == before


def test_a_group_without_streams_is_refused_by_its_name(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        file["run_0/joints"] = np.zeros((3, 2))
    with pytest.raises(DatasetError, match="run_0: no group in it has values and stamps_ns"):
        Hdf5Trajectories(tmp_path / "a.hdf5")


def test_a_file_that_was_cut_is_refused(tmp_path: Path) -> None:
    path = write_trajectories(tmp_path / "runs.hdf5")
    path.write_bytes(path.read_bytes()[:3000])
    with pytest.raises(DatasetError, match="get the file again"):
        Hdf5Trajectories(path).read(2)


def test_windows_of_an_empty_trajectory_are_refused_and_the_others_read(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "own.hdf5", "w") as file:
        for name, steps in (("empty", 0), ("one", 3)):
            file[f"{name}/state/values"] = np.zeros((steps, 2), np.float32)
            file[f"{name}/state/stamps_ns"] = np.arange(steps) * 20_000_000
    dataset = TimelineDataset(Hdf5Trajectories(tmp_path / "own.hdf5"), window=Window())
    with pytest.raises(DatasetError, match="empty: 0 steps; leave the episode out"):
        len(dataset)
    loader = TimelineLoader(dataset, 3, on_error="skip")
    assert [batch["index"].tolist() for batch in loader] == [[0, 1, 2]]
