"""Datasets that LeRobot and tensorflow-datasets themselves write, read value by value."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import av
import numpy as np
import pytest

from robocache_ros.datasets import LeRobotTimelineDataset, RTXDataset
from robocache_ros.formats.rlds.read import TfdsDataset
from test.export.readers.environments import program, reads

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
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Recorded]:
    home = tmp_path_factory.mktemp("lerobot")
    made: dict[str, Recorded] = {}

    def get(version: str, media: str) -> Recorded:
        name = f"{version}-{media}"
        if name not in made:
            folder, out = home / name, home / f"{name}.npz"
            write(version, "lerobot", home, folder, media, out)
            made[name] = Recorded(folder, LeRobotTimelineDataset(folder, target_hz=30), dict(np.load(out)))
        return made[name]

    return get


@reads("lerobot", "lerobot21")
@pytest.mark.parametrize("media", ["image", "video"])
@pytest.mark.parametrize("version", VERSIONS)
def test_every_number_is_the_recorded_one(recorded: Callable[..., Recorded], version: str, media: str) -> None:
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


@reads("lerobot", "lerobot21")
@pytest.mark.parametrize("version", VERSIONS)
def test_every_pixel_of_images_is_the_recorded_one(recorded: Callable[..., Recorded], version: str) -> None:
    _, dataset, given = recorded(version, "image")
    for index in range(len(LENGTHS)):
        sample = dataset[index]
        for camera in ("front", "wrist"):
            assert np.array_equal(sample[f"vision/{camera}"], given[f"{index}|observation.images.{camera}"]), camera


@reads("lerobot", "lerobot21")
@pytest.mark.parametrize("version", VERSIONS)
def test_every_frame_of_videos_is_that_of_the_file_from_its_start(
    recorded: Callable[..., Recorded], version: str
) -> None:
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
def test_the_rate_and_the_stamps_are_those_of_the_dataset(recorded: Callable[..., Recorded]) -> None:
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
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    home = tmp_path_factory.mktemp("tfds")
    reported = write("tensorflow", "tensorflow", home, home / "data", home, TF_CPP_MIN_LOG_LEVEL="3")
    episodes = [dict(np.load(home / f"episode-{index}.npz")) for index in range(len(STEPS))]
    return Written(Path(reported["folder"]), reported["shards"], episodes)


def opened(written: Written, split: str = "train") -> RTXDataset:
    return RTXDataset(written.folder, split=split, rate_hz=10, target_hz=10, features={"proprio": PROPRIO})


@reads("tensorflow")
@pytest.mark.parametrize("split", ["train", "val"])  # plain files, and files in gzip
def test_every_number_is_the_written_one(written: Written, split: str) -> None:
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
def test_every_feature_is_the_one_that_tfds_reads(written: Written) -> None:
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
def test_every_pixel_is_the_one_that_tfds_reads(written: Written) -> None:
    dataset = opened(written)
    for index, given in enumerate(written.episodes):
        sample = dataset[index]
        assert np.array_equal(sample["vision/wrist/png"], given["given|observation.wrist.png"])
        assert np.array_equal(sample["vision/wrist/png"], given["read|observation.wrist.png"])
        assert np.array_equal(sample["vision/jpeg"], given["read|observation.jpeg"])


@reads("tensorflow")
def test_episodes_are_in_several_files(written: Written) -> None:
    assert written.shards == [2, 1, 2]
    assert [len(list(written.folder.glob(f"*-{split}.tfrecord*"))) for split in ("train", "val")] == [3, 3]
    assert "tensorflow" not in sys.modules
