"""The oracle of `slerp`, on cases worked out by hand."""

import numpy as np

from robocache_ros.alignments.slerp import oracle


def test_a_third_of_a_right_angle_about_x():
    half = np.radians(45)  # a quaternion holds half the rotation's angle
    got = oracle(np.array([0, 0, 0, 1.0]), np.array([np.sin(half), 0, 0, np.cos(half)]), 1 / 3)
    np.testing.assert_allclose(got, [np.sin(half / 3), 0, 0, np.cos(half / 3)], rtol=1e-12, atol=1e-15)


def test_it_takes_the_shorter_arc():
    got = oracle(np.array([0, 0, 0, 1.0]), np.array([-0.6, 0, 0, -0.8]), 1.0)
    np.testing.assert_allclose(got, [0.6, 0, 0, 0.8], rtol=1e-12)


def test_quaternions_of_length_zero_are_blended_linearly():
    assert oracle(np.zeros(4), np.array([0, 0, 0, 2.0]), 0.25).tolist() == [0, 0, 0, 0.5]
