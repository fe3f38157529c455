"""robomimic files, and trajectories of one's own in HDF5 files."""

from __future__ import annotations

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
from test.datasets.small import EPISODES, STEPS, robomimic_demo, write_hdf5, write_robomimic


def test_the_rate_is_that_of_the_file(tmp_path: Path) -> None:
    path = write_robomimic(tmp_path, lengths=(5, 1), control_freq=10)
    with h5py.File(path, "a") as file:
        del file["data/demo_1/rewards"]
    first, second = RoboMimicDataset(path)[0], RoboMimicDataset(path)[1]
    assert (first["length"], second["length"]) == (21, 1)
    assert ("rewards" in first, "rewards" in second) == (True, False)


def test_tasks_are_files(tmp_path: Path) -> None:
    for name in ("lift.hdf5", "can/ph/low_dim_v141.hdf5", "square/image.hdf5", "tool_hang_two_demos.hdf5"):
        write_robomimic(tmp_path, lengths=(1, 1), name=name)
    assert len(RoboMimicDataset(tmp_path, tasks=["lift", "can"])) == 4
    for task in ("square", "tool_hang"):  # the only file of a task is used whatever its name is
        assert len(RoboMimicDataset(tmp_path, tasks=[task])) == 2
    with pytest.raises(DatasetError, match="0 files of transport"):
        RoboMimicDataset(tmp_path, tasks=["transport"])


@pytest.mark.parametrize(
    ("shape", "problem"),
    [
        ((3, 1), "demo_0: more: 3 values for 6 steps"),
        ((6, 10**11), "demo_0: more: 4,800,000,000,000 bytes"),  # takes no space in the file
    ],
)
def test_an_observation_of_another_length_or_a_huge_one_is_refused(
    shape: tuple[int, int], problem: str, tmp_path: Path
) -> None:
    path = write_robomimic(tmp_path)
    with h5py.File(path, "a") as file:
        file["data/demo_0/obs"].create_dataset("more", shape, "f8", chunks=(1, min(shape[1], 1024)))
    with pytest.raises(DatasetError, match=problem):
        RoboMimicDataset(path)[0]


LENGTHS = (6, 1, 4, *(1,) * 7, 3)


@pytest.mark.parametrize("compressed", [False, True])
def test_every_value_is_the_written_one(compressed: bool, tmp_path: Path) -> None:
    path = write_robomimic(tmp_path, compressed=compressed, lengths=LENGTHS)
    dataset = RoboMimicDataset(path, obs_modality="image", target_hz=20)
    assert len(dataset) == len(LENGTHS)
    for number, length in enumerate(LENGTHS):  # in the order of the numbers, with columns in that of the alphabet
        sample, demo = dataset[number], robomimic_demo(number, length)
        wanted = np.concatenate([demo["obs/gripper"], demo["obs/state"]], axis=1).astype(np.float32)
        assert np.array_equal(sample["proprio"], wanted)
        assert np.array_equal(sample["actions"], demo["actions"].astype(np.float32))
        assert np.array_equal(sample["rewards"], demo["rewards"].astype(np.float32))
        assert np.array_equal(sample["vision"][:, 0], demo["obs/front_image"])
        assert (sample["valid"] == 1).all()


def test_masks_select_demonstrations_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    masks = {"train": (0, 10, 2), "valid": (1,)}
    path = write_robomimic(tmp_path, lengths=LENGTHS, masks=masks)
    for mask, numbers in masks.items():
        dataset = RoboMimicDataset(path, mask=mask, target_hz=20)
        assert len(dataset) == len(numbers)
        for index, number in enumerate(sorted(numbers)):
            wanted = robomimic_demo(number, LENGTHS[number])["actions"].astype(np.float32)
            assert np.array_equal(dataset[index]["actions"], wanted)
    with pytest.raises(DatasetError, match=r"no test in .*; there are: train, valid"):
        RoboMimicDataset(path, mask="test")


def test_chosen_observations_have_the_order_in_which_they_were_chosen(tmp_path: Path) -> None:
    sample = RoboMimicDataset(write_robomimic(tmp_path), obs_keys=["state", "gripper"], target_hz=20)[0]
    demo = robomimic_demo(0)
    wanted = np.concatenate([demo["obs/state"], demo["obs/gripper"]], axis=1).astype(np.float32)
    assert np.array_equal(sample["proprio"], wanted)


# Trajectories of one's own in HDF5 files.


@pytest.mark.parametrize("storage", [{}, {"compression": "gzip"}], ids=["one piece", "compressed"])
def test_streams_have_the_values_and_stamps_of_the_file(tmp_path: Path, storage: dict[str, Any]) -> None:
    path = write_hdf5(tmp_path, **storage)
    with h5py.File(path, "a") as file:
        file["1"].attrs["task"] = "lift"
        file["1/notes"] = np.arange(3)
        file["1/joints/stamps_ns"][:] = np.arange(STEPS) * 10_000_000  # at another rate than the others
    source = pickle.loads(pickle.dumps(Hdf5Trajectories(path)))
    with h5py.File(path) as file:
        for index in range(EPISODES):
            episode = source.read(index)
            assert list(episode.streams) == ["actions", "vision/front", "joints"]
            for name, stream in episode.streams.items():
                stored = file[f"{index}/{name.rpartition('/')[2]}"]
                assert np.array_equal(stream.values, stored["values"][()])
                assert np.array_equal(stream.stamps_ns, stored["stamps_ns"][()])
    roles = {name: stream.role for name, stream in episode.streams.items()}
    assert (episode.task, roles["actions"], roles["joints"]) == ("lift", "action", "observation")
    assert source.span_ns(0) == (0, (STEPS - 1) * 20_000_000)


def test_trajectories_are_samples_of_a_dataset(tmp_path: Path) -> None:
    sample = TimelineDataset(Hdf5Trajectories(write_hdf5(tmp_path)))[1]
    assert sample["proprio"].shape == sample["actions"].shape == (STEPS, 3)
    assert bool(sample["measured"].all())


def test_stamps_may_be_seconds_and_streams_images(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        file["all/one/front/values"] = np.full((3, 4, 5, 3), 7, np.uint8)
        file["all/one/front/stamps_s"] = np.array([0.0, 0.1, 0.2])
    stream = Hdf5Trajectories(tmp_path / "a.hdf5", group="all").read(0).streams["vision/front"]
    assert stream.stamps_ns.tolist() == [0, 100_000_000, 200_000_000]
    assert stream.is_image


def test_roles_are_chosen_by_name(tmp_path: Path) -> None:
    source = Hdf5Trajectories(write_hdf5(tmp_path), roles={"joints": "action"})
    assert source.read(0).streams["joints"].role == "action"


def test_values_of_a_mapped_file_can_be_changed_without_changing_it(tmp_path: Path) -> None:
    path = write_hdf5(tmp_path)
    before = path.read_bytes()
    Hdf5Trajectories(path).read(0).streams["joints"].values[:] = 5  # type: ignore[index]
    assert path.read_bytes() == before


def test_a_group_without_streams_is_refused_by_its_name(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        file["run_0/joints"] = np.zeros((3, 2))
    with pytest.raises(DatasetError, match="run_0: no group in it has values and stamps_ns"):
        Hdf5Trajectories(tmp_path / "a.hdf5")


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
