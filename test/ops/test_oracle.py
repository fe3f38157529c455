"""The reference, on cases worked by hand."""

import numpy as np
import pytest

from robocache_ros.ops.resample import oracle

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


def test_angle_goes_the_shorter_way_and_stays_in_range():
    degrees = np.degrees(oracle.between(np.radians([170.0]), np.radians([-170.0]), 0.75, "angle"))
    np.testing.assert_allclose(degrees, [-175], rtol=1e-12)


def test_slerp_a_third_of_a_right_angle_about_x():
    half = np.radians(45)  # half the rotation's angle is what a quaternion holds
    got = oracle.between(np.array([0, 0, 0, 1.0]), np.array([np.sin(half), 0, 0, np.cos(half)]), 1 / 3, "slerp")
    np.testing.assert_allclose(got, [np.sin(half / 3), 0, 0, np.cos(half / 3)], rtol=1e-12, atol=1e-15)


def test_slerp_takes_the_shorter_arc():
    got = oracle.between(np.array([0, 0, 0, 1.0]), np.array([-0.6, 0, 0, -0.8]), 1.0, "slerp")
    np.testing.assert_allclose(got, [0.6, 0, 0, 0.8], rtol=1e-12)


def test_quaternions_of_no_length_are_blended_linearly():
    assert oracle.between(np.zeros(4), np.array([0, 0, 0, 2.0]), 0.25, "slerp").tolist() == [0, 0, 0, 0.5]
