"""The real LeRobot and lerobot-doctor, each in an environment of its own."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as parquet
import pytest

from robocache_ros.exporter.job import ExportResult, export
from robocache_ros.formats.lerobot import write
from robocache_ros.spec import FusionSpec
from robocache_ros.spec.dataset import DatasetOptions
from test.export.readers.environments import ffmpeg, needs, probe, program

pytestmark = needs("lerobot", "lerobot-doctor")
KINDS = ("video", "image", "none")
ROWS = (0, 20, 70, 100)


@pytest.fixture(scope="session")
def read(
    made: Callable[[str], ExportResult], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], dict[str, Any]]:
    """What LeRobotDataset reads of a dataset."""
    cache = tmp_path_factory.mktemp("hf")
    read: dict[str, dict[str, Any]] = {}

    def load(media: str) -> dict[str, Any]:
        if media not in read:
            read[media] = probe("lerobot", cache, made(media).out, *ROWS, **ffmpeg("lerobot", cache))
        return read[media]

    return load


def table(result: ExportResult) -> dict[str, Any]:
    return parquet.read_table(result.out / "data/chunk-000/file-000.parquet").to_pydict()


@pytest.mark.parametrize("media", KINDS)
def test_lerobot_opens_it(
    made: Callable[[str], ExportResult], read: Callable[[str], dict[str, Any]], media: str
) -> None:
    reported = read(media)
    episodes = sum(len(recording.episodes) for recording in made(media).recordings)
    assert (reported["frames"], reported["episodes"], reported["fps"]) == (made(media).frames, episodes, 50)
    assert reported["robot_type"] == "panda"
    wanted = [] if media == "none" else ["observation.images.front", "observation.images.wrist"]
    assert sorted(reported["cameras"]) == wanted


@pytest.mark.parametrize("media", KINDS)
def test_its_frames_are_the_rows_that_were_written(
    made: Callable[[str], ExportResult], read: Callable[[str], dict[str, Any]], media: str
) -> None:
    rows = table(made(media))
    for index, item in read(media)["items"].items():
        for key in ("observation.state", "action", "robocache.valid", "robocache.age_ns", "robocache.stamp_ns"):
            assert item[key]["value"] == rows[key][int(index)]
        assert item["robocache.tick_ns"]["value"] == rows["robocache.tick_ns"][int(index)]
        assert item["task"] == "lift the cube"


@pytest.mark.parametrize("media", ["video", "image"])
def test_its_images_are_the_engines(read: Callable[[str], dict[str, Any]], media: str) -> None:
    exact = read("image")["items"]
    for index, item in read(media)["items"].items():
        for key, shape in (("observation.images.front", [3, 224, 224]), ("observation.images.wrist", [3, 120, 160])):
            assert item[key]["shape"] == shape
            # Lossy: FFmpeg's way from YUV back to RGB alone rounds down by 1.3 levels of 255 on average.
            loss = 0 if media == "image" else 2 / 255
            assert item[key]["mean"] == pytest.approx(exact[index][key]["mean"], abs=loss)


@pytest.mark.parametrize("media", KINDS)
def test_it_gives_windows_by_delta_timestamps(read: Callable[[str], dict[str, Any]], media: str) -> None:
    reported = read(media)
    window = reported["windows"]["20"]
    assert window["action"]["shape"] == [3, 7]
    assert window["observation.state"]["shape"] == [2, 23]
    assert window["observation.state"]["value"][1] == reported["items"]["20"]["observation.state"]["value"]
    if media != "none":
        assert window["observation.images.front"]["shape"] == [2, 3, 224, 224]


def test_an_episode_starts_its_own_time(
    made: Callable[[str], ExportResult], read: Callable[[str], dict[str, Any]]
) -> None:
    lengths = [episode.stop - episode.start for recording in made("none").recordings for episode in recording.episodes]
    firsts = np.cumsum([0, *lengths])
    for index, item in read("none")["items"].items():
        episode = int(np.searchsorted(firsts, int(index), side="right")) - 1
        assert item["episode_index"]["value"] == episode
        assert item["frame_index"]["value"] == int(index) - firsts[episode]
        assert item["timestamp"]["value"] == np.float32(item["frame_index"]["value"] / 50)


@pytest.mark.parametrize("media", KINDS)
def test_the_doctor_finds_no_failure(made: Callable[[str], ExportResult], media: str) -> None:
    doctor = program("lerobot-doctor", "lerobot-doctor")
    done = subprocess.run([str(doctor), str(made(media).out)], capture_output=True, text=True, check=False)
    summary = re.search(r"Summary: (.*)", done.stdout)
    assert summary, done.stdout + done.stderr
    assert "FAIL" not in done.stdout, done.stdout
    for check in ("Metadata & Format Compliance", "Temporal Consistency", "Video Integrity", "Feature Consistency"):
        assert f"[PASS] {check}" in done.stdout, done.stdout


def test_lerobot_reads_a_dataset_of_several_files_the_same(
    read: Callable[[str], dict[str, Any]],
    bags: list[Path],
    spec: FusionSpec,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(write, "DATA_FILE_MB", 0)  # every episode fills a file
    monkeypatch.setattr(write, "VIDEO_FILE_MB", 0)
    result = export(bags, spec, tmp_path / "set", DatasetOptions(task="lift the cube", robot_type="panda"))
    episodes = sum(len(recording.episodes) for recording in result.recordings)
    assert len(list((tmp_path / "set").glob("data/*/*.parquet"))) == episodes
    assert len(list((tmp_path / "set").glob("videos/*/*/*.mp4"))) == 2 * episodes  # two cameras
    home = tmp_path / "home"
    reported = probe("lerobot", home, tmp_path / "set", *ROWS, **ffmpeg("lerobot", home))
    assert reported["items"] == read("video")["items"]
    assert reported["windows"] == read("video")["windows"]
