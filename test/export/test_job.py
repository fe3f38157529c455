from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from robocache_ros.errors import RoboCacheError
from robocache_ros.export.job import export
from robocache_ros.export.writer import ExportOptions
from robocache_ros.spec import FusionSpec, ImageSpec

ROOT = Path(__file__).parents[2]


def test_nothing_is_left_when_a_later_recording_fails(bags: list[Path], spec: FusionSpec, tmp_path: Path) -> None:
    with pytest.raises(RoboCacheError, match="no such recording"):
        export([bags[0], tmp_path / "gone"], spec, tmp_path / "out" / "set", ExportOptions(media="video"))
    assert list((tmp_path / "out").iterdir()) == []


def test_nothing_is_left_after_ctrl_c(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "robocache_ros", "export", *[str(ROOT / "test/data/panda_lift")] * 50]
    command += ["--spec", str(ROOT / "config/panda_lift.yaml"), "--out", str(tmp_path / "out" / "set")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT)
    while process.poll() is None and not list(tmp_path.glob("out/.set.partial-*/videos/*/*/*.mp4")):
        time.sleep(0.05)  # until it is in the middle of it
    os.kill(process.pid, signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode != 0
    assert list((tmp_path / "out").iterdir()) == []


def test_an_odd_image_size_is_refused_with_the_way_out(bags: list[Path], spec: FusionSpec, tmp_path: Path) -> None:
    front = replace(spec.stream("front"), image=ImageSpec(size=(101, 100)))
    odd = replace(spec, streams=tuple(front if s.name == "front" else s for s in spec.streams))
    with pytest.raises(RoboCacheError, match=r"observation\.images\.front: 101x100 frames; video needs even sizes"):
        export(bags[:1], odd, tmp_path / "out", ExportOptions(media="video"))


def test_no_recording_is_an_error(spec: FusionSpec, tmp_path: Path) -> None:
    with pytest.raises(RoboCacheError, match="bags: none given"):
        export([], spec, tmp_path / "out")


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"format": "zip"}, "format: 'zip' is not one of lerobot"),
        ({"media": "gif"}, "media: 'gif' is not one of video, image, none"),
        ({"visibility": "all"}, "visibility: 'all' is not one of ideal, deployed"),
        ({"task": " "}, "task: is empty"),
    ],
)
def test_options_are_checked(keys: dict[str, str], said: str) -> None:
    with pytest.raises(RoboCacheError, match=said):
        ExportOptions(**keys)


def test_progress_ends_at_the_whole_of_each_recording(bags: list[Path], spec: FusionSpec, tmp_path: Path) -> None:
    seen: list[tuple[str, float]] = []
    export(
        bags,
        spec,
        tmp_path / "out",
        ExportOptions(media="none"),
        progress=lambda name, share: seen.append((name, share)),
    )
    assert [entry for entry in seen if entry[1] == 1] == [("lift", 1.0), ("again", 1.0)]
    assert all(0 <= share <= 1 for _, share in seen)
