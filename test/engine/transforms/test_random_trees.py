"""Poses out of random trees of frames: against plain float64 matrices, and against each other."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from robocache_ros.decode.transforms import Transform
from robocache_ros.engine.transforms import FrameTree, StaticTransforms
from robocache_ros.ops.resample.selection import Rule
from test.ops.resample.oracle import resample

LINEAR = Rule("linear", 100, 50)
NONE = 0


def pose(found, target, source, tick):
    result = found.poses(target, source, np.array([tick]), LINEAR)
    return result.values[0], int(result.valid[0])


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


def filled(edges, rng):
    found = FrameTree(StaticTransforms(), None)
    samples = [
        (Transform(parent, child, tuple(p[:3]), tuple(p[3:])), int(stamp))
        for child, (parent, stamps, poses) in edges.items()
        for stamp, p in zip(stamps, poses, strict=True)
    ]
    for i in rng.permutation(len(samples)):
        found.add(samples[i][0], samples[i][1], 0)
    return found


@settings(max_examples=80)
@given(random_trees(), st.integers(0, 8), st.integers(0, 8))
def test_random_chains_agree_with_the_oracle(drawn, first, second):
    edges, rng = drawn
    target, source = f"f{first % (len(edges) + 1)}", f"f{second % (len(edges) + 1)}"
    if target == source:
        return
    found = filled(edges, rng)
    ticks = np.sort(rng.integers(-20, 460, 12))
    result = found.poses(target, source, ticks, LINEAR)
    for k, tick in enumerate(ticks):
        expected = oracle(edges, target, source, int(tick))
        assert (expected is None) == (result.valid[k] == NONE)
        if expected is not None:
            # slerp's series leaves 1e-8 of an angle for each of 8 transforms, at a lever of some 10 m
            np.testing.assert_allclose(matrix(result.values[k, :3], result.values[k, 3:]), expected, atol=2e-6)


@settings(max_examples=40)
@given(random_trees(), st.integers(0, 8), st.integers(0, 8))
def test_one_tick_has_the_bits_that_it_has_among_many(drawn, first, second):
    edges, rng = drawn
    target, source = f"f{first % (len(edges) + 1)}", f"f{second % (len(edges) + 1)}"
    if target == source:
        return
    found = filled(edges, rng)
    ticks = np.sort(rng.integers(-20, 460, 9))
    many = found.poses(target, source, ticks, LINEAR)
    for k, tick in enumerate(ticks):
        one = found.poses(target, source, np.array([tick]), LINEAR)
        assert one.values[0].tobytes() == many.values[k].tobytes()
        assert (one.valid[0], one.age_ns[0]) == (many.valid[k], many.age_ns[k])


@settings(max_examples=40)
@given(random_trees(), st.tuples(*[st.integers(0, 8)] * 3), st.integers(0, 400))
def test_the_inverse_chain_is_the_inverse_and_chains_compose(drawn, numbers, tick):
    edges, rng = drawn
    a, b, c = (f"f{n % (len(edges) + 1)}" for n in numbers)
    found = filled(edges, rng)
    if len({a, b, c}) < 3:
        return
    found_ab, found_bc, found_ac, found_ba = (pose(found, *way, tick) for way in ((a, b), (b, c), (a, c), (b, a)))
    if not (found_ab[1] and found_bc[1] and found_ac[1]):
        return
    ab, bc, ac, ba = (matrix(p[0][:3], p[0][3:]) for p in (found_ab, found_bc, found_ac, found_ba))
    # Float64 rounds each of some hundred operations by 1e-16 of lengths of some 10 m.
    np.testing.assert_allclose(ab @ ba, np.eye(4), atol=1e-12)
    np.testing.assert_allclose(ab @ bc, ac, atol=1e-12)


@settings(max_examples=40)
@given(st.lists(st.tuples(st.integers(0, 200), st.integers(0, 5), st.integers(0, 5)), max_size=40))
def test_any_graph_is_answered(links):
    found = FrameTree(StaticTransforms(), None)
    for stamp, parent, child in links:
        found.add(Transform(f"f{parent}", f"f{child}", (1.0, 0.0, 0.0), (0.0, 0.0, 0.0, 1.0)), stamp, 0)
    result = found.poses("f0", "f5", np.arange(0, 200, 10), LINEAR)
    assert sum(result.missing.values()) == int((result.valid == NONE).sum())
