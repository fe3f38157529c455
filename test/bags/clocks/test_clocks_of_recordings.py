"""Recordings whose clocks disagree, from `info` to frames."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from robocache_ros.bags.clocks import Timeline
from robocache_ros.bags.describe import describe
from robocache_ros.bags.fuse import BagRun
from robocache_ros.bags.reader import Bag
from robocache_ros.bags.stats import read_timeline
from robocache_ros.bags.suggest.first_spec import suggest_spec
from robocache_ros.bags.write import write_bag
from robocache_ros.exporter.job import export
from robocache_ros.spec import FusionSpec, load_spec
from test.bags.clocks.conftest import S, TimeOf, looped, simulated, since_boot, wall
from test.bags.conftest import MS, START_NS, numbers, pose

POSE, ARRAY, CLOCK = "geometry_msgs/msg/PoseStamped", "std_msgs/msg/Float64MultiArray", "rosgraph_msgs/msg/Clock"


def clock(time_ns: int) -> bytes:
    return b"\0\1\0\0" + struct.pack("<iI", *divmod(time_ns, S))


def recorded(path: Path, clocks: dict[str, TimeOf], seconds: float = 12, with_clock: TimeOf | None = None) -> Path:
    """Poses at 50 Hz by each clock, of the position that a sine has at that time, and commands at 20 Hz."""
    rng = np.random.default_rng(0)
    messages = []
    for topic, time_of in clocks.items():
        for k in range(round(50 * seconds)):
            log = START_NS + 20 * k * MS
            data = pose(time_of(log), float(np.sin(4 * (log - START_NS) / S)))
            messages.append((topic, log + int(rng.integers(2 * MS, 12 * MS)), data))
    messages += [("/command", START_NS + 50 * k * MS, numbers(k)) for k in range(round(20 * seconds))]
    types = dict.fromkeys(clocks, POSE) | {"/command": ARRAY}
    if with_clock:
        types["/clock"] = CLOCK
        steps = range(START_NS, START_NS + round(seconds * S), 5 * MS)
        messages += [("/clock", log, clock(with_clock(log))) for log in steps]
    return write_bag(path, types, sorted(messages, key=lambda message: message[1]))


def suggested(path: Path) -> FusionSpec:
    return load_spec(yaml.safe_load(suggest_spec(describe(path))))


def run(path: Path, spec: FusionSpec, **options: Any) -> tuple[BagRun, list[Any]]:
    with Bag(path) as bag:
        done = BagRun(bag, spec, **options)
        return done, list(done.frames())


@pytest.mark.parametrize("visibility", ["ideal", "deployed"])
@pytest.mark.parametrize("with_clock", [None, simulated])
def test_a_simulated_recording_exports_with_the_suggested_spec(
    visibility: str, with_clock: TimeOf | None, tmp_path: Path
) -> None:
    path = recorded(tmp_path / "bag", {"/a": simulated, "/b": simulated}, with_clock=with_clock)
    spec = suggested(path)
    assert {stream.stamp for stream in spec.streams if stream.kind == "vector" and stream.topic != "/command"} == {
        "header"
    }

    done, frames = run(path, spec, visibility=visibility)

    valid = np.concatenate([part.valid for part in frames])
    assert (valid == 1).all(axis=1).mean() > 0.98
    assert done.counters[spec.streams[-1].name]["late"] == 0
    ticks = np.concatenate([part.ticks_ns for part in frames])
    assert 10 * S <= ticks[0] < ticks[-1] < 22 * S


def test_late_messages_of_a_simulation_are_late(tmp_path: Path) -> None:
    path = recorded(tmp_path / "bag", {"/a": simulated, "/b": simulated})
    spec = suggested(path)
    tight = load_spec(spec.to_dict() | {"delay_ms": 5})

    done, _ = run(path, tight, visibility="deployed", trim=False)

    late = sum(counts["late"] for counts in done.counters.values())
    # Of delays from 0 to 10 ms, the ticks every 20 ms make those late that are logged more than 5 ms after a tick.
    assert 0.02 < late / sum(counts["received"] for counts in done.counters.values()) < 0.5


def test_a_device_among_wall_clocks_is_translated(tmp_path: Path) -> None:
    path = recorded(tmp_path / "bag", {"/a": wall, "/b": wall, "/lidar": since_boot})
    spec = suggested(path)
    stamps = {stream.topic: stream.stamp for stream in spec.streams}
    assert stamps == {"/a": "header", "/b": "header", "/lidar": "device", "/command": "receive"}

    done, frames = run(path, spec)

    names = [stream.name for stream in spec.vectors]
    lidar, reference = (done.layout.slots[next(n for n in names if n.startswith(who))].start for who in ("lidar", "a_"))
    fused = np.concatenate([part.fused.numpy() for part in frames])[100:]
    difference = np.abs(fused[:, lidar] - fused[:, reference])
    assert difference.max() < 0.02  # of a speed of 4 a second: 2 ms of least delay, and less than 3 ms of error
    by_arrival = load_spec(
        spec.to_dict()
        | {
            "streams": {
                n: s | ({"stamp": "receive"} if s["stamp"] == "device" else {})
                for n, s in spec.to_dict()["streams"].items()
            }
        }
    )
    fused = np.concatenate([part.fused.numpy() for part in run(path, by_arrival)[1]])[100:]
    assert np.abs(fused[:, lidar] - fused[:, reference]).max() > 0.03
    clocks = done.clocks()
    assert clocks["timeline"] == {"source": "log"}
    assert {device["jumps"] for device in clocks["device_clocks"].values()} == {0}
    assert all(abs(device["offset_ns"] - (START_NS - 900 * S)) < 5 * MS for device in clocks["device_clocks"].values())


def test_a_looped_recording_begins_anew_at_each_jump(tmp_path: Path) -> None:
    path = recorded(tmp_path / "bag", {"/a": looped, "/b": looped})

    done, frames = run(path, suggested(path), trim=False)

    ticks = np.concatenate([part.ticks_ns for part in frames])
    assert np.flatnonzero(np.diff(ticks) < 0).tolist() == [250, 500]
    assert (done.stop_ns - done.start_ns) / S == pytest.approx(12, abs=0.1)
    assert (done.valid[30:220] > 0).all()
    assert (done.valid[280:470] > 0).all()


def test_the_timeline_is_the_same_in_every_run_and_for_any_streams(tmp_path: Path) -> None:
    path = recorded(tmp_path / "bag", {"/a": simulated, "/b": simulated})
    with Bag(path) as bag:
        first, second = read_timeline(bag), read_timeline(bag)
    assert first == second
    spec = suggested(path).to_dict()
    command = {name: stream for name, stream in spec["streams"].items() if stream["topic"] == "/command"}
    assert run(path, load_spec(spec | {"streams": command}))[0].timeline == first


def test_stamps_that_are_all_the_same_are_used_by_arrival(tmp_path: Path) -> None:
    path = recorded(tmp_path / "bag", {"/a": wall, "/stuck": lambda log: START_NS})
    assert {s.stamp for s in suggested(path).streams if s.topic == "/stuck"} == {"receive"}


def test_some_unset_stamps_are_used_by_arrival(tmp_path: Path) -> None:
    path = recorded(tmp_path / "bag", {"/a": wall, "/b": lambda log: 0 if log // MS % 100 == 0 else log})
    spec = suggested(path)
    assert {s.stamp for s in spec.streams if s.topic == "/b"} == {"header_or_receive"}
    done, _ = run(path, spec)
    assert done.counters[next(s.name for s in spec.streams if s.topic == "/b")]["by_arrival"] == 120


def test_the_first_messages_suffice_where_the_clocks_agree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = recorded(tmp_path / "bag", {"/a": wall, "/b": wall})
    with Bag(path) as bag:
        given = 0
        messages = bag.messages

        def counted(*args: Any) -> Iterable[Any]:
            nonlocal given
            for message in messages(*args):
                given += 1
                yield message

        monkeypatch.setattr(bag, "messages", counted)
        assert read_timeline(bag) == Timeline()
    assert given < 50


def transform(stamp_ns: int) -> bytes:
    """A tf2_msgs/TFMessage of one transform in CDR."""
    head = struct.pack("<IiII", 1, *divmod(stamp_ns, S), 2) + b"a\0\0\0" + struct.pack("<I", 2) + b"b\0"
    return b"\0\1\0\0" + head + b"\0" * (-len(head) % 8) + struct.pack("<7d", 0, 0, 0, 0, 0, 0, 1)


def test_the_transforms_of_a_simulation_are_on_its_timeline(tmp_path: Path) -> None:
    types = {"/tf": "tf2_msgs/msg/TFMessage", "/tf_static": "tf2_msgs/msg/TFMessage"}
    logs = [START_NS + 20 * k * MS for k in range(200)]
    messages = [("/tf_static", START_NS - k * MS, transform(S)) for k in (2, 1)]
    messages += [("/tf", log + 3 * MS, transform(simulated(log))) for log in logs]
    with Bag(write_bag(tmp_path / "bag", types, messages)) as bag:
        timeline = read_timeline(bag)
    assert timeline.topics == ("/tf",)
    assert abs(timeline.at(logs[100] + 3 * MS) - simulated(logs[100])) < MS


def test_a_dataset_states_its_timeline_and_the_clocks_of_devices(tmp_path: Path) -> None:
    path = recorded(tmp_path / "bag", {"/a": simulated, "/b": simulated, "/lidar": since_boot})

    result = export([path], suggested(path), tmp_path / "out")

    (entry,) = json.loads((tmp_path / "out" / "meta" / "robocache.json").read_text())["recordings"]
    assert entry["timeline"]["source"] == "stamps"
    assert entry["timeline"]["topics"] == ["/a", "/b"]
    assert entry["timeline"]["rate"] == pytest.approx(0.95, abs=1e-4)
    assert all(abs(device["skew_ppm"] + 50_000) < 100 for device in entry["device_clocks"].values())
    notes = [note for note in entry["notes"] if "the timeline follows the header stamps" in note]
    assert len(notes) == 1
    assert notes[0] in (tmp_path / "out" / "report.html").read_text()
    assert result.recordings[0].notes == tuple(entry["notes"])


def test_an_episode_ends_where_the_time_jumps(tmp_path: Path) -> None:
    path = recorded(tmp_path / "bag", {"/a": looped, "/b": looped})

    (recording,) = export([path], suggested(path), tmp_path / "out").recordings

    assert len(recording.episodes) == 3
    for episode in recording.episodes:
        assert (np.diff(recording.ticks_ns[episode.start : episode.stop]) == 20 * MS).all()


TF = "tf2_msgs/msg/TFMessage"


def driven(path: Path, tf_message: Callable[..., bytes], time_of: TimeOf, map_stamp: TimeOf, seconds: int = 16) -> Path:
    """A robot that drives along a sine: its odometry as poses and in /tf, and map -> odom by another node.

    Args:
        path: of the recording.
        tf_message: the fixture.
        time_of: the clock of the odometry, by log time.
        map_stamp: the stamps of map -> odom, by log time.
        seconds: length of the recording.
    """
    messages = []
    for k in range(50 * seconds):
        log = START_NS + 20 * k * MS
        x = float(np.sin(2 * k / 50))
        messages.append(("/odom", log + 2 * MS, pose(time_of(log), x)))
        messages.append(("/tf", log + 3 * MS, tf_message((time_of(log), "odom", "base_link", (x, 0.0, 0.0)))))
        if k % 5 == 1:
            messages.append(
                ("/tf", log + 4 * MS, tf_message((map_stamp(log), "map", "odom", (0.01 * (k % 50), 0.0, 0.0))))
            )
    return write_bag(path, {"/odom": POSE, "/tf": TF}, messages)


def test_a_publisher_that_post_dates_its_transforms_is_no_jump_of_the_clock(
    tmp_path: Path, tf_message: Callable[..., bytes]
) -> None:
    """AMCL stamps map -> odom a second ahead, here in simulated time."""
    path = driven(tmp_path / "bag", tf_message, simulated, lambda log: simulated(log) + S)

    info = describe(path)
    assert not any("jumps" in note for note in info.notes)
    assert any("/tf: map -> odom is stamped 1.0 s ahead" in note for note in info.notes)
    result = export([path], suggested(path), tmp_path / "dataset")
    assert len(result.recordings[0].episodes) == 1
    assert result.frames > 700
    with Bag(path) as bag:
        assert len(read_timeline(bag).segments) == 1
        ticks = np.concatenate([part.ticks_ns for part in BagRun(bag, suggested(path)).frames()])
    assert (np.diff(ticks) > 0).all()


@pytest.mark.parametrize("share", [1, 5])
def test_a_publisher_that_repeats_an_old_transform_is_no_clock_of_its_own(
    share: int, tmp_path: Path, tf_message: Callable[..., bytes]
) -> None:
    """slam_toolbox repeats map -> odom with the stamp of the last scan that it matched."""
    path = driven(tmp_path / "bag", tf_message, wall, lambda log: START_NS + (log - START_NS) // (12 * S) * S * share)

    spec = suggested(path)
    assert {stream.stamp for stream in spec.streams} == {"header"}
    assert "stamp: device" not in " ".join(describe(path).notes)
    done, frames = run(path, spec)
    fused = np.concatenate([part.fused.numpy() for part in frames])
    by_topic, by_tf = (done.layout.slots[name].start for name in ("odom_position", "base_link_pose"))
    np.testing.assert_array_equal(fused[:, by_topic], fused[:, by_tf])


def test_a_topic_that_is_late_with_the_stamps_of_another_one_is_not_on_another_clock(tmp_path: Path) -> None:
    """A detector stamps its results as the images that it got, and takes seven seconds."""
    messages = []
    for k in range(1000):
        log = START_NS + 20 * k * MS
        messages.append(("/camera_pose", log, pose(log, float(np.sin(0.02 * k)))))
        messages.append(("/detection", log + 7 * S, pose(log, float(np.cos(0.02 * k)))))
    path = write_bag(
        tmp_path / "bag", dict.fromkeys(("/camera_pose", "/detection"), POSE), sorted(messages, key=lambda m: m[1])
    )
    spec = suggested(path)

    assert {stream.stamp for stream in spec.streams} == {"header"}
    assert spec.delay_ms < 100
    done, frames = run(path, spec)
    assert not sum(counts["skewed"] for counts in done.counters.values())
    fused, valid = (np.concatenate([getattr(part, of) for part in frames]) for of in ("fused", "valid"))
    rows = fused[(valid > 0).all(axis=1)][:, :2]
    assert len(rows) > 900
    np.testing.assert_allclose((rows**2).sum(axis=1), 1, atol=0.05)  # held for up to a period, 0.02 rad


def test_a_post_dated_transform_does_not_move_those_of_another_publisher_of_the_device(
    tmp_path: Path, tf_message: Callable[..., bytes]
) -> None:
    """A computer whose clock is not synchronised runs odometry and AMCL; AMCL is heard first."""
    path = driven(tmp_path / "bag", tf_message, since_boot, lambda log: since_boot(log) + S)
    streams = {
        "by_topic": {"topic": "/odom", "type": POSE, "field": "pose.position", "stamp": "device", "align": "linear"},
        "by_tf": {"topic": "/tf", "type": TF, "frames": ["odom", "base_link"], "stamp": "device"},
        "wall": {"topic": "/wall", "type": POSE, "field": "pose.position", "align": "linear"},
        "more": {"topic": "/more", "type": POSE, "field": "pose.position", "align": "linear"},
    }
    with Bag(path) as bag:
        messages = [m for m in bag.messages() if m.log_ns >= START_NS + 24 * MS]
    assert messages[0].topic == "/tf"  # map -> odom
    for topic in ("/wall", "/more"):
        messages += [(topic, START_NS + 20 * k * MS, pose(START_NS + 20 * k * MS, k)) for k in range(800)]
    types = {"/odom": POSE, "/tf": TF, "/wall": POSE, "/more": POSE}
    other = write_bag(tmp_path / "other", types, sorted(messages, key=lambda message: message[1]))
    done, frames = run(other, load_spec({"robocache": 1, "delay_ms": 60, "actions": "none", "streams": streams}))
    fused = np.concatenate([part.fused.numpy() for part in frames])[100:]
    by_topic, by_tf = (done.layout.slots[name].start for name in ("by_topic", "by_tf"))

    assert done.timeline == Timeline()
    assert np.abs(fused[:, by_topic] - fused[:, by_tf]).max() < 0.02  # of 2 a second: less than 10 ms
    assert done.counters["by_tf"]["device_jumps"] == 0
