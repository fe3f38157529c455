"""The oracles of `angle`, also in degrees, on cases worked out by hand."""

import numpy as np
import pytest

from robocache_ros.alignments import angle_deg
from robocache_ros.alignments.angle import oracle


def test_an_angle_takes_the_smaller_rotation_and_stays_in_range():
    degrees = np.degrees(oracle(np.radians([170.0]), np.radians([-170.0]), 0.75))
    np.testing.assert_allclose(degrees, [-175], rtol=1e-12)


def test_an_angle_of_several_turns_is_not_folded():
    assert oracle(np.array([7.0]), np.array([7.5]), 0.5).tolist() == [7.25]


@pytest.mark.parametrize(
    ("before", "after", "share", "expected"),
    [
        (170, -170, 0.75, -175),
        (-170, 170, 0.75, 175),
        (350, 10, 0.25, 355),
        (350, 10, 0.75, 5),
        (10, 350, 0.75, 355),
        (0, 359, 0.5, 359.5),
        (350, 10, 0.5, 360),
        (100, 260, 0.5, 180),
        (10, 190, 1.0, 190),
        (0, 180, 0.25, 45),
        (720, 730, 0.5, 725),  # counts turns
        (355, 365, 0.8, 363),
        (-10, 350, 0.5, -10),
    ],
)
def test_an_angle_in_degrees_takes_the_smaller_rotation_and_stays_in_the_range_of_both(before, after, share, expected):
    given = np.array([[before], [after]], float)
    assert angle_deg.oracle(*given, share).tolist() == [expected]
    single = given.astype(np.float32)
    assert angle_deg.blend(*single, np.float32(share)).tolist() == [expected]
