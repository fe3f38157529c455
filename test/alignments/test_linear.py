"""The oracle of `linear`, on cases worked out by hand."""

import numpy as np

from robocache_ros.alignments.linear import oracle


def test_a_quarter_of_the_way():
    assert oracle(np.array([0.0, 100.0]), np.array([10.0, 80.0]), 0.25).tolist() == [2.5, 95.0]
