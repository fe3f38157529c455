"""The grid of ticks, the samples of each, and streams that are faster than the ticks."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from robocache_ros.engine import FusionEngine, tick_grid
from robocache_ros.engine.backends import cpu
from robocache_ros.engine.frames import split_window
from robocache_ros.engine.samples import SampleIndex
from robocache_ros.errors import RoboCacheError
from robocache_ros.spec import load_spec
from robocache_ros.spec.layout import Layout
from test.engine.conftest import MS, T0

TOUCH = {"topic": "/touch", "type": "robot_msgs/msg/Touch", "field": "cells", "dim": 2, "align": "window", "samples": 3}


def engine_of(touch=TOUCH, **timeline):
    arm = {"topic": "/arm", "type": "std_msgs/msg/Float32MultiArray", "dim": 1, "align": "hold"}
    return FusionEngine(load_spec({"robocache": 1, **timeline, "streams": {"touch": touch, "arm": arm}}))


def push(engine, *offsets_ms):
    for number, offset in enumerate(offsets_ms):
        stamp = T0 + round(offset * MS)
        engine.push("touch", stamp, stamp, np.array([number, -number], np.float32))


def test_a_tick_has_the_samples_since_the_last_tick():
    engine = engine_of()
    push(engine, 0, 5, 20, 21)
    frames = engine.resolve(np.array([T0 + 20 * MS, T0 + 40 * MS, T0 + 60 * MS]))
    rows = frames.fused[:, :6].view(3, 3, 2)
    assert rows[:, :, 0].tolist() == [[1, 2, 0], [3, 0, 0], [0, 0, 0]]  # the sample at 0 ms belongs to the tick at 0 ms
    assert frames.valid[:, 0].tolist() == [1, 1, 0]
    assert frames.age_ns[:, 0].tolist() == [0, 19 * MS, 0]
    assert frames.sample_age_ms.tolist() == [[15, 0, -1], [19, -1, -1], [-1, -1, -1]]


def test_more_samples_than_a_window_has_are_counted():
    engine = engine_of()
    push(engine, 1, 2, 3, 4, 5)
    frames = engine.resolve(np.array([T0 + 20 * MS]))
    assert frames.fused[0, :6].view(3, 2)[:, 0].tolist() == [2, 3, 4]  # the newest
    assert engine.lost("touch")["window_overflow"] == 2
    assert "window_overflow" not in engine.lost("arm")


@pytest.mark.parametrize(("reduce", "expected"), [("mean", 6), ("rms", 40**0.5), ("min", 4), ("max", 8)])
def test_a_reduced_window_has_one_value_per_column_in_which_empty_slots_do_not_count(reduce, expected):
    engine = engine_of({**TOUCH, "samples": 8, "reduce": reduce})
    for offset_ms, number in ((5, 4), (10, 8)):
        engine.push("touch", T0 + offset_ms * MS, T0 + offset_ms * MS, np.full(2, number, np.float32))
    frames = engine.resolve(np.array([T0 + 20 * MS, T0 + 40 * MS]))
    assert frames.fused[:, :2].tolist() == [[np.float32(expected)] * 2, [0, 0]]
    assert (frames.valid[0, 0], frames.age_ns[0, 0]) == (1, 10 * MS)
    assert frames.rows().shape == (2, Layout(engine.spec).row_width) == (2, 3 + 2 * 2)


def test_a_late_sample_is_in_no_window():
    engine = engine_of(delay_ms=10)
    engine.advance(T0)
    engine.push("touch", T0 + 15 * MS, T0 + 31 * MS, np.ones(2, np.float32))  # the tick at 20 ms was due at 30 ms
    frames = [engine.advance(T0 + at * MS) for at in (31, 51)]
    assert [part.valid[-1, 0] for part in frames] == [0, 0]


def test_a_policy_sees_rows_ages_and_mask_of_a_window():
    engine = engine_of(horizon=2)
    push(engine, 5, 10, 25)
    layout = Layout(engine.spec)
    window = engine.resolve(np.array([T0 + 20 * MS, T0 + 40 * MS])).rows()
    frame = split_window(layout, T0 + 40 * MS, window)
    assert frame["touch"].shape == (2, 3, 2)
    assert frame["touch"][:, :, 0].tolist() == [[0, 1, 0], [2, 0, 0]]
    assert frame.mask("touch").tolist() == [[True, True, False], [True, False, False]]
    assert frame.sample_age_ms["touch"][0].tolist() == [15, 10, -1]
    assert frame["arm"].shape == (2, 1)


def test_the_layout_describes_windows():
    layout = engine_of().layout
    names = [column.name for column in layout.columns]
    assert names[:3] == ["touch.0.0", "touch.0.1", "touch.1.0"]
    assert names[-3:] == ["age_ms:touch.0", "age_ms:touch.1", "age_ms:touch.2"]
    assert len(names) == layout.row_width
    touch = layout.to_dict()["streams"]["touch"]
    assert (touch["columns"], touch["shape"], touch["sample_age_columns"]) == ([0, 6], [3, 2], [11, 14])


@pytest.mark.parametrize("gathered", [1, 1 << 22])
def test_many_ticks_give_the_rows_of_one_tick_at_a_time(gathered, monkeypatch):
    monkeypatch.setattr(cpu, "WINDOW_VALUES", gathered)
    engine = engine_of()
    push(engine, *np.sort(np.random.default_rng(0).uniform(0, 400, 60)))
    ticks = tick_grid.ticks_ns(tick_grid.first_at_or_after(T0, 50), 20, 50)
    one_by_one = torch.cat([engine.resolve(ticks[k : k + 1]).rows() for k in range(20)])
    assert torch.equal(engine.resolve(ticks).rows(), one_by_one)


IMAGE = {"topic": "/i", "type": "sensor_msgs/msg/Image", "align": "window", "samples": 3, "field": None, "dim": None}


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"samples": None}, "samples: missing; give the number of samples"),
        ({"samples": 4096, "dim": 17}, "samples: 4096 of 17 values each; at most 65536"),
        ({"align": "hold"}, "samples: needs a window"),
        ({"align": "hold", "samples": None, "reduce": "max"}, "reduce: needs a window"),
        ({"role": "action"}, "role: an action has one row per tick; add reduce"),
        ({"reduce": "sum"}, "reduce: 'sum' is not one of mean, rms, max, min"),
        (IMAGE, "align: 'window' is for vectors; use hold, nearest or next"),
    ],
)
def test_keys_of_a_window_are_checked(keys, message):
    touch = {key: value for key, value in {**TOUCH, **keys}.items() if value is not None}
    with pytest.raises(RoboCacheError, match=message):
        engine_of(touch)


rates = st.integers(1, 1000)
times = st.integers(0, 4 * 10**18)  # to the year 2096


@given(times, rates)
def test_ticks_are_found_by_time_and_by_number_alone_or_many_at_once(time_ns, rate_hz):
    first, last = tick_grid.first_at_or_after(time_ns, rate_hz), tick_grid.last_at_or_before(time_ns, rate_hz)
    assert tick_grid.tick_ns(first - 1, rate_hz) < time_ns <= tick_grid.tick_ns(first, rate_hz)
    assert tick_grid.tick_ns(last, rate_hz) <= time_ns < tick_grid.tick_ns(last + 1, rate_hz)
    rows, ticks = [0, 0, 3, 10_000_000], tick_grid.ticks_ns(first, 5, rate_hz)
    many = ticks, tick_grid.ticks_before(ticks, rate_hz), tick_grid.ticks_after(first, np.array(rows), rate_hz)
    for found, numbers in zip(many, (range(5), range(-1, 4), rows), strict=True):
        assert found.tolist() == [tick_grid.tick_ns(first + number, rate_hz) for number in numbers]


def test_a_rate_that_does_not_divide_a_second_keeps_whole_seconds():
    ticks = tick_grid.ticks_ns(0, 7, 3)
    assert ticks.dtype == np.int64
    assert ticks.tolist() == [0, 333333333, 666666666, 10**9, 1333333333, 1666666666, 2 * 10**9]


operations = st.lists(
    st.tuples(st.sampled_from(["insert", "insert", "insert", "extend", "prune", "drop", "clear"]), st.integers(0, 30)),
    max_size=60,
)


@given(operations, st.booleans())
def test_a_bounded_index_drops_its_oldest_sample_and_a_growing_one_keeps_all(steps, growing):
    index = SampleIndex(2 if growing else 5, growing=growing)
    model = {}  # stamp -> (arrival, slot)
    for arrival, (what, number) in enumerate(steps):
        assert index.full == (len(model) == index.capacity and not index.growing)
        if what == "insert" and number not in index:
            if index.full:
                del model[min(model)]
            model[number] = (arrival, index.insert(number, arrival))
        elif what == "extend" and index.growing:
            stamps = max(model, default=0) + 1 + np.arange(number)
            slots = index.extend(stamps, np.full(number, arrival)).tolist()
            assert len(set(slots)) == number
            assert not set(slots) & {slot for _, slot in model.values()}
            model.update({stamp: (arrival, slot) for stamp, slot in zip(stamps.tolist(), slots, strict=True)})
        elif what == "prune":
            freed = index.prune(number)
            assert sorted(freed) == sorted(slot for stamp, (_, slot) in model.items() if stamp < number)
            model = {stamp: kept for stamp, kept in model.items() if stamp >= number}
        elif what == "drop" and number < len(index):
            stamp = sorted(model)[number]
            assert index.drop(number) == model.pop(stamp)[1]
        elif what == "clear":
            index.clear()
            model.clear()
            assert index.newest_ns < 0
        assert index.stamps_ns.tolist() == sorted(model)
        assert index.arrivals_ns.tolist() == [model[stamp][0] for stamp in sorted(model)]
        assert index.slots.tolist() == [model[stamp][1] for stamp in sorted(model)]
        assert all(stamp in index for stamp in model)
        assert len({slot for _, slot in model.values()}) == len(model)
