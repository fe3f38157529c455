"""Datasets that others made: every value compared with a reading by other libraries.

The records of bridge are read by `parse_example`, which test/formats compares with the bytes of protobuf.
"""

from __future__ import annotations

import io
from pathlib import Path

import av
import h5py
import numpy as np
import pyarrow.parquet as parquet
import pytest
from PIL import Image

from robocache_ros.datasets import LeRobotTimelineDataset, RoboMimicDataset, RTXDataset
from robocache_ros.formats.rlds.tfrecord import parse_example, read_records

BRIDGE = "rlds_bridge/bridge_dataset/1.0.0/bridge_dataset-val.tfrecord-00000-of-00001"
LIFT = "robomimic_lift/lift_two_demos.hdf5"
SO101 = "lerobot_v30_so101"


def test_every_value_and_pixel_of_bridge(real: Path) -> None:
    dataset = RTXDataset(real / "rlds_bridge", split="val", target_hz=5)
    examples = [parse_example(record) for record in read_records(real / BRIDGE)]
    assert len(dataset) == len(examples) == 25
    names = dataset.stream_names()
    cameras = [name.removeprefix("vision/") for name in names if name.startswith("vision/")]
    compared = 0
    for index, wanted in enumerate(examples):
        sample = dataset[index]
        assert np.array_equal(sample["proprio"], wanted["steps/observation/state"].reshape(-1, 7))
        assert np.array_equal(sample["actions"], wanted["steps/action"].reshape(-1, 7))
        assert sample["language"].encode() == wanted["steps/language_instruction"][0]
        assert (sample["valid"] == 1).all()
        for place, camera in enumerate(cameras):
            images = sample["vision"][:, place] if "vision" in sample else sample[f"vision/{camera}"]
            files = wanted[f"steps/observation/{camera}"]
            assert len(files) == sample["length"]
            for image, file in zip(images, files, strict=True):
                assert np.array_equal(image, np.asarray(Image.open(io.BytesIO(file)).convert("RGB")))
                compared += 1
    assert compared == sum(len(each["steps/language_instruction"]) for each in examples) * len(cameras)


@pytest.mark.parametrize("demo", [0, 1])
def test_every_value_of_robomimic(real: Path, demo: int) -> None:
    dataset = RoboMimicDataset(real / LIFT, obs_modality="image", target_hz=20)
    with h5py.File(real / LIFT) as file:
        group = file[f"data/demo_{demo}"]
        cameras = [name for name in ("agentview_image", "robot0_eye_in_hand_image") if name in group["obs"]]
        images = [group["obs"][camera][()] for camera in cameras]
        vectors = {key: stored[()] for key, stored in group["obs"].items() if stored.ndim == 2}
        actions, rewards = group["actions"][()], group["rewards"][()]
    sample, streams = dataset[demo], dataset.source.read(demo).streams
    named = {name for name, each in streams.items() if each.role == "observation" and not each.is_image}
    assert named == set(vectors)
    assert bool(images) == (demo == 0)  # the other one was recorded without its images
    assert not images or np.array_equal(sample["vision"], np.stack(images, axis=1))
    for name, values in vectors.items():
        assert np.array_equal(streams[name].values, values.astype(np.float32)), name
    assert np.array_equal(sample["proprio"], np.concatenate([vectors[k] for k in sorted(vectors)], 1, dtype=np.float32))
    assert np.array_equal(sample["actions"], actions.astype(np.float32))
    assert np.array_equal(sample["rewards"], rewards.astype(np.float32))


def test_quaternions_of_robomimic_stay_of_unit_length_between_steps(real: Path) -> None:
    dataset = RoboMimicDataset(real / LIFT, obs_keys=["robot0_eef_quat"])
    assert (dataset[0]["proprio"].double().norm(dim=1) - 1).abs().max() < 1e-6  # float32, rounded a few times


@pytest.mark.parametrize("episodes", [1, pytest.param(None, marks=pytest.mark.slow)], ids=["first", "all"])
def test_every_value_and_pixel_of_so101(real: Path, episodes: int | None) -> None:
    dataset = LeRobotTimelineDataset(real / SO101, target_hz=30)
    rows = parquet.read_table(real / SO101 / "data/chunk-000/file-000.parquet").to_pydict()
    owners = np.array(rows["episode_index"])
    with av.open(str(real / SO101 / "videos/observation.images.wrist/chunk-000/file-000.mp4")) as video:
        frames = video.decode(video.streams.video[0])  # all episodes, one after the other
        for index in range(episodes or len(dataset)):
            sample, mine = dataset[index], np.flatnonzero(owners == index)
            for key, name in (("proprio", "observation.state"), ("actions", "action")):
                assert np.array_equal(sample[key], np.array([rows[name][row] for row in mine], np.float32))
            assert len(sample["vision"]) == sample["length"] == len(mine)
            assert sample["language"] == "pick and place"
            for image in sample["vision"][:, 0]:
                assert np.array_equal(image, next(frames).to_ndarray(format="rgb24"))
