"""Streams of poses through the engine, from the bytes of /tf: what they hold, and every problem counted."""

import logging
import math
import re

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import robocache_ros.engine.ingest as ingest_module
from robocache_ros.engine import FusionEngine, Ingest, Outcome
from robocache_ros.engine.transforms import MAX_MOVING_FRAMES
from robocache_ros.spec import load_spec
from test.engine.conftest import MS, at, same_live_as_recorded

TF = {"topic": "/tf", "type": "tf2_msgs/msg/TFMessage"}


def spec(frames=("base", "tool"), more=None, timeline=None, **keys):
    streams = {"ee": {**TF, "frames": list(frames), **keys}, **(more or {})}
    return load_spec({"robocache": 1, "delay_ms": 40, **(timeline or {}), "streams": streams})


def ingest(fusion=None, **options):
    return Ingest(fusion, FusionEngine(fusion, **options)) if fusion else ingest(spec(), **options)


def push(into, data, at_ms, stream="ee"):
    return into.serialized(stream, data, at(at_ms))


def frame(into, at_ms):
    return into.engine.resolve(np.array([at(at_ms)]))


def test_a_pose_is_seven_columns_at_the_tick(tf_message):
    into = ingest(spec(("/base", "tool")))
    push(into, tf_message((at(0), "base", "/arm", (1, 0, 0)), (at(0), "arm", "tool", (0, 1, 0))), 1)
    push(into, tf_message((at(20), "/base", "arm", (2, 0, 0)), (at(20), "/arm", "tool", (0, 1, 0))), 21)

    made = frame(into, 10)

    names = [column.name for column in into.engine.layout.columns[:7]]
    assert names == [f"ee.{name}" for name in ("px", "py", "pz", "qx", "qy", "qz", "qw")]
    assert made.fused[0].tolist() == [1.5, 1, 0, 0, 0, 0, 1]
    assert (made.valid[0, 0], made.age_ns[0, 0]) == (1, 10 * MS)
    assert dict(into.counters["ee"]) == {"received": 2, "decoded": 2, "accepted": 4}


def test_a_message_is_decoded_and_pushed_once_for_all_streams_of_its_topic(tf_message, monkeypatch):
    decoded, read = [], ingest_module.read_transforms
    monkeypatch.setattr(ingest_module, "read_transforms", lambda data: decoded.append(data) or read(data))
    arm = {**TF, "frames": ["base", "arm"]}
    into = ingest(spec(more={"arm": arm, "old": {**arm, "latency_ms": 5}}))
    data = tf_message((at(5), "base", "arm", (1, 0, 0)), (at(5), "arm", "tool", (0, 1, 0)))
    for stream in ("ee", "arm", "old"):
        assert push(into, data, 6, stream) is Outcome.ACCEPTED
    assert len(decoded) == 1
    assert [into.counters[name]["accepted"] for name in ("ee", "arm", "old")] == [2, 1, 1]  # those of its chain
    assert frame(into, 5).valid.tolist() == [[1, 1, 2]]  # the stamps of `old` are 5 ms earlier
    assert push(into, data, 7) is Outcome.DUPLICATE  # the same bytes again are another message


def test_static_transforms_complete_a_chain(tf_message):
    into = ingest()
    into.static_transforms(tf_message((0, "arm", "/tool", (0, 0, 3))))
    push(into, tf_message((at(0), "base", "arm", (1, 0, 0))), 0)
    assert frame(into, 0).fused[0, :3].tolist() == [1, 0, 3]
    push(into, tf_message((at(20), "arm", "tool", (0, 0, 9))), 20)
    assert into.counters["ee"]["static_frame"] == 1
    assert frame(into, 0).fused[0, :3].tolist() == [1, 0, 3]


def test_a_chain_of_static_transforms_only_is_valid_at_every_tick(tf_message):
    into = ingest(spec(timeline={"emit": "eager"}))
    into.static_transforms(tf_message((0, "base", "tool", (0, 0, 3))))
    into.engine.advance(at(0))
    made = into.engine.advance(at(100))
    assert len(made) >= 5
    assert made.valid.all()
    assert not made.age_ns.any()


@pytest.mark.parametrize(
    ("transform", "at_ms", "counter"),
    [
        ((0, "base", "tool", (1, 0, 0)), 0, "unstamped"),
        ((at(0), "base", "tool", (1, 0, 0)), 6000, "skewed"),
        ((at(0), "base", "tool", (math.nan, 0, 0)), 0, "dropped:not_finite"),
        ((at(0), "base", "tool", (0, 0, 0), (math.inf, 0, 0, 0)), 0, "dropped:not_finite"),
        ((at(0), "base", "tool", (1e10, 0, 0)), 0, "dropped:too_far"),
        ((at(0), "base", "tool", (0, 0, 0), (0, 0, 0, 0.9)), 0, "dropped:rotation"),
        ((at(0), "tool", "tool", (0, 0, 0)), 0, "dropped:one_frame"),
        ((at(0), "/", "tool", (0, 0, 0)), 0, "dropped:no_frame"),
    ],
)
def test_a_transform_that_cannot_be_used_is_counted_and_logged(tf_message, caplog, transform, at_ms, counter):
    into = ingest()
    push(into, tf_message(transform), at_ms)
    push(into, tf_message(transform), at_ms)
    assert into.counters["ee"][counter] == 2
    assert len([r for r in caplog.records if r.levelno == logging.WARNING]) == 1
    assert not frame(into, 0).valid.any()


