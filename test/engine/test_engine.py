"""The engine: what a tick sees, and that a robot and its recording cannot differ."""

import gc
import weakref

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from robocache_ros.alignments import spec_alignments
from robocache_ros.engine import FusionEngine, Ingest, Outcome, tick_grid
from robocache_ros.engine.samples import slots_for
from robocache_ros.spec import load_spec
from test.engine.conftest import MS, T0
from test.fuzz.messages import header, serialize

ARRAY = {"topic": "/a", "type": "std_msgs/msg/Float64MultiArray", "dim": 1, "align": "hold"}
VECTOR = {"topic": "/v", "type": "geometry_msgs/msg/Vector3Stamped", "field": "vector.x"}
STAMPED = {**VECTOR, "max_gap_ms": 50, "max_age_ms": 60}


def spec(delay_ms=20.0, emit="fixed", lead_ms=0.0, **streams):
    timeline = {"rate_hz": 50, "delay_ms": delay_ms, "lead_ms": lead_ms, "emit": emit}
    return load_spec({"robocache": 1, **timeline, "streams": streams})


def value(number):
    return np.array([number], np.float32)


def push(engine, stream, stamp_ms, arrival_ms, number):
    return engine.push(stream, T0 + round(stamp_ms * MS), T0 + round(arrival_ms * MS), value(number))


def advance(engine, now_ms):
    return engine.advance(T0 + round(now_ms * MS))


def test_a_tick_goes_out_at_its_time_plus_the_delay_and_not_before():
    engine = FusionEngine(spec(v=STAMPED))
    assert len(advance(engine, 0)) == 0
    push(engine, "v", 0, 0, 5.0)
    assert len(advance(engine, 19.999)) == 0
    frames = advance(engine, 20)
    assert frames.ticks_ns.tolist() == [T0]
    assert frames.fused.tolist() == [[5.0]]
    assert engine.next_due_ns == T0 + 40 * MS


def test_a_tick_requested_late_sees_only_what_had_arrived_in_time():
    engine = FusionEngine(spec(v=STAMPED))
    advance(engine, 0)
    push(engine, "v", -1, 0, 1.0)
    push(engine, "v", 0, 20.001, 2.0)  # a microsecond after the deadline of its tick
    frames = advance(engine, 45)
    assert frames.fused[:, 0].tolist() == [1.0, 2.0]
    assert frames.age_ns[:, 0].tolist() == [1 * MS, 20 * MS]


def test_a_sample_that_arrives_after_a_tick_is_made_is_not_in_it_even_before_it_goes_out():
    engine = FusionEngine(spec(delay_ms=20, lead_ms=5, v=STAMPED))
    assert len(advance(engine, 0)) == 0
    assert engine.next_due_ns == T0 + 15 * MS
    push(engine, "v", -2, 15, 1.0)
    assert push(engine, "v", 0, 15.001, 2.0) is Outcome.LATE
    frames = advance(engine, 16)  # made before its emission time, 20
    assert frames.ticks_ns.tolist() == [T0]
    assert frames.fused.tolist() == [[1.0]]


def test_an_eager_tick_waits_no_longer_than_the_delay_less_the_lead():
    engine = FusionEngine(spec(delay_ms=20, lead_ms=5, emit="eager", v=STAMPED, w=STAMPED))
    advance(engine, 0)
    push(engine, "v", 0, 1, 1.0)
    assert len(advance(engine, 14.9)) == 0
    assert advance(engine, 15).valid.tolist() == [[1, 0]]


def test_a_late_sample_is_counted_and_serves_the_ticks_to_come():
    engine = FusionEngine(spec(v=STAMPED))
    advance(engine, 0)
    advance(engine, 20)
    assert push(engine, "v", -1, 21, 7.0) is Outcome.LATE
    assert advance(engine, 40).fused.tolist() == [[7.0]]
    assert push(engine, "v", -500, 41, 8.0) is Outcome.LATE


def test_of_two_samples_with_one_stamp_the_first_stays():
    engine = FusionEngine(spec(v=STAMPED))
    advance(engine, 0)
    assert push(engine, "v", 0, 1, 1.0) is Outcome.ACCEPTED
    assert push(engine, "v", 0, 2, 2.0) is Outcome.DUPLICATE
    assert advance(engine, 20).fused.tolist() == [[1.0]]


