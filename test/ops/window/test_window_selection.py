"""Which samples a window has: cases worked out by hand, and every selection against the oracle."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from robocache_ros.ops.window import select_window
from test.ops.window import oracle

STAMPS = np.array([100, 110, 120, 130, 140], np.int64)


def selected(start, tick, samples=3, **seen):
    found = select_window(STAMPS, np.array([start]), np.array([tick]), samples, **seen)
    return found.rows[0].tolist(), found.age_ns[0].tolist(), found.dropped


@pytest.mark.parametrize(
    ("start", "tick", "expected"),
    [
        (100, 120, ([1, 2, -1], [10, 0, -1], 0)),  # a sample on the last tick is not in the window, one on this tick is
        (99, 120, ([0, 1, 2], [20, 10, 0], 0)),
        (99, 139, ([1, 2, 3], [29, 19, 9], 1)),  # four samples: the oldest is dropped
        (0, 99, ([-1, -1, -1], [-1, -1, -1], 0)),
        (140, 160, ([-1, -1, -1], [-1, -1, -1], 0)),
    ],
)
def test_a_window_has_the_newest_samples_after_the_last_tick(start, tick, expected):
    assert selected(start, tick) == expected


def test_a_sample_that_had_not_arrived_is_not_in_the_window():
    arrivals = np.array([105, 200, 125, 135, 145])
    late = {"arrivals_ns": arrivals, "deadlines_ns": np.array([150])}
    assert selected(99, 130, 3, **late) == ([0, 2, 3], [30, 10, 0], 0)


@given(
    st.lists(st.integers(0, 60), max_size=30, unique=True),
    st.lists(st.integers(-5, 70), min_size=1, max_size=6, unique=True),
    st.integers(1, 8),
)
def test_every_selection_is_that_of_the_oracle(stamps, ticks, samples):
    stamps, ticks = np.array(sorted(stamps), np.int64), np.array(sorted(ticks), np.int64)
    starts = np.array([ticks[0] - 20, *ticks[:-1]])
    got = select_window(stamps, starts, ticks, samples)
    dropped = 0
    for number, (start, tick) in enumerate(zip(starts, ticks, strict=True)):
        values, ages, more = oracle.window(stamps[:, None], stamps, start, tick, samples)
        count = got.counts[number]
        assert stamps[got.rows[number, :count]].tolist() == values[:, 0].tolist()
        assert got.age_ns[number, :count].tolist() == ages.tolist()
        assert (got.rows[number, count:] == -1).all()
        assert (got.age_ns[number, count:] == -1).all()
        dropped += more
    assert got.dropped == dropped
