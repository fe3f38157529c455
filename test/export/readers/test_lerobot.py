"""The real LeRobot reads what was exported: v3.0 by the newest one, v2.1 by 0.3.3; and what lerobot-doctor says."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import av
import numpy as np
import pyarrow.parquet as parquet
import pytest

from robocache_ros.exporter.datasets import ExportResult
from robocache_ros.formats.lerobot import write
from robocache_ros.spec.dataset import DatasetOptions
from test.export.readers.environments import ffmpeg, needs, probe, program, reads
from test.exporting import export

OPTIONS = DatasetOptions(task="lift the cube", robot_type="panda")
ROWS = (0, 20, 70, 100)
CAMERAS = {"observation.images.front": [3, 224, 224], "observation.images.wrist": [3, 120, 160]}
V3, V21 = (pytest.param(name, marks=needs(name)) for name in ("lerobot", "lerobot21"))


class Read(NamedTuple):
    """A dataset, and what the reader of its version reads of it."""

    result: ExportResult
    reported: dict[str, Any]

    def column(self, key: str) -> list[Any]:
        files = sorted(self.result.out.glob("data/*/*.parquet"))
        return [value for file in files for value in parquet.read_table(file, partitioning=None)[key].to_pylist()]


@pytest.fixture(scope="session")
def read(bags, spec, tmp_path_factory) -> Callable[[str, str], Read]:
    """By the format, and how images are stored."""
    folder = tmp_path_factory.mktemp("hf")

    @cache
    def load(name: str, media: str) -> Read:
        options = replace(OPTIONS, formats=(name,), media=media)
        result = export(bags, spec, folder / f"{name} {media}", options)
        return Read(result, probe(name, folder, result.out, *ROWS, **ffmpeg(name, folder)))

    return load


@pytest.mark.parametrize("media", ["video", "image", "none"])
@pytest.mark.parametrize("name", [V3, V21])
def test_its_frames_are_the_rows_that_were_written_and_delta_timestamps_give_windows(read, name, media):
    dataset = read(name, media)
    result, reported = dataset
    episodes = sum(len(recording.episodes) for recording in result.recordings)
    assert (reported["frames"], reported["episodes"], reported["fps"]) == (result.frames, episodes, 50)
    assert sorted(reported["cameras"]) == ([] if media == "none" else list(CAMERAS))
    assert reported["robot_type"] == "panda"
    for key in ("observation.state", "action", *(f"robocache.{n}" for n in ("valid", "age_ns", "stamp_ns", "tick_ns"))):
        written = dataset.column(key)
        assert [item[key]["value"] for item in reported["items"].values()] == [written[row] for row in ROWS]
    assert {item["task"] for item in reported["items"].values()} == {"lift the cube"}
    lengths = [episode.stop - episode.start for recording in result.recordings for episode in recording.episodes]
    firsts = np.cumsum([0, *lengths])
    for row, item in zip(ROWS, reported["items"].values(), strict=True):
        episode = int(np.searchsorted(firsts, row, side="right")) - 1
        assert item["episode_index"]["value"] == episode
        assert item["frame_index"]["value"] == row - firsts[episode]
        assert item["timestamp"]["value"] == np.float32((row - firsts[episode]) / 50)
    window = reported["windows"]["20"]
    assert (window["action"]["shape"], window["observation.state"]["shape"]) == ([3, 7], [2, 23])
    assert window["observation.state"]["value"][1] == reported["items"]["20"]["observation.state"]["value"]
    if media != "none":
        assert window["observation.images.front"]["shape"] == [2, 3, 224, 224]


@pytest.mark.parametrize("name", [V3, V21])
def test_its_images_are_the_engines(read, name):
    exact, lossy = (read(name, media).reported["items"] for media in ("image", "video"))
    for row, item in exact.items():
        for key, shape in CAMERAS.items():
            assert item[key]["shape"] == lossy[row][key]["shape"] == shape
            # Lossy: FFmpeg's way from YUV back to RGB alone rounds down by 1.3 levels of 255 on average.
            assert lossy[row][key]["mean"] == pytest.approx(item[key]["mean"], abs=2 / 255)


@reads("lerobot21")
def test_videos_and_statistics_of_v21_are_those_of_the_episodes(read):
    dataset = read("lerobot21", "video")
    decoded = []
    for file in sorted(dataset.result.out.glob("videos/chunk-000/observation.images.front/*.mp4")):
        with av.open(str(file)) as video:
            decoded += [frame.to_ndarray(format="rgb24") for frame in video.decode(video=0)]
    for row, item in dataset.reported["items"].items():  # float32 pixels in 0..1, and the mean of all of them
        mean = item["observation.images.front"]["mean"]
        assert mean == pytest.approx(np.mean(decoded[int(row)] / 255), abs=1e-6)
        assert item["annotation.human.action.task_description"]["value"] == 0
    values, stats = np.array(dataset.column("action"), np.float64), dataset.reported["stats"]["action"]
    assert stats["max"] == values.max(axis=0).tolist()
    assert stats["mean"] == pytest.approx(values.mean(axis=0).tolist(), abs=1e-9)
    assert stats["std"] == pytest.approx(values.std(axis=0).tolist(), abs=1e-7)
    assert np.shape(dataset.reported["stats"]["observation.images.front"]["mean"]) == (3, 1, 1)
    assert json.loads((dataset.result.out / "meta/info.json").read_text())["codebase_version"] == "v2.1"


@pytest.mark.parametrize("media", ["video", "image", "none"])
@reads("lerobot-doctor")
def test_the_doctor_finds_no_failure(made, media):
    doctor = program("lerobot-doctor", "lerobot-doctor")
    done = subprocess.run([str(doctor), str(made(media).out)], capture_output=True, text=True, check=False)
    assert re.search(r"Summary: (.*)", done.stdout), done.stdout + done.stderr
    assert "FAIL" not in done.stdout, done.stdout
    for check in ("Metadata & Format Compliance", "Temporal Consistency", "Video Integrity", "Feature Consistency"):
        assert f"[PASS] {check}" in done.stdout, done.stdout


@reads("lerobot")
def test_lerobot_reads_a_dataset_of_several_files_the_same(read, bags, spec, tmp_path, monkeypatch):
    monkeypatch.setattr(write, "DATA_FILE_MB", 0)  # every episode fills a file
    monkeypatch.setattr(write, "VIDEO_FILE_MB", 0)
    result = export(bags, spec, tmp_path / "set", OPTIONS)
    episodes = sum(len(recording.episodes) for recording in result.recordings)
    assert len(list((tmp_path / "set").glob("data/*/*.parquet"))) == episodes
    assert len(list((tmp_path / "set").glob("videos/*/*/*.mp4"))) == 2 * episodes  # two cameras
    home = tmp_path / "home"
    reported = probe("lerobot", home, tmp_path / "set", *ROWS, **ffmpeg("lerobot", home))
    whole = read("lerobot", "video").reported
    assert (reported["items"], reported["windows"]) == (whole["items"], whole["windows"])