def test_a_stamp_far_from_its_arrival_is_refused():
    engine = FusionEngine(spec(v={**STAMPED, "max_skew_ms": 100}))
    assert push(engine, "v", 3_600_000, 0, 1.0) is Outcome.SKEWED
    assert push(engine, "v", -100.001, 0, 1.0) is Outcome.SKEWED
    assert push(engine, "v", 100, 0, 1.0) is Outcome.ACCEPTED


@pytest.mark.parametrize(("stamp", "stamp_ns"), [("header", None), ("header", 0), ("device", 0)])
def test_a_stream_by_header_or_device_drops_a_message_without_a_stamp(stamp, stamp_ns):
    engine = FusionEngine(spec(v={**STAMPED, "stamp": stamp}))
    assert engine.push("v", stamp_ns, T0, value(1.0)) is Outcome.UNSTAMPED
    assert engine.advance(T0).valid.tolist() == []


def test_a_stream_by_receive_time_is_stamped_by_its_arrival_less_the_latency():
    engine = FusionEngine(spec(a={**ARRAY, "latency_ms": 5}))
    advance(engine, 0)
    engine.push("a", None, T0 + 5 * MS, value(3.0))
    frames = advance(engine, 20)
    assert frames.fused.tolist() == [[3.0]]
    assert frames.age_ns.tolist() == [[0]]


def test_invalid_values_are_zero_and_marked():
    engine = FusionEngine(spec(v=STAMPED))
    advance(engine, 0)
    push(engine, "v", 0, 0, 9.0)
    frames = advance(engine, 120)
    assert frames.valid[:, 0].tolist() == [1, 2, 2, 2, 0, 0]  # held for 60 ms
    assert frames.fused[:, 0].tolist() == [9.0] * 4 + [0.0] * 2
    assert frames.stamps_ns[:, 0].tolist() == [T0] * 4 + [0] * 2


@pytest.mark.parametrize("align", [*spec_alignments(), "window"])
def test_a_sample_at_exactly_a_tick_is_its_value_with_age_0(align):
    keys = {"type": ARRAY["type"], "topic": "/a", "dim": 4, "align": align, "max_age_ms": 0}
    engine = FusionEngine(spec(a={**keys, **({"samples": 1} if align == "window" else {})}))
    sample = np.array([0.48, 0.6, 0, 0.64], np.float32)
    engine.push("a", T0, T0, sample)  # no sample follows it
    frames = engine.resolve(np.array([T0 - 20 * MS, T0, T0 + 20 * MS]))
    assert frames.valid[:, 0].tolist() == [0, 1, 0]
    assert frames.age_ns[1, 0] == 0
    assert frames.fused[1].numpy().tobytes() == sample.tobytes()


@pytest.mark.parametrize("align", ["linear", "slerp", "angle"])
def test_the_age_of_an_interpolated_value_is_that_of_the_sample_before_it(align):
    keys = {"type": ARRAY["type"], "topic": "/a", "dim": 4, "align": align, "max_gap_ms": 20}
    engine = FusionEngine(spec(a=keys))
    for offset_ms in (1, 21):  # a gap of exactly max_gap_ms
        engine.push("a", T0 + offset_ms * MS, T0 + offset_ms * MS, np.array([0.48, 0.6, 0, 0.64], np.float32))
    frames = engine.resolve(np.array([T0 + 20 * MS]))
    assert (frames.valid[0, 0], frames.age_ns[0, 0]) == (1, 19 * MS)


@pytest.mark.parametrize("sample_first", [False, True])
def test_a_clock_that_jumps_back_drops_all_samples_and_starts_anew(sample_first):
    engine = FusionEngine(spec(v=STAMPED, w=STAMPED))
    advance(engine, 600)
    push(engine, "v", 600, 600, 1.0)
    if sample_first:  # of the new clock, before its first tick is requested
        push(engine, "w", 0, 0, 4.0)
    assert len(advance(engine, 0)) == 0
    frames = advance(engine, 20)
    assert frames.ticks_ns.tolist() == [T0]
    assert (frames.valid.tolist(), frames.fused.tolist()) == ([[0, int(sample_first)]], [[0.0, 4.0 * sample_first]])
    assert not advance(engine, 620).valid[:, 0].any()  # not even at the time that the dropped sample has
    assert engine.clock_jumps == 1


