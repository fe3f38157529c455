"""The oracle of `angle`, on cases worked out by hand."""

import numpy as np

from robocache_ros.alignments.angle import oracle


def test_an_angle_takes_the_smaller_rotation_and_stays_in_range():
    degrees = np.degrees(oracle(np.radians([170.0]), np.radians([-170.0]), 0.75))
    np.testing.assert_allclose(degrees, [-175], rtol=1e-12)


def test_an_angle_of_several_turns_is_not_folded():
    assert oracle(np.array([7.0]), np.array([7.5]), 0.5).tolist() == [7.25]
