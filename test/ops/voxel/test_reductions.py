"""Every voxel reduction, found by its file: the oracle, order, spec, kernels. A new one needs no line here."""

import ast
import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from robocache_ros import RoboCacheError
from robocache_ros.ops import voxelize_pointcloud
from robocache_ros.ops.cuda.kernels import load_source
from robocache_ros.ops.tick import cloud_defines
from robocache_ros.ops.voxel.cuda import bin_defines, claim_defines, place_defines
from robocache_ros.ops.voxel.grid import checked_reduction
from robocache_ros.reductions import REDUCTIONS, SPEC_REDUCTIONS
from robocache_ros.reductions.kind import CellReduction, FeatureReduction
from robocache_ros.spec import VoxelSpec, json_schema

ROOT = Path(__file__).parents[3]
OF_FEATURES = [name for name, kind in REDUCTIONS.items() if isinstance(kind, FeatureReduction)]
OF_CELLS = [name for name, kind in REDUCTIONS.items() if isinstance(kind, CellReduction)]


def features_of(mode):
    return 2 if REDUCTIONS[mode].needs_features else 0


def test_every_reduction_has_a_cuda_header_of_its_name():
    headers = {path.stem for path in (ROOT / "kernels/voxel/reductions").glob("*.cuh")}
    assert headers == {*OF_FEATURES, *OF_CELLS}


def test_no_other_module_asks_for_a_reduction_by_its_name():
    """What differs between reductions is in their own modules; a default may name one."""
    folders = [ROOT / "robocache_ros" / name for name in ("ops/voxel", "ops/tick", "engine", "nodes", "export", "spec")]
    names = set(REDUCTIONS) - {"first"}
    # Statistics of a dataset's columns have some of the same names.
    files = [f for folder in folders for f in folder.rglob("*.py") if f.name != "column_statistics.py"]
    for file in files:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Compare):
                compared = {c.value for c in ast.walk(node) if isinstance(c, ast.Constant) and isinstance(c.value, str)}
                assert not compared & names, f"{file}:{node.lineno}"


def by_voxel(points, low, size, shape):
    """The reference, in float64: rows of points by their voxel; how many are not finite, and how many outside."""
    inside, nonfinite, outside = {}, 0, 0
    for number, point in enumerate(points.astype(np.float64)):
        if not np.isfinite(point).all():
            nonfinite += 1
            continue
        index = tuple(np.floor((point[:3] - low) / size).astype(int).tolist())
        if all(0 <= i < n for i, n in zip(index, shape, strict=True)):
            inside.setdefault(index, []).append(number)
        else:
            outside += 1
    return inside, nonfinite, outside


@settings(max_examples=40)
@given(data=st.data())
@pytest.mark.parametrize("mode", SPEC_REDUCTIONS)
def test_a_grid_agrees_with_the_float64_oracle(mode, data):
    kind, random = REDUCTIONS[mode], np.random.default_rng(data.draw(st.integers(0, 2**32)))
    shape = tuple(data.draw(st.integers(1, 7)) for _ in range(3))
    size = tuple(float(np.float32(data.draw(st.floats(0.01, 10)))) for _ in range(3))
    low = tuple(float(np.float32(data.draw(st.floats(-10, 10)))) for _ in range(3))
    count, fraction_bits = data.draw(st.integers(0, 60)), data.draw(st.integers(4, 24))
    # Away from the faces by more than the coordinates' rounding, so that floor has one answer.
    within = random.integers(-1, np.array(shape) + 1, (count, 3)) + random.uniform(0.02, 0.98, (count, 3))
    features = random.normal(0, 100, (count, features_of(mode)))
    points = np.concatenate([within * size + low, features], axis=1).astype(np.float32)
    if count:
        points[random.integers(0, count, 3), random.integers(0, points.shape[1], 3)] = np.nan
    inside, nonfinite, outside = by_voxel(points, low, size, shape)
    voxels = voxelize_pointcloud(torch.from_numpy(points), low, size, shape, mode, fraction_bits=fraction_bits)
    assert (int(voxels.nonfinite), int(voxels.outside)) == (nonfinite, outside)
    found = voxels.grid.numpy().reshape(-1, *shape)
    expected = np.zeros(found.shape)
    for index, rows in inside.items():
        expected[(slice(None), *index)] = kind.oracle(points[rows].tolist())
    # The steps of the fixed point that the kind declares, and the result's rounding to float32, which add up.
    np.testing.assert_allclose(found, expected, rtol=2**-24, atol=kind.oracle_steps * 2.0**-fraction_bits)


@pytest.mark.parametrize("mode", [name for name in REDUCTIONS if not REDUCTIONS[name].needs_max_points])
def test_a_grid_does_not_depend_on_the_order_of_the_points(mode):
    random = torch.Generator().manual_seed(0)
    points = torch.rand(3000, 3 + features_of(mode), generator=random) * 2
    points[:, 3:] = torch.randn(3000, features_of(mode), generator=random) * 1000
    shuffled = points[torch.randperm(3000, generator=random)]
    grids = [voxelize_pointcloud(cloud, (0, 0, 0), 0.5, (4, 4, 4), mode).grid for cloud in (points, shuffled)]
    assert torch.equal(*grids)


@pytest.mark.parametrize("mode", OF_FEATURES)
def test_a_lone_point_s_float32_feature_is_kept_to_the_fixed_point(mode):
    voxels = voxelize_pointcloud(torch.tensor([[0, 0, 0, -2.5]]), (0, 0, 0), 1.0, (1, 1, 1), mode)
    assert voxels.grid.item() == REDUCTIONS[mode].oracle([[0, 0, 0, -2.5]])[0]


@pytest.mark.parametrize("mode", REDUCTIONS)
def test_the_spec_offers_what_streams_may_have_and_its_pages_describe_it(mode):
    kind, features = REDUCTIONS[mode], ("intensity",) if REDUCTIONS[mode].needs_features else ()
    offered = json_schema()["properties"]["streams"]["additionalProperties"]["properties"]["voxels"]
    offered = offered["properties"]["reduce"]["enum"]
    assert (mode in offered) == kind.in_spec
    if kind.in_spec:
        assert f"{kind.summary} ({mode})" in (ROOT / "docs" / "reference" / "spec.md").read_text(encoding="utf-8")
        grid = VoxelSpec((0, 0, 0), (1, 1, 1), (1, 1, 1), mode, features)
        with pytest.raises(RoboCacheError, match="features"):
            dataclasses.replace(grid, features=() if features else ("intensity",))


@pytest.mark.slow
@pytest.mark.parametrize("mode", [*OF_FEATURES, *OF_CELLS])
def test_every_kernel_compiles_without_a_warning(compile_log, mode, architecture):
    """For clouds of any layout, and depth images."""
    features = 3 if mode in OF_FEATURES else 0
    reduction = checked_reduction(mode, features, None, 20)
    variants = [("tick/cloud.cu", cloud_defines(mode, features, 1))]
    if mode in OF_CELLS:
        variants += [("voxel/place.cu", place_defines(mode))]
    elif architecture in ("sm_80", "sm_90"):
        variants += [("voxel/claims.cu", claim_defines(reduction)), ("voxel/bin_reduce.cu", bin_defines(reduction))]
        variants += [("voxel/bin_sort.cu", (*bin_defines(reduction), "POINTS=4"))]
    for file, defines in variants:
        assert f"voxel/reductions/{mode}.cuh" in dict(load_source(file, defines).headers)
        assert compile_log(file, architecture, defines) == "", file