def test_a_clock_that_jumps_ahead_starts_anew_instead_of_making_hours_of_ticks():
    engine = FusionEngine(spec(v=STAMPED))
    advance(engine, 0)
    assert len(advance(engine, 3_600_000)) == 0
    assert engine.clock_jumps == 1


def test_eager_ticks_go_out_once_every_stream_has_a_sample_past_them_and_with_the_delay_at_the_latest():
    engine = FusionEngine(spec(100.0, "eager", v=STAMPED, w=STAMPED))
    advance(engine, 0)
    push(engine, "v", 1, 5, 1.0)
    assert len(advance(engine, 5)) == 0
    push(engine, "w", 0, 8, 2.0)
    assert advance(engine, 8).ticks_ns.tolist() == [T0]
    push(engine, "v", 50, 50, 1.0)
    assert len(advance(engine, 119)) == 0
    assert advance(engine, 120).ticks_ns.tolist() == [T0 + 20 * MS]


def test_a_full_index_drops_first_what_no_tick_can_use():
    timeline = spec(20.0, v={**STAMPED, "rate_hz": 100, "align": "linear"})
    robot, recording = FusionEngine(timeline), FusionEngine(timeline, unbounded=True)
    samples, valid = 3 * slots_for(timeline.streams[0], timeline), []
    for i in range(samples):
        for engine in (robot, recording):
            push(engine, "v", 10 * i + 3, 10 * i + 5, float(i * i))
        frames, expected = advance(robot, 10 * i + 6), advance(recording, 10 * i + 6)
        assert torch.equal(frames.rows(), expected.rows())
        valid += frames.valid.flatten().tolist()
    assert valid.count(1) > samples // 2 - 5
    assert robot.lost("v")["overrun"] == 0


def test_a_full_index_drops_its_oldest_sample_or_a_new_one_that_is_older_and_counts_it():
    engine = FusionEngine(spec(0.0, v={**STAMPED, "rate_hz": 1, "max_skew_ms": 1e6}))
    slots = slots_for(engine.spec.stream("v"), engine.spec)
    for i in range(100):
        push(engine, "v", i / 10, i / 10, 1.0)
    assert engine.lost("v")["overrun"] == 100 - slots
    push(engine, "v", -50, 10, 2.0)
    assert engine.lost("v")["overrun"] == 101 - slots
    advance(engine, 10)
    assert advance(engine, 20).fused.tolist() == [[1.0]]


def test_rows_carry_values_valid_and_age_as_the_layout_names_them():
    engine = FusionEngine(spec(v=STAMPED, a={**ARRAY, "dim": 2}))
    advance(engine, 0)
    push(engine, "v", -7.5, 0, 1.5)
    row = advance(engine, 20).rows()
    names = [column.name for column in engine.layout.columns]
    assert names == ["v.x", "a.0", "a.1", "valid:v", "valid:a", "age_ms:v", "age_ms:a"]
    assert row.tolist() == [[1.5, 0, 0, 2, 0, 7.5, 0]]
    assert row.dtype == torch.float32


samples = st.lists(
    st.tuples(st.sampled_from("vwna"), st.integers(-40, 300), st.integers(0, 120)).map(
        lambda s: (s[0], s[1], s[1] + s[2])
    ),
    max_size=40,
)


@given(samples, st.lists(st.integers(0, 60), max_size=20), st.sampled_from(["fixed", "eager"]), st.integers(0, 100))
def test_live_frames_are_those_of_the_recording_bit_for_bit(sent, steps, emit, delay_ms):
    fusion = spec(delay_ms, emit, v=STAMPED, w={**STAMPED, "align": "nearest"}, n={**STAMPED, "align": "next"}, a=ARRAY)
    sent = sorted(sent, key=lambda s: s[2])
    live, recorded = FusionEngine(fusion), FusionEngine(fusion, unbounded=True)
    for number, (stream, stamp, arrival) in enumerate(sent):
        push(recorded, stream, stamp, arrival, float(number))

    now, frames = -41, [advance(live, -41)]  # before the first arrival
    events = iter([*enumerate(sent)])
    waiting = next(events, None)
    for step in [*steps, 900]:
        now += step
        while waiting and waiting[1][2] <= now:
            number, (stream, stamp, arrival) = waiting
            push(live, stream, stamp, arrival, float(number))
            waiting = next(events, None)
        frames.append(advance(live, now))

    ticks = np.concatenate([f.ticks_ns for f in frames])
    assert ticks.tolist() == tick_grid.ticks_ns(tick_grid.first_at_or_after(T0 - 40 * MS, 50), len(ticks), 50).tolist()
    offline = recorded.resolve(ticks, recorded.deadlines(ticks))
    assert torch.equal(torch.cat([f.rows() for f in frames]), offline.rows())
    assert np.array_equal(np.concatenate([f.age_ns for f in frames]), offline.age_ns)


