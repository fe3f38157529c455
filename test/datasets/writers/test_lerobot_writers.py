"""Datasets that LeRobot itself records, 0.4.4 (v3.0) and 0.3.3 (v2.1), read value by value."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import av
import numpy as np
import pytest

from robocache_ros.datasets import LeRobotTimelineDataset
from test.datasets.writers.writing import write
from test.export.readers.environments import needs

pytestmark = needs("lerobot", "lerobot21")
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


@pytest.mark.parametrize("version", VERSIONS)
def test_every_pixel_of_images_is_the_recorded_one(recorded: Callable[..., Recorded], version: str) -> None:
    _, dataset, given = recorded(version, "image")

    for index in range(len(LENGTHS)):
        sample = dataset[index]
        for camera in ("front", "wrist"):
            assert np.array_equal(sample[f"vision/{camera}"], given[f"{index}|observation.images.{camera}"]), camera


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


def test_the_rate_and_the_stamps_are_those_of_the_dataset(recorded: Callable[..., Recorded]) -> None:
    _, dataset, _ = recorded("lerobot", "image")

    stamps = dataset.source.read(0).streams["proprio"].stamps_ns

    assert stamps.tolist() == [k * 10**9 // 30 for k in range(7)]


def decoded(file: Path) -> Any:
    with av.open(str(file)) as container:
        return np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)])
