"""Recordings that robots and simulators made, from the folder that ROBOCACHE_RECORDINGS names, and files beside it."""

from __future__ import annotations

import json
import os
from collections import Counter
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from robocache_ros.bags.clocks import Timeline
from robocache_ros.bags.reader import Bag, storage_files
from robocache_ros.bags.stats import read_timeline
from robocache_ros.errors import RoboCacheError
from test.bags import conftest

FOLDER = os.environ.get("ROBOCACHE_RECORDINGS")
RECORDINGS = sorted(p.name for p in Path(FOLDER).iterdir() if p.is_dir()) if FOLDER else []
RECORDINGS += [f"ros1_turtlesim/example{kind}.bag" for kind in ("", "-lz4", "-bz2", "-unsorted-chunks")]
RECORDINGS += ["ros1_turtlesim/empty-file.bag", "ros1_turtlesim/no-messages.bag"]
CONFORMANCE = sorted(Path(FOLDER).parent.glob("mcap_conformance/conformance/*/*.mcap")) if FOLDER else []

pytestmark = pytest.mark.skipif(not FOLDER, reason="ROBOCACHE_RECORDINGS names no folder of recordings")

NO_DATA = {  # these and the datasets are refused
    "klintan_db3": "no topic has enough messages",
    "one_shot": "no topic has enough messages",
    "moveit_renamed": "has no topic that can be fused",
    "ros1_turtlesim": "6 ROS 1 bags that are not splits of one recording; give one",
    "ros1_turtlesim/empty-file.bag": "empty; record it again",
    "ros1_turtlesim/no-messages.bag": "has no messages",
    "ros1_turtlesim/example-unsorted-chunks.bag": "has no topic that can be fused",
}


@cache
def suggested(name):
    """The first spec that a user gets, of a recording that is described once."""
    return conftest.suggested(Path(FOLDER or "") / name)


@cache
def fused(name, visibility="ideal"):
    """The ticks of the first spec."""
    return conftest.fused(Path(FOLDER or "") / name, suggested(name), visibility=visibility)


@pytest.mark.parametrize("name", RECORDINGS)
def test_a_recording_gives_a_spec_with_ticks_of_every_stream_or_is_refused_in_one_line(name):
    path = Path(FOLDER or "") / name
    if name in NO_DATA or not (path.is_file() or storage_files(path)):
        with pytest.raises(RoboCacheError, match=NO_DATA.get(name, "not a recording")) as refused:
            suggested(name)
        text = str(refused.value)
        assert text.isprintable()
        assert text.startswith((str(path), "streams"))
        assert len(text) < 188 + max(0, len(str(path)) - 60)
        assert "…" not in text
    else:
        assert 0 < len(suggested(name).streams) <= 30
        assert suggested(name).delay_ms <= 300
        assert (fused(name).valid > 0).all(axis=1).any()


SHIFTED = {  # topics on the timeline, its seconds in one of the log times, and by how much the clocks differ
    "abitobot_sim": (2, 0.9895, 1.7468e9),
    "cougars_auv": (20, 1.0, 515219.9),
    "husky_ur_sim": (8, 1.0, 1.7625e9),
    "nissan_imu": (3, 1.0, 72586745.8),
}


@pytest.mark.parametrize(("name", "expected"), SHIFTED.items())
def test_old_and_simulated_stamps_are_the_timeline_and_few_messages_are_late(name, expected):
    timeline, (topics, rate, offset_s) = fused(name).run.timeline, expected
    assert (timeline.source, len(timeline.segments), len(timeline.topics)) == ("stamps", 1, topics)
    assert timeline.rate == pytest.approx(rate, abs=2e-4)
    assert timeline.offset_ns / 1e9 == pytest.approx(offset_s, rel=1e-4)
    rows = [number for number, stream in enumerate(suggested(name).streams) if stream.stamp == "header"]
    for each in (fused(name), fused(name, "deployed")):
        counts = sum(each.run.counters.values(), Counter())
        assert counts["late"] <= 0.01 * counts["received"]  # `delay_ms` covers 99 % of the messages
        assert (counts["skewed"], counts["unstamped"]) == (0, 0)
        assert each.valid[:, rows].all(axis=1).mean() > 0.98


def test_controller_states_without_a_definition_are_read():
    with Bag(Path(FOLDER or "") / "husky_ur_sim") as bag:
        definition = bag.definitions["control_msgs/msg/JointTrajectoryControllerState"]
        assert "JointTrajectoryPoint feedback" in definition
        assert any("not defined in the recording; read with a known one that fits" in note for note in bag.notes)


@pytest.mark.parametrize("name", ["crazyflie", "stinger_boat", "ros1_kuka_joints", "soccer_split", "crab_custom"])
def test_stamps_by_the_log_s_clock_are_used_as_they_are(name):
    with Bag(Path(FOLDER or "") / name) as bag:
        assert read_timeline(bag) == Timeline()


def test_a_second_of_a_simulation_is_as_long_as_its_velocities_say():
    """The simulation ran at 0.9895 of real time: by arrival, joints are 1 % slower than their measured velocity."""
    found = fused("abitobot_sim")
    slots = (found.run.layout.slots[f"joint_states_{kind}"] for kind in ("position", "velocity"))
    position, velocity = (found.values[:, slot].astype(np.float64) for slot in slots)
    measured = np.gradient(position, found.ticks_ns / 1e9, axis=0)
    assert (measured * velocity).sum() / (velocity**2).sum() == pytest.approx(0.998, abs=0.003)


@pytest.mark.skipif(not CONFORMANCE, reason="no mcap_conformance beside ROBOCACHE_RECORDINGS")
@pytest.mark.parametrize("kind", sorted({file.parent.name for file in CONFORMANCE}))
def test_mcap_s_conformance_files_of_every_layout_are_refused_in_one_true_line(kind):
    """Their messages are not of ROS. The line has their number, which the description beside the file lists."""
    for file in (file for file in CONFORMANCE if file.parent.name == kind):
        records = json.loads(file.with_suffix(".json").read_text(encoding="utf-8"))["records"]
        count = sum(record["type"] == "Message" for record in records)
        with pytest.raises(RoboCacheError) as error:
            Bag(file)
        text = str(error.value)
        assert text.startswith(f"{file}: ")
        assert text.endswith("; give one with ROS messages" if count else "; record it again")
        assert text.isprintable()
        assert (f": {count} messages are not ROS messages (cdr, ros1) but 'a'" in text) == bool(count)
        assert ("has no messages" in text) != bool(count)
