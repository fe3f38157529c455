"""Datasets that others made, and that LeRobot and tensorflow-datasets themselves write, read value by value."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import av
import h5py
import numpy as np
import pyarrow.parquet as parquet
import pytest
from PIL import Image

from robocache_ros.datasets import LeRobotTimelineDataset, RoboMimicDataset, RTXDataset
from robocache_ros.formats.rlds.read import TfdsDataset
from robocache_ros.formats.rlds.tfrecord import parse_example, read_records
from test.export.readers.environments import program, reads

# Datasets that others made. The records of bridge are read by `parse_example`, which test/formats compares with the
# bytes of protobuf.

BRIDGE = "rlds_bridge/bridge_dataset/1.0.0/bridge_dataset-val.tfrecord-00000-of-00001"
LIFT = "robomimic_lift/lift_two_demos.hdf5"
SO101 = "lerobot_v30_so101"


def test_every_value_and_pixel_of_bridge(real):
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
def test_every_value_of_robomimic(real, demo):
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


def test_quaternions_of_robomimic_stay_of_unit_length_between_steps(real):
    dataset = RoboMimicDataset(real / LIFT, obs_keys=["robot0_eef_quat"])
    assert (dataset[0]["proprio"].double().norm(dim=1) - 1).abs().max() < 1e-6  # float32, rounded a few times


@pytest.mark.parametrize("episodes", [1, pytest.param(None, marks=pytest.mark.slow)], ids=["first", "all"])
def test_every_value_and_pixel_of_so101(real, episodes):
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


# Runs the scripts of this folder under the Python of the real writers.


def write(environment: str, script: str, home: Path, *arguments: object, **variables: str) -> Any:
    """Run `<script>/write.py` under an environment; the JSON of the last line of its output, None where it is not JSON.

    `home` is its home and its working folder.
    """
    command = [str(program(environment)), str(Path(__file__).parent / script / "write.py"), *map(str, arguments)]
    around = {"PATH": "/usr/bin:/bin", "HOME": str(home), "OMP_NUM_THREADS": "1", **variables}
    done = subprocess.run(command, capture_output=True, text=True, env=around, cwd=home, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    last = done.stdout.splitlines()[-1:]
    return json.loads(last[0]) if last and last[0].startswith("{") else None


# Datasets that LeRobot itself records, 0.4.4 (v3.0) and 0.3.3 (v2.1), read value by value.

VERSIONS = ("lerobot", "lerobot21")
LENGTHS = (7, 1, 12)
MAX_VIDEO_ERROR = 12  # of 255, of smooth images in AV1 at LeRobot's quality: its mean over an image


class Recorded(NamedTuple):
    folder: Path
    dataset: LeRobotTimelineDataset
    given: dict[str, np.ndarray]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory) -> Callable[[str, str], Recorded]:
    home = tmp_path_factory.mktemp("lerobot")

    @cache
    def get(version: str, media: str) -> Recorded:
        folder, out = home / f"{version}-{media}", home / f"{version}-{media}.npz"
        write(version, "lerobot", home, folder, media, out)
        return Recorded(folder, LeRobotTimelineDataset(folder, target_hz=30), dict(np.load(out)))

    return get


@reads("lerobot", "lerobot21")
@pytest.mark.parametrize("media", ["image", "video"])
@pytest.mark.parametrize("version", VERSIONS)
def test_every_number_and_every_pixel_of_images_is_the_recorded_one(recorded, version, media):
    _, dataset, given = recorded(version, media)
    assert len(dataset) == len(LENGTHS)
    for index, length in enumerate(LENGTHS):
        sample = dataset[index]
        assert sample["length"] == length
        assert np.array_equal(sample["proprio"], given[f"{index}|observation.state"])
        assert np.array_equal(sample["actions"], given[f"{index}|action"])
        assert np.array_equal(sample["rewards"], given[f"{index}|next.reward"][:, 0])
        assert sample["language"] == f"task {index % 2}"
        assert (sample["valid"] == 1).all()
        assert not sample["measured"].any()
        for camera in ("front", "wrist") if media == "image" else ():
            assert np.array_equal(sample[f"vision/{camera}"], given[f"{index}|observation.images.{camera}"]), camera


@reads("lerobot", "lerobot21")
@pytest.mark.parametrize("version", VERSIONS)
def test_every_frame_of_videos_is_that_of_the_file_from_its_start(recorded, version):
    folder, dataset, given = recorded(version, "video")
    for camera in ("front", "wrist"):
        files = sorted(folder.glob(f"videos/**/*images.{camera}/**/*.mp4"))
        frames = np.concatenate([decoded(file) for file in files])  # the episodes follow each other
        samples = np.concatenate([dataset[index][f"vision/{camera}"] for index in range(len(LENGTHS))])
        wanted = np.concatenate([given[f"{index}|observation.images.{camera}"] for index in range(len(LENGTHS))])
        assert np.array_equal(samples, frames)
        error = np.abs(samples.astype(int) - wanted).mean(axis=(1, 2, 3))
        assert error.max() < MAX_VIDEO_ERROR, error


@reads("lerobot", "lerobot21")
def test_the_rate_and_the_stamps_are_those_of_the_dataset(recorded):
    _, dataset, _ = recorded("lerobot", "image")
    stamps = dataset.source.read(0).streams["proprio"].stamps_ns
    assert stamps.tolist() == [k * 10**9 // 30 for k in range(7)]


def decoded(file: Path) -> Any:
    with av.open(str(file)) as container:
        return np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)])


# Datasets that tensorflow-datasets itself writes, read without TensorFlow and compared value by value.

STEPS = (5, 1, 7, 3, 4)
NUMBERS = ("position", "gripper", "half", "matrix")
FEATURES = 12  # of a step, apart from images, texts and sequences
PROPRIO = [f"observation/joints/{name}" for name in NUMBERS]


class Written(NamedTuple):
    folder: Path
    shards: list[int]
    episodes: list[dict[str, np.ndarray]]


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> Written:
    home = tmp_path_factory.mktemp("tfds")
    reported = write("tensorflow", "tensorflow", home, home / "data", home, TF_CPP_MIN_LOG_LEVEL="3")
    episodes = [dict(np.load(home / f"episode-{index}.npz")) for index in range(len(STEPS))]
    return Written(Path(reported["folder"]), reported["shards"], episodes)


def opened(written: Written, split: str = "train") -> RTXDataset:
    return RTXDataset(written.folder, split=split, rate_hz=10, target_hz=10, features={"proprio": PROPRIO})


@reads("tensorflow")
@pytest.mark.parametrize("split", ["train", "val"])  # plain files, and files in gzip
def test_every_number_is_the_written_one(written, split):
    dataset = opened(written, split)
    assert len(dataset) == len(STEPS)
    for index, given in enumerate(written.episodes):
        sample, length = dataset[index], STEPS[index]
        tables = [given[f"given|observation.joints.{name}"].reshape(length, -1) for name in NUMBERS]
        wanted = np.concatenate(tables, axis=1).astype(np.float32)
        assert np.array_equal(sample["proprio"], wanted)
        assert np.array_equal(sample["actions"], given["given|action"])
        assert np.array_equal(sample["rewards"], given["given|reward"])
        assert sample["language"] == "Öffne die Tür, 開けて"


@reads("tensorflow")
def test_every_feature_is_the_one_that_tfds_reads(written):
    records = TfdsDataset(written.folder).episodes("train")
    for index, (record, given) in enumerate(zip(records, written.episodes, strict=True)):
        compared = 0
        for name, values in given.items():
            kind, _, key = name.partition("|")
            found = record.get("steps/" + key.replace(".", "/"))
            if kind == "contacts":
                assert np.array_equal(record["steps/observation/contacts"][int(key)], values)
            elif kind in ("read", "given") and not isinstance(found, list):
                stored = values.astype(np.float32) if values.dtype == np.float64 else values
                assert np.array_equal(np.stack(list(found)), stored), name
                compared += 1
        assert compared == 2 * FEATURES
        assert record["episode_metadata/file_path"] == f"episode_{index}"
        assert bool(record["episode_metadata/success"]) == (index % 2 == 0)


@reads("tensorflow")
def test_every_pixel_is_the_one_that_tfds_reads(written):
    dataset = opened(written)
    for index, given in enumerate(written.episodes):
        sample = dataset[index]
        assert np.array_equal(sample["vision/wrist/png"], given["given|observation.wrist.png"])
        assert np.array_equal(sample["vision/wrist/png"], given["read|observation.wrist.png"])
        assert np.array_equal(sample["vision/jpeg"], given["read|observation.jpeg"])


@reads("tensorflow")
def test_episodes_are_in_several_files(written):
    assert written.shards == [2, 1, 2]
    assert [len(list(written.folder.glob(f"*-{split}.tfrecord*"))) for split in ("train", "val")] == [3, 3]
    assert "tensorflow" not in sys.modules
