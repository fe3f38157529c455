"""The real lerobot 0.3.3, which reads LeRobot v2.1, with torchcodec."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow.parquet as parquet
import pytest

from robocache_ros.exporter.job import export
from robocache_ros.spec import FusionSpec
from robocache_ros.spec.dataset import DatasetOptions
from test.export.readers.environments import ffmpeg, needs, probe

pytestmark = needs("lerobot21")
ROWS = (0, 20, 70, 100)
KINDS = ("video", "image")
Read = Callable[[str], tuple[Path, dict[str, Any]]]


@pytest.fixture(scope="module")
def read(bags: list[Path], spec: FusionSpec, tmp_path_factory: pytest.TempPathFactory) -> Read:
    """A dataset and what the reader reads of it, by how its images are stored."""
    folder = tmp_path_factory.mktemp("v21")
    known: dict[str, tuple[Path, dict[str, Any]]] = {}

    def load(media: str) -> tuple[Path, dict[str, Any]]:
        if media not in known:
            options = DatasetOptions(formats=("lerobot21",), media=media, task="lift the cube", robot_type="panda")
            out = export(bags, spec, folder / media, options).out
            home = folder / "home"
            known[media] = out, probe("lerobot21", home, out, *ROWS, **ffmpeg("lerobot21", home))
        return known[media]

    return load


def column(dataset: Path, key: str) -> list[Any]:
    files = sorted(dataset.glob("data/*/*.parquet"))
    return [value for file in files for value in parquet.read_table(file, partitioning=None)[key].to_pylist()]


@pytest.mark.parametrize("media", KINDS)
def test_it_opens(read: Read, media: str) -> None:
    dataset, reported = read(media)
    info = json.loads((dataset / "meta/info.json").read_text())
    assert (reported["frames"], reported["episodes"], reported["fps"]) == (
        info["total_frames"],
        info["total_episodes"],
        50,
    )
    assert sorted(reported["cameras"]) == ["observation.images.front", "observation.images.wrist"]


@pytest.mark.parametrize("media", KINDS)
def test_its_values_are_those_that_were_written(read: Read, media: str) -> None:
    dataset, reported = read(media)
    for key in ("observation.state", "action", "robocache.valid", "robocache.stamp_ns", "robocache.tick_ns"):
        written = column(dataset, key)
        for row, item in reported["items"].items():
            assert item[key]["value"] == written[int(row)]
    for item in reported["items"].values():
        assert item["task"] == "lift the cube"
        assert item["annotation.human.action.task_description"]["value"] == 0


def test_its_videos_are_the_frames_of_the_episode(read: Read) -> None:
    dataset, reported = read("video")
    decoded = []
    for file in sorted(dataset.glob("videos/chunk-000/observation.images.front/*.mp4")):
        with av.open(str(file)) as video:
            decoded += [frame.to_ndarray(format="rgb24") for frame in video.decode(video=0)]
    for row, item in reported["items"].items():
        front = item["observation.images.front"]
        assert front["shape"] == [3, 224, 224]
        # float32 pixels in 0..1, and the mean of all of them
        assert front["mean"] == pytest.approx(np.mean(decoded[int(row)] / 255), abs=1e-6)


def test_its_images_are_the_engines(read: Read) -> None:
    exact, lossy = read("image")[1], read("video")[1]
    for row, item in exact["items"].items():
        for key, shape in (("observation.images.front", [3, 224, 224]), ("observation.images.wrist", [3, 120, 160])):
            assert item[key]["shape"] == shape
            assert lossy["items"][row][key]["mean"] == pytest.approx(item[key]["mean"], abs=2 / 255)


def test_it_gives_windows_by_delta_timestamps(read: Read) -> None:
    _, reported = read("video")
    window = reported["windows"]["20"]
    assert window["action"]["shape"] == [3, 7]
    assert window["observation.state"]["value"][1] == reported["items"]["20"]["observation.state"]["value"]
    assert window["observation.images.front"]["shape"] == [2, 3, 224, 224]


def test_it_merges_the_statistics_of_the_episodes(read: Read) -> None:
    dataset, reported = read("video")
    values = np.array(column(dataset, "action"), np.float64)
    stats = reported["stats"]["action"]
    assert stats["max"] == values.max(axis=0).tolist()
    assert stats["mean"] == pytest.approx(values.mean(axis=0).tolist(), abs=1e-9)
    assert stats["std"] == pytest.approx(values.std(axis=0).tolist(), abs=1e-7)
    assert np.shape(reported["stats"]["observation.images.front"]["mean"]) == (3, 1, 1)
