"""The oracle of resampling, on cases worked out by hand."""

import numpy as np
import pytest

from test.ops.resample import oracle

LINE = np.array([[0.0, 100.0], [10.0, 80.0], [30.0, 0.0]])
TIMES = np.array([0, 100, 300])


def one(target, method="linear", source=LINE, times=TIMES, **limits):
    values, valid, age = oracle.resample(source, times, np.array([target]), method, **limits)
    return values[0].tolist(), int(valid[0]), int(age[0])


@pytest.mark.parametrize(
    ("target", "method", "limits", "expected"),
    [
        (25, "linear", {}, ([2.5, 95.0], 1, 25)),  # a quarter of the way
        (150, "linear", {}, ([15.0, 60.0], 1, 50)),  # of 200 ns, a quarter again
        (100, "linear", {"max_gap_ns": 1}, ([10.0, 80.0], 1, 0)),  # hit exactly: no gap matters
        (150, "linear", {"max_gap_ns": 199}, ([10.0, 80.0], 2, 50)),  # too wide a gap: held
        (150, "linear", {"max_gap_ns": 199, "max_age_ns": 49}, ([0.0, 0.0], 0, 0)),  # and too old
        (150, "linear", {"max_gap_ns": 200}, ([15.0, 60.0], 1, 50)),  # the widest gap that is allowed
        (400, "linear", {}, ([30.0, 0.0], 2, 100)),  # after the end: held
        (-1, "linear", {}, ([0.0, 0.0], 0, 0)),  # before the start: nothing
        (99, "hold", {}, ([0.0, 100.0], 1, 99)),
        (299, "hold", {"max_age_ns": 198}, ([0.0, 0.0], 0, 0)),
        (200, "nearest", {}, ([10.0, 80.0], 1, 100)),  # a tie: the earlier
        (201, "nearest", {}, ([30.0, 0.0], 1, -99)),  # ahead: a negative age
        (-5, "nearest", {}, ([0.0, 100.0], 1, -5)),
        (-5, "nearest", {"max_age_ns": 4}, ([0.0, 0.0], 0, 0)),
        (100, "next", {}, ([10.0, 80.0], 1, 0)),  # hit exactly
        (101, "next", {}, ([30.0, 0.0], 1, -199)),
        (101, "next", {"max_age_ns": 198}, ([0.0, 0.0], 0, 0)),
        (301, "next", {}, ([0.0, 0.0], 0, 0)),  # after the end
    ],
)
def test_selection(target, method, limits, expected):
    assert one(target, method, **limits) == expected


def test_of_samples_with_one_stamp_the_first_counts():
    source, times = np.array([[1.0], [2.0], [3.0], [4.0]]), np.array([0, 0, 10, 10])
    assert one(0, source=source, times=times)[0] == [1.0]
    assert one(5, source=source, times=times)[0] == [2.0]  # halfway from 1 to 3
    assert one(99, "hold", source=source, times=times)[0] == [3.0]


def test_order_does_not_matter():
    assert one(150, source=LINE[[2, 0, 1]], times=TIMES[[2, 0, 1]]) == one(150)
