"""Recordings that robots and simulators made, from the folder that ROBOCACHE_RECORDINGS names."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import yaml

from robocache_ros.bags.clocks import Timeline
from robocache_ros.bags.describe import describe
from robocache_ros.bags.fuse import BagRun
from robocache_ros.bags.reader import Bag, storage_files
from robocache_ros.bags.stats import read_timeline
from robocache_ros.bags.suggest.first_spec import suggest_spec
from robocache_ros.engine.frames import Frames
from robocache_ros.errors import RoboCacheError
from robocache_ros.spec import load_spec
from robocache_ros.spec.layout import Layout

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
    "ros1_turtlesim": "6 ROS 1 bags that are not splits of one recording; give one",
    "ros1_turtlesim/empty-file.bag": "empty; record it again",
    "ros1_turtlesim/no-messages.bag": "has no messages",
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


SHIFTED = {  # topics on the timeline, its seconds in one of the log times, and by how much the clocks differ
    "abitobot_sim": (2, 0.9895, 1.7468e9),
    "cougars_auv": (20, 1.0, 515219.9),
    "husky_ur_sim": (8, 1.0, 1.7625e9),
    "nissan_imu": (3, 1.0, 72586745.8),
}


@pytest.mark.parametrize(("name", "expected"), SHIFTED.items())
def test_old_and_simulated_stamps_are_the_timeline(name: str, expected: tuple[int, float, float]) -> None:
    with Bag(Path(FOLDER or "") / name) as bag:
        timeline = read_timeline(bag)

    topics, rate, offset_s = expected
    assert (timeline.source, len(timeline.segments), len(timeline.topics)) == ("stamps", 1, topics)
    assert timeline.rate == pytest.approx(rate, abs=2e-4)
    assert timeline.offset_ns / 1e9 == pytest.approx(offset_s, rel=1e-4)


def test_controller_states_without_a_definition_are_read() -> None:
    with Bag(Path(FOLDER or "") / "husky_ur_sim") as bag:
        definition = bag.definitions["control_msgs/msg/JointTrajectoryControllerState"]
        assert "JointTrajectoryPoint feedback" in definition
        assert any("not defined in the recording; read with a known one that fits" in note for note in bag.notes)


@pytest.mark.parametrize("name", ["crazyflie", "stinger_boat", "ros1_kuka_joints", "soccer_split", "crab_custom"])
def test_stamps_by_the_log_s_clock_are_used_as_they_are(name: str) -> None:
    with Bag(Path(FOLDER or "") / name) as bag:
        assert read_timeline(bag) == Timeline()


@pytest.mark.parametrize("name", SHIFTED)
@pytest.mark.parametrize("visibility", ["ideal", "deployed"])
def test_few_messages_of_a_simulated_or_old_recording_are_late_and_none_is_skewed(name: str, visibility: str) -> None:
    path = Path(FOLDER or "") / name
    with Bag(path) as bag:
        run = BagRun(bag, load_spec(yaml.safe_load(suggest_spec(describe(path)))), visibility=visibility)
        frames = list(run.frames())

    counts = sum(run.counters.values(), Counter())
    assert counts["late"] <= 0.01 * counts["received"]  # `delay_ms` covers 99 % of the messages
    assert (counts["skewed"], counts["unstamped"]) == (0, 0)
    rows = [number for number, stream in enumerate(run.spec.streams) if stream.stamp == "header"]
    assert np.concatenate([part.valid for part in frames])[:, rows].all(axis=1).mean() > 0.98


def test_a_second_of_a_simulation_is_as_long_as_its_velocities_say(tmp_path: Path) -> None:
    """The simulation ran at 0.9895 of real time: by arrival, joints are 1 % slower than their measured velocity."""
    frames = frames_of(Path(FOLDER or "") / "abitobot_sim", tmp_path)
    layout = Layout(load_spec(tmp_path / "spec.yaml"))

    fused = np.concatenate([part.fused.numpy() for part in frames]).astype(np.float64)
    seconds = np.concatenate([part.ticks_ns for part in frames]) / 1e9
    position, velocity = (fused[:, layout.slots[f"joint_states_{kind}"]] for kind in ("position", "velocity"))
    measured = np.gradient(position, seconds, axis=0)
    assert (measured * velocity).sum() / (velocity**2).sum() == pytest.approx(0.998, abs=0.003)
