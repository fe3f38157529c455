"""The tick grid is anchored to the epoch, exactly, for every rate and time."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from robocache_ros.engine import tick_grid

rates = st.integers(1, 1000)
times = st.integers(0, 4 * 10**18)  # to the year 2096


@given(times, rates)
def test_the_first_tick_at_or_after_a_time_has_none_before_it(time_ns, rate_hz):
    k = tick_grid.first_at_or_after(time_ns, rate_hz)
    assert tick_grid.tick_ns(k - 1, rate_hz) < time_ns <= tick_grid.tick_ns(k, rate_hz)


@given(times, rates)
def test_the_last_tick_at_or_before_a_time_has_none_after_it(time_ns, rate_hz):
    k = tick_grid.last_at_or_before(time_ns, rate_hz)
    assert tick_grid.tick_ns(k, rate_hz) <= time_ns < tick_grid.tick_ns(k + 1, rate_hz)


@given(times, rates)
def test_many_ticks_at_once_are_those_one_by_one(time_ns, rate_hz):
    k = tick_grid.first_at_or_after(time_ns, rate_hz)
    assert tick_grid.ticks_ns(k, 5, rate_hz).tolist() == [tick_grid.tick_ns(k + i, rate_hz) for i in range(5)]


@given(times, rates)
def test_ticks_of_any_rows_are_those_one_by_one(time_ns, rate_hz):
    k, rows = tick_grid.first_at_or_after(time_ns, rate_hz), np.array([0, 0, 3, 10_000_000])
    assert tick_grid.ticks_after(k, rows, rate_hz).tolist() == [
        tick_grid.tick_ns(k + i, rate_hz) for i in rows.tolist()
    ]


def test_a_rate_that_does_not_divide_a_second_keeps_whole_seconds():
    assert tick_grid.ticks_ns(0, 7, 3).tolist() == [0, 333333333, 666666666, 10**9, 1333333333, 1666666666, 2 * 10**9]
    assert tick_grid.ticks_ns(0, 2, 3).dtype == np.int64
