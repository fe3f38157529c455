"""The modules in robocache_ros/alignments: their oracles on cases worked out by hand, and what is derived from them."""

from pathlib import Path

import numpy as np
import pytest

from robocache_ros.alignments import NAMES, alignment, default_alignment
from robocache_ros.ops.cuda.kernels import load_source

BLENDING = [name for name in NAMES if alignment(name).blends]


def test_every_alignment_that_blends_has_a_header_of_its_name_and_no_other_has():
    headers = Path(__file__).parents[2] / "kernels" / "resample" / "alignments"
    assert sorted(file.stem for file in headers.iterdir()) == BLENDING


def test_all_kernels_that_blend_include_every_header():
    for file in ("resample/resample.cu", "resample/blend.cu", "tick/row.cu"):
        included = {name for name, _ in load_source(file).headers}
        assert {f"resample/alignments/{name}.cuh" for name in BLENDING} <= included


@pytest.mark.parametrize("name", NAMES)
def test_an_alignment_blends_neighbours_or_copies_one_sample(name):
    found = alignment(name)
    assert found.blends == (found.selects == "neighbours") == (found.oracle is not None)
    assert found.group in (1, 2, 4, 8)


@pytest.mark.parametrize(("kind", "name"), [("vector", "linear"), ("image", "hold"), ("cloud", "hold")])
def test_each_kind_of_stream_has_one_default(kind, name):
    assert [each for each in NAMES if kind in alignment(each).default_of] == [name]
    assert default_alignment(kind) == name


@pytest.mark.parametrize("name", BLENDING)
def test_a_blend_of_nothing_and_of_all_is_one_of_the_samples(name):
    found = alignment(name)
    before, after = np.random.default_rng(0).uniform(0.1, 1, (2, found.group)).astype(np.float32)
    for samples in (before, after):
        samples /= np.linalg.norm(samples)
    for weight, expected in ((0, before), (1, after)):
        got = found.blend(before[None], after[None], np.array([[weight]], np.float32))[0]
        np.testing.assert_allclose(got, expected, rtol=1e-6)  # a few roundings
        np.testing.assert_allclose(found.oracle(*np.float64([before, after]), weight), expected, rtol=1e-6)


HALF = np.radians(45)  # a quaternion holds half of the rotation's angle
STILL = [0, 0, 0, 1.0]


@pytest.mark.parametrize(
    ("name", "before", "after", "share", "expected", "rounding"),
    [
        ("linear", [0.0, 100.0], [10.0, 80.0], 0.25, [2.5, 95.0], 0),
        # A third of a right angle about x; the shorter arc; quaternions of length zero are blended linearly.
        ("slerp", STILL, [np.sin(HALF), 0, 0, np.cos(HALF)], 1 / 3, [np.sin(HALF / 3), 0, 0, np.cos(HALF / 3)], 1e-12),
        ("slerp", STILL, [-0.6, 0, 0, -0.8], 1.0, [0.6, 0, 0, 0.8], 1e-12),
        ("slerp", [0.0] * 4, [0, 0, 0, 2.0], 0.25, [0, 0, 0, 0.5], 0),
        ("angle", np.radians([170]), np.radians([-170]), 0.75, np.radians([-175]), 1e-12),
        ("angle", [7.0], [7.5], 0.5, [7.25], 0),  # several turns are not folded
    ],
)
def test_a_blend_is_that_worked_out_by_hand(name, before, after, share, expected, rounding):
    got = alignment(name).oracle(np.array(before), np.array(after), share)
    np.testing.assert_allclose(got, expected, rtol=rounding, atol=rounding / 1000)


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
    assert alignment("angle_deg").oracle(*given, share).tolist() == [expected]
    single = given.astype(np.float32)
    assert alignment("angle_deg").blend(*single, np.float32(share)).tolist() == [expected]