def test_a_push_to_an_unknown_stream_names_it():
    with pytest.raises(KeyError, match="x"):
        FusionEngine(spec(v=STAMPED)).push("x", T0, T0, value(1.0))


def ingest(**keys):
    fusion = load_spec({"robocache": 1, "streams": {"v": {**VECTOR, **keys}}})
    return Ingest(fusion, FusionEngine(fusion))


def message(stamp_ns):
    """A Vector3Stamped in CDR."""
    return serialize(VECTOR["type"], {"header": header(stamp_ns), "vector": {"x": 1.0, "y": 2.0, "z": 3.0}})


def test_an_unset_stamp_is_counted_as_unstamped_and_the_log_names_the_key_to_set(caplog):
    target = ingest()
    for _ in range(3):
        assert target.serialized("v", message(0), T0) is Outcome.UNSTAMPED
    assert target.counters["v"] == {"received": 3, "decoded": 3, "unstamped": 3}
    assert [r.getMessage() for r in caplog.records] == [
        "v: a message is dropped: its header stamp is not set; set it in the publisher, or set stamp: header_or_receive"
    ]


def test_an_unset_stamp_is_of_no_account_for_a_stream_by_receive_time():
    assert ingest(stamp="receive").serialized("v", message(0), T0) is Outcome.ACCEPTED


@pytest.mark.parametrize(("seconds", "word"), [(3600, "after"), (-3600, "before")])
def test_a_skewed_stamp_is_logged_once_with_its_distance_and_the_way_out(seconds, word, caplog):
    target = ingest()
    for _ in range(3):
        assert target.serialized("v", message(T0 + seconds * 10**9), T0) is Outcome.SKEWED
    assert target.counters["v"]["skewed"] == 3
    (record,) = caplog.records
    assert f"its stamp is 3600.000 s {word} its arrival, more than max_skew_ms allows" in record.getMessage()
    assert "max_age_ms" not in record.getMessage()


def test_an_engine_and_its_buffers_are_freed_without_the_garbage_collector():
    gc.disable()
    try:
        target = ingest()
        target.serialized("v", message(T0), T0)
        target.engine.resolve(np.array([T0]))
        engine = weakref.ref(target.engine)
        del target
        assert engine() is None
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("delay_ms", "row"),
    [
        (12, [7.0, 1, -3.0]),  # the command was sent 3 ms after the tick, and arrived 9 ms later
        (11, [8.0, 1, -8.0]),  # it had not arrived, but the next one had
        (8, [0.0, 0, 0.0]),
    ],
)
def test_next_has_the_first_sample_after_the_tick_that_arrived_within_the_delay(delay_ms, row):
    engine = FusionEngine(spec(delay_ms, v={**STAMPED, "align": "next", "role": "action"}))
    advance(engine, -1)
    for stamp, arrival, number in ((-1, -1, 6.0), (8, 9, 8.0), (3, 12, 7.0)):
        push(engine, "v", stamp, arrival, number)
    frames = advance(engine, delay_ms)
    assert frames.rows().tolist() == [row]
    assert frames.stamps_ns.tolist() == [[T0 - round(row[2] * MS) if row[1] else 0]]


def test_next_holds_the_last_sample_live_where_the_spec_says_so():
    engine = FusionEngine(spec(0, v={**STAMPED, "align": "next", "role": "action", "on_invalid": "hold"}))
    advance(engine, -1)
    push(engine, "v", -5, -4, 6.0)
    assert advance(engine, 100).rows()[-1].tolist() == [6.0, 2, 105.0]
