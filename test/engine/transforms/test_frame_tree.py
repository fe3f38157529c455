"""Poses out of a tree of frames, in cases worked out by hand."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from robocache_ros.decode.transforms import Transform
from robocache_ros.engine.transforms import MAX_CHAIN, FrameTree, StaticTransforms
from robocache_ros.ops.resample.selection import Rule

LINEAR = Rule("linear", 100, 50)
HALF = math.sqrt(0.5)
NONE, ALIGNED, HELD = 0, 1, 2
TURN_Z = (0.0, 0.0, HALF, HALF)  # a quarter turn about z
NO_TURN = (0.0, 0.0, 0.0, 1.0)


def tree(*samples, static=(), most=None):
    """Of (stamp, parent, child, position, rotation) samples, each of which arrives at its stamp."""
    known = StaticTransforms()
    for parent, child, at, turn in static:
        assert known.add(Transform(parent, child, at, turn))
    found = FrameTree(known, most)
    for stamp, parent, child, at, *turn in samples:
        found.add(Transform(parent, child, at, *(turn or [NO_TURN])), stamp, stamp)
    return found


def pose(found, target, source, tick, rule=LINEAR, deadline=None):
    deadlines = None if deadline is None else np.array([deadline])
    result = found.poses(target, source, np.array([tick]), rule, deadlines)
    return result.values[0], int(result.valid[0]), int(result.age_ns[0])


def test_a_transform_is_interpolated_between_its_samples():
    moving = tree((0, "base", "tool", (0, 0, 0)), (100, "base", "tool", (4, 0, 8), TURN_Z))

    value, valid, age = pose(moving, "base", "tool", 25)

    angle = math.pi / 2 / 4  # a quarter of the quarter turn
    expected = [1, 0, 2, 0, 0, math.sin(angle / 2), math.cos(angle / 2)]
    # The series of slerp leaves 1e-8.
    np.testing.assert_allclose(value, expected, atol=2e-8)
    assert (valid, age) == (ALIGNED, 25)


def test_a_sample_at_the_tick_is_the_pose():
    value, valid, age = pose(tree((40, "base", "tool", (0.1, 0.2, 0.3))), "base", "tool", 40)
    assert value.tolist() == [0.1, 0.2, 0.3, 0, 0, 0, 1]
    assert (valid, age) == (ALIGNED, 0)


def test_a_chain_is_composed_from_the_source_up_to_the_target():
    # A quarter turn of the mast, on which the camera is 2 m ahead: that is to the left, 2 m along y.
    chain = tree((0, "base", "mast", (1, 0, 0), TURN_Z), (0, "mast", "camera", (2, 0, 0)))
    np.testing.assert_allclose(pose(chain, "base", "camera", 0)[0], [1, 2, 0, *TURN_Z], atol=1e-15)


def test_what_is_above_the_common_ancestor_does_not_matter():
    # map -> base has one old sample only; left and right are siblings under base.
    known = tree((0, "map", "base", (9, 9, 9)), (200, "base", "left", (1, 0, 0)), (200, "base", "right", (0, 1, 0)))
    assert pose(known, "left", "right", 200)[1] == ALIGNED
    assert pose(known, "map", "right", 200)[1] == NONE


def test_static_transforms_are_valid_at_any_time_and_have_no_age():
    known = tree(static=[("base", "mast", (0, 0, 1), NO_TURN), ("mast", "camera", (1, 0, 0), NO_TURN)])
    value, valid, age = pose(known, "base", "camera", 10**18)
    assert (value.tolist(), valid, age) == ([1, 0, 1, 0, 0, 0, 1], ALIGNED, 0)


def test_a_static_transform_wins_over_a_moving_one_of_the_same_frame():
    known = tree((0, "base", "mast", (0, 0, 5)), static=[("base", "mast", (0, 0, 1), NO_TURN)])
    assert pose(known, "base", "mast", 0)[0][2] == 1


def test_the_age_is_that_of_the_oldest_transform_and_a_held_one_makes_the_pose_held():
    known = tree(
        (0, "base", "arm", (0, 0, 0)), (60, "base", "arm", (6, 0, 0)), (20, "arm", "tool", (1, 0, 0))
    )  # at 30 the arm is between two samples, the tool's newest is 10 old
    value, valid, age = pose(known, "base", "tool", 30)
    assert (value[0], valid, age) == (4, HELD, 30)


@pytest.mark.parametrize(("tick", "valid"), [(-1, NONE), (0, ALIGNED), (50, HELD), (51, NONE)])
def test_nothing_is_extrapolated(tick, valid):
    known = tree((0, "base", "tool", (1, 0, 0)))
    value, found, _ = pose(known, "base", "tool", tick)
    assert found == valid
    assert value[0] == (1 if valid else 0)


def test_a_wide_gap_is_not_interpolated_over():
    known = tree((0, "base", "tool", (0, 0, 0)), (101, "base", "tool", (1, 0, 0)))
    assert pose(known, "base", "tool", 30)[1] == HELD
    assert pose(known, "base", "tool", 60)[1] == NONE


def test_a_frame_that_changes_its_parent_is_held_until_then_and_never_blended():
    known = tree(
        (0, "table", "cube", (5, 0, 0)),
        (80, "gripper", "cube", (0, 0, 1)),
        (0, "base", "table", (1, 0, 0)),
        (80, "base", "table", (1, 0, 0)),
        (0, "base", "gripper", (0, 2, 0)),
        (80, "base", "gripper", (0, 2, 0)),
    )
    ticks = np.array([0, 40, 60, 80])
    found = known.poses("base", "cube", ticks, LINEAR)
    assert found.valid.tolist() == [ALIGNED, HELD, NONE, ALIGNED]
    assert found.values[:, :3].tolist() == [[6, 0, 0], [6, 0, 0], [0, 0, 0], [0, 2, 1]]


def test_of_two_samples_with_one_stamp_the_first_is_kept():
    known = tree((0, "base", "tool", (1, 0, 0)))
    assert not known.add(Transform("other", "tool", (2, 0, 0), NO_TURN), 0, 5)
    assert pose(known, "base", "tool", 0)[0][0] == 1


def test_a_tick_sees_what_had_arrived_by_its_deadline():
    known = tree((0, "base", "tool", (0, 0, 0)))
    known.add(Transform("base", "tool", (2, 0, 0), NO_TURN), 20, 70)
    assert pose(known, "base", "tool", 10, deadline=69)[1] == HELD
    assert pose(known, "base", "tool", 10, deadline=70)[1] == ALIGNED


@pytest.mark.parametrize(
    ("samples", "expected"),
    [
        ([], "no transform from tool to base"),
        ([(0, "flange", "tool", (0, 0, 0))], "no transform from flange to base"),
        ([(0, "flange", "tool", (0, 0, 0)), (0, "map", "base", (0, 0, 0))], "no transform from flange to map"),
        ([(0, "b", "tool", (0, 0, 0)), (0, "tool", "b", (0, 0, 0))], "b is in a loop"),
        ([(-500, "base", "tool", (0, 0, 0))], "tool has no transform near that time (of tool in base)"),
    ],
)
def test_what_is_missing_is_named(samples, expected):
    missing = tree(*samples).poses("base", "tool", np.array([0]), LINEAR).missing
    assert len(missing) == 1
    assert expected in next(iter(missing))


def test_a_chain_that_is_too_long_ends():
    known = tree(*((0, f"f{i}", f"f{i + 1}", (1, 0, 0)) for i in range(MAX_CHAIN + 5)))
    assert pose(known, "f0", f"f{MAX_CHAIN}", 0)[0][0] == MAX_CHAIN
    (text,) = known.poses("f0", f"f{MAX_CHAIN + 5}", np.array([0]), LINEAR).missing
    assert f"more than {MAX_CHAIN} transforms" in text


def test_a_frame_keeps_a_bounded_number_of_samples():
    known = tree(*((i, "base", "tool", (i, 0, 0)) for i in range(200)), most=64)
    assert known.overrun == 200 - 64
    assert pose(known, "base", "tool", 199)[0][0] == 199


def test_pruned_frames_are_forgotten():
    known = tree((0, "a", "b", (0, 0, 0)), (50, "a", "c", (0, 0, 0)))
    known.prune(10)
    assert "b" not in known
    assert "c" in known


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
