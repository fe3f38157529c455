"""The modules in robocache_ros/alignments, and what is derived from them."""

from pathlib import Path

import numpy as np
import pytest

from robocache_ros.alignments import NAMES, alignment, default_alignment
from robocache_ros.alignments.linear import oracle
from robocache_ros.ops.cuda.kernels import load_source

KERNELS = Path(__file__).parents[2] / "kernels"
BLENDING = [name for name in NAMES if alignment(name).blends]


def test_every_alignment_that_blends_has_a_header_of_its_name_and_no_other_has():
    headers = sorted(file.stem for file in (KERNELS / "resample" / "alignments").iterdir())
    assert headers == BLENDING


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


def test_a_quarter_of_the_way():
    assert oracle(np.array([0.0, 100.0]), np.array([10.0, 80.0]), 0.25).tolist() == [2.5, 95.0]
