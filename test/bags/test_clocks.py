"""Clocks that disagree: the timeline by stamps and log times, and recordings from info to frames."""

import json
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from robocache_ros.bags.clocks import Timeline, Times, jumps, timeline_of
from robocache_ros.bags.describe import describe
from robocache_ros.bags.reader import Bag
from robocache_ros.bags.stats import read_timeline
from robocache_ros.bags.write import write_bag
from robocache_ros.spec import load_spec
from test.bags.conftest import fused, suggested
from test.exporting import export
from test.fuzz.messages import numbers, pose
from test.fuzz.node_inputs import clock
from test.fuzz.recordings import MS, START_NS

S = 1000 * MS


def simulated(log_ns):
    """A simulation at 0.95 of the speed."""
    return 10 * S + (log_ns - START_NS) * 19 // 20


def looped(log_ns):
    """One that is reset every five seconds."""
    return 10 * S + (log_ns - START_NS) % (5 * S)


def paused(log_ns):
    """One that pauses for four seconds, after six."""
    elapsed = log_ns - START_NS
    return 10 * S + (elapsed if elapsed < 6 * S else max(6 * S, elapsed - 4 * S))


def wall(log_ns):
    return log_ns


def since_boot(log_ns):
    return log_ns - START_NS + 900 * S