def test_transforms_of_other_frames_are_not_counted(tf_message):
    into = ingest()
    push(into, tf_message((at(0), "base", "tool", (1, 0, 0)), (0, "base", "wheel", (math.nan, 0, 0))), 0)
    assert dict(into.counters["ee"]) == {"received": 1, "decoded": 1, "accepted": 1}


def test_a_stream_by_receive_time_takes_the_arrival_for_the_stamp(tf_message):
    into = ingest(spec(stamp="receive"))
    push(into, tf_message((0, "base", "tool", (1, 0, 0))), 20)
    push(into, tf_message((7 * 10**9, "base", "tool", (3, 0, 0))), 40)
    assert frame(into, 30).fused[0, 0] == 2


def test_stamps_of_another_clock_are_translated(tf_message):
    into = ingest(spec(stamp="device"))
    for ms in range(0, 500, 10):
        push(into, tf_message((10**9 + ms * MS, "base", "tool", (ms, 0, 0))), ms + 3)  # the robot has run for a second
    assert frame(into, 208).valid[0, 0] == 1
    assert frame(into, 208).fused[0, 0] == pytest.approx(205, abs=0.5)  # the least delay is part of the offset
    assert into.counters["ee"]["accepted"] == 50


def test_a_new_parent_is_counted_and_logged_and_ends_the_old_transform(tf_message, caplog):
    into = ingest(spec(("base", "cube"), max_age_ms=15))
    for ms, parent in ((0, "table"), (20, "table"), (40, "gripper")):
        links = ((parent, "cube", (1, 0, 0)), ("base", "table", (0, 1, 0)), ("base", "gripper", (0, 0, 1)))
        push(into, tf_message(*((at(ms), *link) for link in links)), ms)
    assert into.counters["ee"]["reparented"] == 1
    assert "the parent of cube is now gripper, not table" in caplog.text
    ticks = np.array([at(ms) for ms in (10, 30, 38, 40)])
    made = into.engine.resolve(ticks)
    assert made.valid[:, 0].tolist() == [1, 2, 0, 1]
    assert made.fused[[1, 3], :3].tolist() == [[1, 1, 0], [1, 0, 1]]


def test_a_missing_transform_is_logged_once_after_a_second_of_ticks(tf_message, caplog):
    into = ingest()
    push(into, tf_message((at(0), "base", "arm", (1, 0, 0))), 0)
    into.engine.advance(at(0))
    for ms in range(20, 4000, 20):
        push(into, tf_message((at(ms), "base", "arm", (1, 0, 0))), ms)
        into.engine.advance(at(ms))
        assert ("no pose" in caplog.text) == (ms >= 40 + 49 * 20)  # at the 50th tick
    told = re.findall(r"ee: no pose up to the tick of ([\d.]+) s: no transform from tool to base", caplog.text)
    assert [float(tick) for tick in told] == [pytest.approx(at(1000) / 1e9)]
    assert list(into.engine.missing("ee").values()) == [198]


def test_ever_new_frames_are_refused_from_a_limit_on(tf_message, caplog):
    into = ingest()
    for first in range(0, MAX_MOVING_FRAMES + 100, 100):
        push(into, tf_message(*((at(1), "base", f"f{first + k}", (0, 0, 0)) for k in range(100))), 1)
    count = 100 * len(range(0, MAX_MOVING_FRAMES + 100, 100)) - MAX_MOVING_FRAMES
    assert into.counters["ee"]["dropped:frames"] == count
    assert caplog.text.count(f"more than {MAX_MOVING_FRAMES} frames") == 1


