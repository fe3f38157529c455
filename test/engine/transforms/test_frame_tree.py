"""Poses out of a tree of frames, in cases worked out by hand."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from robocache_ros.decode.transforms import Transform
from robocache_ros.engine.transforms import MAX_CHAIN, FrameTree, StaticTransforms
from robocache_ros.ops.resample.selection import Rule
from test.ops.resample.oracle import resample

LINEAR = Rule("linear", 100, 50)
HALF = math.sqrt(0.5)
NONE, ALIGNED, HELD = 0, 1, 2
TURN_Z = (0.0, 0.0, HALF, HALF)  # a quarter turn about z
NO_TURN = (0.0, 0.0, 0.0, 1.0)


def tree(*samples, static=()):
    """Of (stamp, parent, child, position, rotation) samples, each of which arrives at its stamp."""
    known = StaticTransforms()
    for parent, child, at, turn in static:
        assert known.add(Transform(parent, child, at, turn))
    found = FrameTree(known, None)
    for stamp, parent, child, at, *turn in samples:
        found.add(Transform(parent, child, at, *(turn or [NO_TURN])), stamp, stamp)
    return found


def pose(found, target, source, tick, rule=LINEAR, deadline=None):
    deadlines = None if deadline is None else np.array([deadline])
    result = found.poses(target, source, np.array([tick]), rule, deadlines)
    return result.values[0], int(result.valid[0]), int(result.age_ns[0])


ANGLE = math.pi / 2 / 4  # a quarter of the quarter turn
ARM = ((0, "base", "arm", (0, 0, 0)), (60, "base", "arm", (6, 0, 0)), (20, "arm", "tool", (1, 0, 0)))
TOOL = (0, "base", "tool", (1, 0, 0))
MAST = ("base", "mast", (0, 0, 1), NO_TURN)
FAR = ((0, "base", "tool", (0, 0, 0)), (101, "base", "tool", (1, 0, 0)))  # a gap that is too wide
# map -> base has one old sample only; left and right are siblings under base.
MAP = ((0, "map", "base", (9, 9, 9)), (200, "base", "left", (1, 0, 0)), (200, "base", "right", (0, 1, 0)))
LAST = [*(0,) * 7]


@pytest.mark.parametrize(
    ("known", "way", "tick", "expected", "valid", "age"),
    [
        (tree((0, "base", "tool", (0, 0, 0)), (100, "base", "tool", (4, 0, 8), TURN_Z)), "base tool", 25,
         [1, 0, 2, 0, 0, math.sin(ANGLE / 2), math.cos(ANGLE / 2)], ALIGNED, 25),
        (tree((40, "base", "tool", (0.1, 0.2, 0.3))), "base tool", 40, [0.1, 0.2, 0.3, *NO_TURN], ALIGNED, 0),
        # A quarter turn of the mast, on which the camera is 2 m ahead: that is to the left, 2 m along y.
        (tree((0, "base", "mast", (1, 0, 0), TURN_Z), (0, "mast", "camera", (2, 0, 0))), "base camera", 0,
         [1, 2, 0, *TURN_Z], ALIGNED, 0),
        (tree(*MAP), "left right", 200, [-1, 1, 0, *NO_TURN], ALIGNED, 0),  # what is above does not matter
        (tree(*MAP), "map right", 200, LAST, NONE, 0),
        # Static transforms are valid at any time and have no age, and win over moving ones of the same frame.
        (tree(static=[MAST, ("mast", "camera", (1, 0, 0), NO_TURN)]), "base camera", 10**18, [1, 0, 1, *NO_TURN],
         ALIGNED, 0),
        (tree((0, "base", "mast", (0, 0, 5)), static=[MAST]), "base mast", 0, [0, 0, 1, *NO_TURN], ALIGNED, 0),
        # At 30 the arm is between two samples, the tool's newest is 10 old: the oldest age counts, and it is held.
        (tree(*ARM), "base tool", 30, [4, 0, 0, *NO_TURN], HELD, 30),
        # Nothing is extrapolated.
        (tree(TOOL), "base tool", -1, LAST, NONE, 0),
        (tree(TOOL), "base tool", 0, [1, 0, 0, *NO_TURN], ALIGNED, 0),
        (tree(TOOL), "base tool", 50, [1, 0, 0, *NO_TURN], HELD, 50),
        (tree(TOOL), "base tool", 51, LAST, NONE, 0),
        (tree(*FAR), "base tool", 30, [0, 0, 0, *NO_TURN], HELD, 30),
        (tree(*FAR), "base tool", 60, LAST, NONE, 0),
    ],
    ids=range(14),
)  # fmt: skip
def test_a_pose_is_that_worked_out_by_hand(known, way, tick, expected, valid, age):
    value, found, found_age = pose(known, *way.split(), tick)
    # The series of slerp leaves 1e-8 where it interpolates, and is exact at a sample.
    np.testing.assert_allclose(value, expected, rtol=0, atol=2e-8 if tick == 25 else 1e-15)
    assert (found, found_age) == (valid, age)


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


MS = 1_000_000
FOREVER_NS = 10**12
CASES = json.loads(Path(__file__).with_name("tf2_lookups.json").read_text(encoding="utf-8"))["cases"]


@pytest.mark.parametrize("case", CASES, ids=range(len(CASES)))
def test_poses_are_those_of_tf2(case):
    moving, static, parents = [], [], {}
    for at_ms, parent, child, *pose, is_static in case["samples"]:
        transform = (parent, child, tuple(pose[:3]), tuple(pose[3:]))
        if is_static:
            static.append(transform)
        else:
            moving.append((at_ms * MS, *transform))
        parents.setdefault(child, set()).add(parent)
    known = tree(*moving, static=static)
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


# The oracle: each transform resampled by the float64 reference of the operations, and multiplied as 4 x 4 matrices.


def matrix(position, rotation):
    x, y, z, w = rotation / np.linalg.norm(rotation)
    cross = np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]])
    result = np.eye(4)
    result[:3, :3] = np.eye(3) + 2 * w * cross + 2 * cross @ cross
    result[:3, 3] = position
    return result


def oracle(edges, target, source, tick):
    """T_target_source as (4, 4), or None; edges: child -> (parent, stamps, (S, 7) poses)."""

    def root_of(frame):
        path, total = [frame], np.eye(4)
        ways = {frame: total}
        while path[-1] in edges:
            parent, stamps, poses = edges[path[-1]]
            parts = [
                resample(poses[:, part], stamps, np.array([tick]), how, 100, 50)
                for part, how in ((slice(0, 3), "linear"), (slice(3, 7), "slerp"))
            ]
            if not parts[0][1][0]:
                break
            total = matrix(parts[0][0][0], parts[1][0][0]) @ total
            path.append(parent)
            ways[parent] = total
        return ways

    up, down = root_of(source), root_of(target)
    common = next((frame for frame in up if frame in down), None)
    return None if common is None else np.linalg.inv(down[common]) @ up[common]


@st.composite
def random_trees(draw):
    """Child -> (parent, stamps, poses) of a random tree of frames f0, f1, ...; f0 is its root."""
    seed = draw(st.integers(0, 2**32 - 1))
    rng = np.random.default_rng(seed)
    edges = {}
    for child in range(1, draw(st.integers(2, 9))):
        stamps = np.unique(rng.integers(0, 400, draw(st.integers(1, 12))))
        rotations = rng.normal(size=4) + rng.normal(size=(len(stamps), 4)) * draw(st.sampled_from([0.01, 0.3, 5]))
        rotations /= np.linalg.norm(rotations, axis=1, keepdims=True)
        poses = np.concatenate([rng.normal(size=(len(stamps), 3)) * 3, rotations], axis=1)
        edges[f"f{child}"] = (f"f{int(rng.integers(0, child))}", stamps, poses)
    return edges, rng


@settings(max_examples=80)
@given(random_trees(), st.integers(0, 8), st.integers(0, 8))
def test_random_chains_agree_with_the_oracle_and_one_tick_has_the_bits_that_it_has_among_many(drawn, first, second):
    edges, rng = drawn
    target, source = f"f{first % (len(edges) + 1)}", f"f{second % (len(edges) + 1)}"
    if target == source:
        return
    samples = [
        (int(stamp), parent, child, tuple(pose[:3]), tuple(pose[3:]))
        for child, (parent, stamps, poses) in edges.items()
        for stamp, pose in zip(stamps, poses, strict=True)
    ]
    found = tree(*(samples[i] for i in rng.permutation(len(samples))))
    ticks = np.sort(rng.integers(-20, 460, 12))
    many = found.poses(target, source, ticks, LINEAR)
    for k, tick in enumerate(ticks):
        one = found.poses(target, source, np.array([tick]), LINEAR)
        assert one.values[0].tobytes() == many.values[k].tobytes()
        assert (one.valid[0], one.age_ns[0]) == (many.valid[k], many.age_ns[k])
        expected = oracle(edges, target, source, int(tick))
        assert (expected is None) == (many.valid[k] == NONE)
        if expected is not None:
            # slerp's series leaves 1e-8 of an angle for each of 8 transforms, at a lever of some 10 m
            np.testing.assert_allclose(matrix(many.values[k, :3], many.values[k, 3:]), expected, atol=2e-6)


@settings(max_examples=40)
@given(st.lists(st.tuples(st.integers(0, 200), st.integers(0, 5), st.integers(0, 5)), max_size=40))
def test_any_graph_is_answered(links):
    found = tree(*((stamp, f"f{parent}", f"f{child}", (1.0, 0.0, 0.0)) for stamp, parent, child in links))
    result = found.poses("f0", "f5", np.arange(0, 200, 10), LINEAR)
    assert sum(result.missing.values()) == int((result.valid == NONE).sum())


def test_a_parent_whose_name_ends_with_nuls_is_a_parent():
    known = tree((0, "a\0", "b", (0, 0, 0)), (50, "a\0", "b", (2, 0, 0)))
    found = known.poses("a\0", "b", np.array([0, 50]), LINEAR)
    assert found.valid.tolist() == [1, 1]
    assert found.values[:, 0].tolist() == [0, 2]
