"""The poses of a tree of frames against those that tf2 itself computed of the same transforms."""

import json
from pathlib import Path

import numpy as np
import pytest

from robocache_ros.decode.transforms import Transform
from robocache_ros.engine.transforms import FrameTree, StaticTransforms
from robocache_ros.ops.resample.selection import Rule

MS = 1_000_000
FOREVER_NS = 10**12
CASES = json.loads(Path(__file__).with_name("tf2_lookups.json").read_text(encoding="utf-8"))["cases"]


def tree_of(samples):
    found = FrameTree(StaticTransforms(), None)
    for stamp_ms, parent, child, *rest, static in samples:
        transform = Transform(parent, child, tuple(rest[:3]), tuple(rest[3:]))
        if static:
            assert found.static.add(transform)
        else:
            assert found.add(transform, stamp_ms * MS, 0)
    return found


@pytest.mark.parametrize("case", CASES, ids=range(len(CASES)))
def test_poses_are_those_of_tf2(case):
    known = tree_of(case["samples"])
    parents = {}
    for _, parent, child, *_ in case["samples"]:
        parents.setdefault(child, set()).add(parent)
    constant = all(len(found) == 1 for found in parents.values())
    for target, source, at_ms, expected in case["queries"]:
        ticks = np.array([at_ms * MS])
        held = known.poses(target, source, ticks, Rule("linear", FOREVER_NS, FOREVER_NS))
        exact = known.poses(target, source, ticks, Rule("linear", FOREVER_NS, 0))
        if expected is None:
            assert not exact.valid[0]  # tf2 refuses to extrapolate; with a max_age_ms the pose is held
            continue
        assert held.valid[0]
        assert exact.valid[0] or not constant  # tf2 holds a frame until it has another parent, however long that is
        found, sign = held.values[0], np.sign(held.values[0, 3:] @ expected[3:])
        # The series of slerp leaves 1e-8 of an angle, at a lever of a few metres; the file has ten digits.
        np.testing.assert_allclose(found[:3], expected[:3], atol=1e-7)
        np.testing.assert_allclose(found[3:] * sign, expected[3:], atol=1e-7)


def test_the_cases_have_valid_and_refused_poses():
    poses = [query[3] for case in CASES for query in case["queries"]]
    assert sum(pose is None for pose in poses) > 10
    assert sum(pose is not None for pose in poses) > 30