def times(time_of, seconds=20, rate_hz=50, seed=0, paused_ns=(0, 0)):
    """Messages logged 2 to 12 ms after their stamp; none while the clock pauses."""
    rng = np.random.default_rng(seed)
    logs = START_NS + np.arange(round(seconds * rate_hz)) * (S // rate_hz)
    logs = logs[(logs < START_NS + paused_ns[0]) | (logs >= START_NS + paused_ns[1])]
    stamps = np.array([time_of(log) for log in logs.tolist()], np.int64)
    return Times(logs + rng.integers(2 * MS, 12 * MS, len(logs)), stamps)


def error_ms(timeline, time_of, logs):
    """By how much the timeline is off, where the fastest messages take 2 ms."""
    return np.array([(timeline.at(log + 2 * MS) - time_of(log)) / MS for log in logs])


EVERY = range(START_NS + S, START_NS + 19 * S, 37 * MS)


@pytest.mark.parametrize("time_of", [simulated, since_boot])
def test_offset_and_skew_are_those_of_the_fastest_messages(time_of):
    found = times(time_of)
    timeline = timeline_of({"/a": found, "/b": times(time_of, seed=1)})
    assert (timeline.source, timeline.topics) == ("stamps", ("/a", "/b"))
    assert np.abs(error_ms(timeline, time_of, EVERY)).max() < 1.0
    assert timeline.rate == pytest.approx(0.95 if time_of is simulated else 1.0, abs=1e-4)
    arrivals = timeline_of({"/a": found}).arrivals(found.logs_ns)
    assert ((arrivals - found.stamps_ns) / MS).min() > -1.0  # a bin of 0.1 s has one message of the envelope


def test_the_recorded_clock_is_followed_exactly():
    logs = START_NS + np.arange(2000) * 10 * MS
    recorded = Times(logs, np.array([simulated(log) for log in logs.tolist()], np.int64))
    timeline = timeline_of({"/clock": recorded, "/a": times(simulated)})
    assert timeline.source == "/clock"
    assert timeline.at(START_NS + 1234 * MS) == simulated(START_NS + 1230 * MS)


def test_a_pause_of_the_simulation_is_followed_and_one_of_the_recording_is_not_a_jump():
    assert not len(jumps(times(simulated, seconds=60, paused_ns=(20 * S, 45 * S))))
    timeline = timeline_of({"/a": times(paused, paused_ns=(6 * S, 10 * S))})
    assert len(timeline.segments) == 1
    moving = [log for log in EVERY if not START_NS + 6 * S < log < START_NS + 10 * S]
    assert np.abs(error_ms(timeline, paused, moving)).max() < 2.0
    during = [timeline.at(log) for log in range(START_NS + 6 * S, START_NS + 10 * S, 50 * MS)]
    assert during == sorted(during)
    assert max(during) <= timeline.at(START_NS + 10 * S + 12 * MS)


def test_an_hour_whose_speed_changes_every_second_is_followed():
    rng = np.random.default_rng(0)
    speed = np.clip(1 + 0.1 * np.repeat(rng.normal(size=3600), 20), 0.5, 1.0)
    logs = START_NS + np.arange(len(speed)) * 50 * MS
    true = 10 * S + np.cumsum(speed * 50 * MS).astype(np.int64)
    timeline = timeline_of({"/a": Times(logs + rng.integers(2 * MS, 12 * MS, len(logs)), true)})
    found = np.array([timeline.at(log + 2 * MS) for log in logs[::7].tolist()])
    # A piece is 1.5 s long at least, and the speed changes by 0.1 in between.
    assert np.percentile(np.abs(found - true[::7]) / MS, 99) < 60.0


def test_each_jump_back_begins_a_segment():
    timeline = timeline_of({"/a": times(looped), "/b": times(looped, seed=1)})
    starts = [span.start_ns - START_NS for span in timeline.spans(START_NS, START_NS + 20 * S)]
    assert np.abs(np.array(starts) - 5 * S * np.arange(4)).max() <= 22 * MS
    assert "jumps 3 times" in timeline.note


def test_damaged_stamps_do_not_move_the_timeline():
    damaged = times(simulated)
    damaged.stamps_ns[::97] = 4 * 10**18
    damaged.stamps_ns[50::97] = 1
    timeline = timeline_of({"/a": damaged, "/b": times(simulated, seed=1)})
    assert len(timeline.segments) == 1
    assert np.abs(error_ms(timeline, simulated, EVERY)).max() < 1.0


def test_the_clock_of_most_topics_is_the_timeline():
    sim = {f"/sim_{k}": times(simulated, seed=k) for k in range(3)}
    both = sim | {"/joy": times(wall), "/lidar": times(since_boot)}
    assert timeline_of(both).topics == tuple(sim)
    assert timeline_of({"/sim": sim["/sim_0"], "/joy": both["/joy"]}) == Timeline()
    assert timeline_of(both, devices=tuple(sim)) == Timeline()
    assert timeline_of({"/a": times(wall, 20, 200), "/b": times(since_boot, 0.5)}) == Timeline()  # of few messages
    assert timeline_of({"/clock": times(simulated)}).source == "/clock"
    same = timeline_of({"/a": times(wall), "/b": times(wall, seed=1)})
    assert (same, same.at(START_NS + 5), same.note) == (Timeline(), START_NS + 5, "")


anything = st.lists(
    st.tuples(st.integers(0, 3 * S), st.integers(-1, 2**62) | st.integers(0, 100 * S)), min_size=1, max_size=60
)


@given(anything, anything, st.booleans())
@example([(0, 0)], [(0, 1), (0, S + 2)], False)  # came at once
def test_any_stamps_give_a_timeline(one, other, with_clock):
    def given_times(rows):
        steps, stamps = zip(*rows, strict=True)
        return Times(START_NS + np.cumsum(steps), np.array(stamps, np.int64))

    timeline = timeline_of({"/a": given_times(one), "/clock" if with_clock else "/b": given_times(other)})
    for span in timeline.spans(START_NS, START_NS + 200 * S):
        length = span.stop_ns - span.start_ns - 1
        arrivals = [timeline.at(span.start_ns + length * k // 50) for k in range(51)]
        assert min(arrivals) >= 0
        assert timeline.source == "/clock" or arrivals == sorted(arrivals)


POSE, ARRAY, CLOCK = "geometry_msgs/msg/PoseStamped", "std_msgs/msg/Float64MultiArray", "rosgraph_msgs/msg/Clock"
TF = "tf2_msgs/msg/TFMessage"


def recorded(path, clocks, seconds=12, with_clock=None):
    """Poses at 50 Hz by each clock, of the position that a sine has at that time, and commands at 20 Hz."""
    rng = np.random.default_rng(0)
    messages = []
    for topic, time_of in clocks.items():
        for log in range(START_NS, START_NS + seconds * S, 20 * MS):
            data = pose(time_of(log), float(np.sin(4 * (log - START_NS) / S)))
            messages.append((topic, log + int(rng.integers(2 * MS, 12 * MS)), data))
    messages += [("/command", START_NS + 50 * k * MS, numbers(k)) for k in range(20 * seconds)]
    types = dict.fromkeys(clocks, POSE) | {"/command": ARRAY}
    if with_clock:
        types["/clock"] = CLOCK
        steps = range(START_NS, START_NS + seconds * S, 5 * MS)
        messages += [("/clock", log, clock(*divmod(with_clock(log), S))) for log in steps]
    return write_bag(path, types, sorted(messages, key=lambda message: message[1]))


def stamps_of(spec):
    return {stream.topic: stream.stamp for stream in spec.streams}


@pytest.mark.parametrize("visibility", ["ideal", "deployed"])
@pytest.mark.parametrize("with_clock", [None, simulated])
def test_a_simulated_recording_is_fused_with_the_suggested_spec(visibility, with_clock, tmp_path):
    path = recorded(tmp_path / "bag", {"/a": simulated, "/b": simulated}, with_clock=with_clock)
    spec = suggested(path)
    vectors = [stream for stream in spec.streams if stream.kind == "vector" and stream.topic != "/command"]
    assert {stream.stamp for stream in vectors} == {"header"}
    done, ticks, _, valid = fused(path, spec, visibility=visibility)
    assert (valid == 1).all(axis=1).mean() > 0.98
    assert done.counters[spec.streams[-1].name]["late"] == 0
    assert 10 * S <= ticks[0] < ticks[-1] < 22 * S
    raw = spec.to_dict()
    if not with_clock:  # any streams have this timeline, in every run
        with Bag(path) as bag:
            assert done.timeline == read_timeline(bag) == read_timeline(bag)
        command = {name: stream for name, stream in raw["streams"].items() if stream["topic"] == "/command"}
        assert fused(path, load_spec(raw | {"streams": command})).run.timeline == done.timeline
    # Of delays from 0 to 10 ms, the ticks every 20 ms make those late that are logged more than 5 ms after a tick.
    tight = fused(path, load_spec(raw | {"delay_ms": 5}), visibility="deployed", trim=False).run
    counts = sum(tight.counters.values(), Counter())
    assert 0.02 < counts["late"] / counts["received"] < 0.5


def test_a_device_among_wall_clocks_is_translated(tmp_path):
    path = recorded(tmp_path / "bag", {"/a": wall, "/b": wall, "/lidar": since_boot})
    spec = suggested(path)
    assert stamps_of(spec) == {"/a": "header", "/b": "header", "/lidar": "device", "/command": "receive"}
    done, _, values, _ = fused(path, spec)
    names = [stream.name for stream in spec.vectors]
    lidar, reference = (done.layout.slots[next(n for n in names if n.startswith(who))].start for who in ("lidar", "a_"))
    # Of a speed of 4 a second: 2 ms of least delay, and less than 3 ms of error.
    assert np.abs(values[100:, lidar] - values[100:, reference]).max() < 0.02
    streams = [replace(stream, stamp=stream.stamp.replace("device", "receive")) for stream in spec.streams]
    values = fused(path, replace(spec, streams=tuple(streams))).values[100:]
    assert np.abs(values[:, lidar] - values[:, reference]).max() > 0.03
    clocks = done.clocks()
    assert clocks["timeline"] == {"source": "log"}
    assert {device["jumps"] for device in clocks["device_clocks"].values()} == {0}
    assert all(abs(device["offset_ns"] - (START_NS - 900 * S)) < 5 * MS for device in clocks["device_clocks"].values())


def test_a_looped_recording_begins_anew_at_each_jump_and_so_do_its_episodes(tmp_path):
    path = recorded(tmp_path / "bag", {"/a": looped, "/b": looped})
    spec = suggested(path)
    done, ticks, _, _ = fused(path, spec, trim=False)
    assert np.flatnonzero(np.diff(ticks) < 0).tolist() == [250, 500]
    assert (done.stop_ns - done.start_ns) / S == pytest.approx(12, abs=0.1)
    assert (done.valid[np.r_[30:220, 280:470]] > 0).all()
    (recording,) = export([path], spec, tmp_path / "out").recordings
    assert len(recording.episodes) == 3
    for episode in recording.episodes:
        assert (np.diff(recording.ticks_ns[episode.start : episode.stop]) == 20 * MS).all()


def test_stamps_that_are_unset_or_all_the_same_are_used_by_arrival(tmp_path):
    clocks = {"/a": wall, "/b": lambda log: 0 if log // MS % 100 == 0 else log, "/stuck": lambda log: START_NS}
    path = recorded(tmp_path / "bag", clocks)
    spec = suggested(path)
    expected = {"/a": "header", "/b": "header_or_receive", "/stuck": "receive", "/command": "receive"}
    assert stamps_of(spec) == expected
    done = fused(path, spec).run
    assert done.counters[next(s.name for s in spec.streams if s.topic == "/b")]["by_arrival"] == 120


def test_the_first_messages_suffice_where_the_clocks_agree(tmp_path, monkeypatch):
    path = recorded(tmp_path / "bag", {"/a": wall, "/b": wall})
    given = []
    with Bag(path) as bag:
        messages = bag.messages
        monkeypatch.setattr(bag, "messages", lambda *args: (given.append(m) or m for m in messages(*args)))
        assert read_timeline(bag) == Timeline()
    assert 0 < len(given) < 50


def test_the_transforms_of_a_simulation_are_on_its_timeline(tmp_path, tf_message):
    logs = [START_NS + 20 * k * MS for k in range(200)]
    times = [("/tf_static", START_NS - k * MS, S) for k in (2, 1)]
    times += [("/tf", log + 3 * MS, simulated(log)) for log in logs]
    messages = [(topic, log, tf_message((stamp, "a", "b", (0, 0, 0)))) for topic, log, stamp in times]
    with Bag(write_bag(tmp_path / "bag", {"/tf": TF, "/tf_static": TF}, messages)) as bag:
        timeline = read_timeline(bag)
    assert timeline.topics == ("/tf",)
    assert abs(timeline.at(logs[100] + 3 * MS) - simulated(logs[100])) < MS


def test_a_dataset_states_its_timeline_and_the_clocks_of_devices(tmp_path):
    path = recorded(tmp_path / "bag", {"/a": simulated, "/b": simulated, "/lidar": since_boot})
    result = export([path], suggested(path), tmp_path / "out")
    (entry,) = json.loads((tmp_path / "out" / "meta" / "robocache.json").read_text())["recordings"]
    assert entry["timeline"]["source"] == "stamps"
    assert entry["timeline"]["topics"] == ["/a", "/b"]
    assert entry["timeline"]["rate"] == pytest.approx(0.95, abs=1e-4)
    assert all(abs(device["skew_ppm"] + 50_000) < 100 for device in entry["device_clocks"].values())
    (note,) = (note for note in entry["notes"] if "the timeline follows the header stamps" in note)
    assert note in (tmp_path / "out" / "report.html").read_text()
    assert result.recordings[0].notes == tuple(entry["notes"])


def driven(path, tf_message, time_of, map_stamp, seconds=16):
    """A robot that drives along a sine: its odometry as poses and in /tf, and map -> odom by another node and clock."""
    messages = []
    for k in range(50 * seconds):
        log = START_NS + 20 * k * MS
        x = float(np.sin(2 * k / 50))
        messages.append(("/odom", log + 2 * MS, pose(time_of(log), x)))
        messages.append(("/tf", log + 3 * MS, tf_message((time_of(log), "odom", "base_link", (x, 0.0, 0.0)))))
        if k % 5 == 1:
            at = (0.01 * (k % 50), 0.0, 0.0)
            messages.append(("/tf", log + 4 * MS, tf_message((map_stamp(log), "map", "odom", at))))
    return write_bag(path, {"/odom": POSE, "/tf": TF}, messages)


def test_a_publisher_that_post_dates_its_transforms_is_no_jump_of_the_clock(tmp_path, tf_message):
    """AMCL stamps map -> odom a second ahead, here in simulated time."""
    path = driven(tmp_path / "bag", tf_message, simulated, lambda log: simulated(log) + S)
    notes = "\n".join(describe(path).notes)
    assert "jumps" not in notes
    assert "/tf: map -> odom is stamped 1.0 s ahead" in notes
    result = export([path], suggested(path), tmp_path / "dataset")
    assert len(result.recordings[0].episodes) == 1
    assert result.frames > 700
    with Bag(path) as bag:
        assert len(read_timeline(bag).segments) == 1
    assert (np.diff(fused(path, suggested(path)).ticks_ns) > 0).all()


@pytest.mark.parametrize("share", [1, 5])
def test_a_publisher_that_repeats_an_old_transform_is_no_clock_of_its_own(share, tmp_path, tf_message):
    """slam_toolbox repeats map -> odom with the stamp of the last scan that it matched."""
    path = driven(tmp_path / "bag", tf_message, wall, lambda log: START_NS + (log - START_NS) // (12 * S) * S * share)
    spec = suggested(path)
    assert set(stamps_of(spec).values()) == {"header"}
    assert "stamp: device" not in " ".join(describe(path).notes)
    done, _, values, _ = fused(path, spec)
    by_topic, by_tf = (done.layout.slots[name].start for name in ("odom_position", "base_link_pose"))
    np.testing.assert_array_equal(values[:, by_topic], values[:, by_tf])


def test_a_topic_that_is_late_with_the_stamps_of_another_one_is_not_on_another_clock(tmp_path):
    """A detector stamps its results as the images that it got, and takes seven seconds."""
    logs = [START_NS + 20 * k * MS for k in range(1000)]
    messages = [("/camera_pose", log, pose(log, float(np.sin(0.02 * k)))) for k, log in enumerate(logs)]
    messages += [("/detection", log + 7 * S, pose(log, float(np.cos(0.02 * k)))) for k, log in enumerate(logs)]
    types = {"/camera_pose": POSE, "/detection": POSE}
    path = write_bag(tmp_path / "bag", types, sorted(messages, key=lambda message: message[1]))
    spec = suggested(path)
    assert set(stamps_of(spec).values()) == {"header"}
    assert spec.delay_ms < 100
    done, _, values, valid = fused(path, spec)
    assert not sum(counts["skewed"] for counts in done.counters.values())
    rows = values[(valid > 0).all(axis=1)][:, :2]
    assert len(rows) > 900
    np.testing.assert_allclose((rows**2).sum(axis=1), 1, atol=0.05)  # held for up to a period, 0.02 rad


def test_a_post_dated_transform_does_not_move_those_of_another_publisher_of_the_device(tmp_path, tf_message):
    """A computer whose clock is not synchronised runs odometry and AMCL; AMCL is heard first."""
    path = driven(tmp_path / "bag", tf_message, since_boot, lambda log: since_boot(log) + S)
    position = {"type": POSE, "field": "pose.position", "align": "linear"}
    streams = {
        "by_topic": {"topic": "/odom", "stamp": "device", **position},
        "by_tf": {"topic": "/tf", "type": TF, "frames": ["odom", "base_link"], "stamp": "device"},
        **{name: {"topic": f"/{name}", **position} for name in ("wall", "more")},
    }
    with Bag(path) as bag:
        messages = [m for m in bag.messages() if m.log_ns >= START_NS + 24 * MS]
    assert messages[0].topic == "/tf"  # map -> odom
    times = [START_NS + 20 * k * MS for k in range(800)]
    messages += [(topic, at, pose(at, k)) for topic in ("/wall", "/more") for k, at in enumerate(times)]
    types = {"/tf": TF, **dict.fromkeys(("/odom", "/wall", "/more"), POSE)}
    other = write_bag(tmp_path / "other", types, sorted(messages, key=lambda message: message[1]))
    spec = load_spec({"robocache": 1, "delay_ms": 60, "actions": "none", "streams": streams})
    done, _, values, _ = fused(other, spec)
    by_topic, by_tf = (done.layout.slots[name].start for name in ("by_topic", "by_tf"))
    assert done.timeline == Timeline()
    assert np.abs(values[100:, by_topic] - values[100:, by_tf]).max() < 0.02  # of 2 a second: less than 10 ms
    assert done.counters["by_tf"]["device_jumps"] == 0
