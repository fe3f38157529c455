"""Recordings that robots and simulators made, from the folder that ROBOCACHE_RECORDINGS names."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from robocache_ros.bags.describe import describe
from robocache_ros.bags.fuse import BagRun
from robocache_ros.bags.reader import Bag, storage_files
from robocache_ros.bags.suggest.first_spec import suggest_spec
from robocache_ros.engine.frames import Frames
from robocache_ros.errors import RoboCacheError
from robocache_ros.spec import load_spec

FOLDER = os.environ.get("ROBOCACHE_RECORDINGS")
RECORDINGS = sorted(p for p in Path(FOLDER).iterdir() if p.is_dir()) if FOLDER else []

pytestmark = pytest.mark.skipif(not FOLDER, reason="ROBOCACHE_RECORDINGS names no folder of recordings")


@pytest.mark.parametrize("recording", RECORDINGS, ids=lambda p: p.name)
def test_a_recording_is_described_or_refused_in_one_line(recording: Path, tmp_path: Path) -> None:
    try:
        described = describe(recording)
        path = tmp_path / "spec.yaml"
        path.write_text(suggest_spec(described), encoding="utf-8")
        assert load_spec(path).streams
    except RoboCacheError as error:
        text = str(error)
        assert text.isprintable()
        assert text.startswith((str(recording), "streams"))
        assert len(text) < 188 + max(0, len(str(recording)) - 60)
        assert "…" not in text


def test_recordings_of_ros_2_are_read() -> None:
    read = [p.name for p in RECORDINGS if storage_files(p)]

    assert {"crazyflie", "stinger_boat", "nissan_imu"} <= set(read)
    for name in ("crazyflie", "stinger_boat", "nissan_imu"):
        assert describe(Path(FOLDER or "") / name).topics


EXPORTED = ("abitobot_sim", "ait_images", "capstan_surgical", "cougars_auv", "crab_custom", "crazyflie", "husky_ur_sim")
EXPORTED += ("nissan_imu", "rerun_allsensors", "ros1_kuka_joints", "ros1_realsense", "soccer_split", "stinger_boat")
EXPORTED += tuple(f"ros1_turtlesim/example{kind}.bag" for kind in ("", "-lz4", "-bz2"))
REFUSED = {
    "klintan_db3": "no topic has enough messages",
    "one_shot": "no topic has enough messages",
    "moveit_renamed": "has no topic that can be fused",
    "ros1_turtlesim": "6 ROS 1 bags that are not the splits of one; give one",
    "ros1_turtlesim/empty-file.bag": "empty; record it again",
    "ros1_turtlesim/no-messages.bag": "holds no messages",
    "ros1_turtlesim/example-unsorted-chunks.bag": "has no topic that can be fused",
}


def frames_of(recording: Path, folder: Path) -> list[Frames]:
    """What the first two commands of a user give."""
    path = folder / "spec.yaml"
    path.write_text(suggest_spec(describe(recording)), encoding="utf-8")
    with Bag(recording) as bag:
        return list(BagRun(bag, load_spec(path)).frames())


@pytest.mark.parametrize("name", EXPORTED)
def test_the_suggested_spec_gives_frames_with_every_stream(name: str, tmp_path: Path) -> None:
    frames = frames_of(Path(FOLDER or "") / name, tmp_path)

    assert sum(len(part) for part in frames)
    assert any((part.valid > 0).all(axis=1).any() for part in frames)


@pytest.mark.parametrize(("name", "why"), REFUSED.items())
def test_a_refusal_tells_what_is_in_the_way(name: str, why: str, tmp_path: Path) -> None:
    with pytest.raises(RoboCacheError, match=why):
        frames_of(Path(FOLDER or "") / name, tmp_path)


def test_the_storages_of_one_ros_1_recording_give_the_same_messages() -> None:
    found = []
    for kind in ("", "-lz4", "-bz2"):
        with Bag(Path(FOLDER or "") / f"ros1_turtlesim/example{kind}.bag") as bag:
            found.append(list(bag.messages()))
            assert bag.notes == []
    assert len(found[0]) == 8647
    assert found[0] == found[1] == found[2]