def test_frames_that_come_and_go_do_not_use_up_the_limit(tf_message):
    into = ingest()
    into.engine.advance(at(0))
    for k in range(3 * MAX_MOVING_FRAMES // 100):
        ms = 200 * k
        new = [(at(ms), "base", f"tag_{100 * k + i}", (0, 0, 0)) for i in range(100)]
        push(into, tf_message((at(ms), "base", "tool", (1, 0, 0)), *new), ms)
        into.engine.advance(at(ms))
    assert not into.counters["ee"]["dropped:frames"]
    assert frame(into, ms).valid.all()


def test_a_message_that_is_cut_short_is_dropped_for_each_stream(tf_message):
    into = ingest(spec(more={"arm": {**TF, "frames": ["base", "arm"]}}))
    data = tf_message((at(0), "base", "tool", (1, 0, 0)))[:-1]
    for stream in ("ee", "arm"):
        assert push(into, data, 0, stream) is Outcome.DROPPED
        assert into.counters[stream]["dropped:truncated"] == 1


def test_a_jump_of_the_clock_empties_the_tree_and_keeps_static_transforms(tf_message):
    into = ingest()
    into.static_transforms(tf_message((0, "arm", "tool", (0, 0, 3))))
    push(into, tf_message((at(10_000), "base", "arm", (1, 0, 0))), 10_000)
    into.engine.advance(at(10_000))
    push(into, tf_message((at(0), "base", "arm", (2, 0, 0))), 0)
    assert frame(into, 0).fused[0, :3].tolist() == [2, 0, 3]
    assert not frame(into, 10_000).valid.any()


def test_with_on_invalid_hold_the_last_pose_stays_however_old(tf_message):
    into = ingest(spec(on_invalid="hold", max_age_ms=20))
    into.engine.advance(at(0))
    push(into, tf_message((at(10), "base", "tool", (1, 0, 0))), 11)
    for ms in range(1000, 9000, 1000):
        made = into.engine.advance(at(ms))
    assert made.valid[-1, 0] == 2
    assert made.fused[-1, 0] == 1


def test_a_flood_of_transforms_of_one_frame_is_counted_and_takes_bounded_memory(tf_message):
    into = ingest(spec(rate_hz=10))
    for ms in range(2000):
        push(into, tf_message((at(ms), "base", "tool", (ms, 0, 0))), ms)
    assert into.engine.lost("ee")["overrun"] > 1900
    assert frame(into, 1999).fused[0, 0] == 1999


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.binary(max_size=120), st.integers(0, 400), st.booleans())
def test_any_bytes_are_counted_and_never_raise(tf_message, noise, start, whole):
    voxels = {"origin_m": [0, 0, 0], "size_m": 1, "shape": [8, 8, 8], "frame": "base"}
    into = ingest(spec(more={"scan": {"topic": "/scan", "type": "sensor_msgs/msg/PointCloud2", "voxels": voxels}}))
    data = tf_message((at(0), "base", "arm", (1, 0, 0)), (at(0), "arm", "tool", (0, 1, 0)))
    damaged = noise if whole else data[:start] + noise + data[start + len(noise) :]
    for feed in ("ee", "/tf"):
        into.serialized(feed, damaged, at(0))
        into.serialized(feed, data, at(1))
        assert into.counters[feed]["received"] == 2
    into.engine.resolve(np.array([at(0)]))


links = st.lists(
    st.tuples(
        st.integers(0, 40),  # stamp in 10 ms
        st.integers(0, 90),  # delay in ms
        st.lists(
            st.tuples(st.sampled_from(["base", "arm", "other"]), st.sampled_from(["arm", "tool", "other"])),
            min_size=1,
            max_size=3,
        ),
    ),
    max_size=60,
)


# An eager tick that waits for a transform is not made early by a complete later tick.
WAITS = [
    (0, 0, [("base", "arm")]),
    (14, 0, [("arm", "tool")]),
    (15, 0, [("base", "arm")]),
    (25, 11, [("base", "arm")]),  # arrives at 261 ms; the tick at 240 ms waits for transforms until 280 ms
    (26, 0, [("base", "tool")]),  # completes the tick at 260 ms
]


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(links, st.sampled_from(["fixed", "eager"]), st.integers(0, 2**16))
@example(WAITS, "eager", 0)
def test_a_live_engine_makes_the_rows_of_the_deployed_recording(tf_message, drawn, emit, seed):
    rng = np.random.default_rng(seed)
    fusion = spec(timeline={"emit": emit}, more={"back": {**TF, "frames": ["tool", "base"]}}, max_age_ms=30)
    log = []
    for stamp, delay, pairs in drawn:
        poses = []
        for pair in pairs:
            turn = rng.normal(size=4)
            poses.append((at(10 * stamp), *pair, tuple(rng.normal(size=3)), tuple(turn / np.linalg.norm(turn))))
        log.append((at(10 * stamp + delay), tf_message(*poses)))
    log.sort(key=lambda entry: entry[0])
    messages = [(name, arrival, data) for arrival, data in log for name in ("ee", "back")]
    both = ingest(fusion), ingest(fusion, unbounded=True)
    assert len(same_live_as_recorded(*both, messages, at(0) + 1, at(600), at(640), chunk=7)) >= 25


def test_the_gpu_backend_gets_the_bits_of_the_cpu_backend(tf_message, emulated):
    fusion = spec(timeline={"horizon": 3})
    rng = np.random.default_rng(0)
    both = [Ingest(fusion, emulated(fusion)), ingest(fusion)]
    ticks = 0
    for into in both:
        into.engine.advance(at(0))
    for ms in range(5, 2000, 15):
        data = tf_message(*((at(ms), *link, tuple(rng.normal(size=3))) for link in (("base", "arm"), ("arm", "tool"))))
        for into in both:
            push(into, data, ms)
        frames, expected = (into.engine.advance(at(ms)) for into in both)
        ticks += len(frames)
        assert frames.rows().numpy().tobytes() == expected.rows().numpy().tobytes()
    assert ticks > 90
