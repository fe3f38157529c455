"""The device code of depth images gives the CPU backend's bits: as host code built by g++, and on a GPU."""

import ctypes

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from robocache_ros.errors import RoboCacheError
from robocache_ros.ops import voxelize_depth
from robocache_ros.ops.cuda.kernels import packer
from robocache_ros.ops.image.formats import ImageLayout
from robocache_ros.ops.voxel.cuda import Clouds, cloud_of_depth
from robocache_ros.ops.voxel.grid import Voxelization, checked_grid, checked_reduction
from robocache_ros.ops.voxel.layouts import ColorLayout, DepthImageLayout, check_depth
from robocache_ros.ops.voxel.voxelize import depth_columns, place_columns
from robocache_ros.reductions import REDUCTIONS
from test.ops.voxel.depth_images import GRID, TURN, check, image, scene

HOST = """
#include "voxel/cloud.cuh"
using namespace robocache;
extern "C" void locate(const Clouds* clouds, int* cell, float* rows) {
  for (long long i = 0; i < clouds->count; ++i) {
    const unsigned char* p = point_at(*clouds, 0, i);
    const Point point = to_grid(*clouds, read_point(*clouds, p));
    *cell++ = place(*clouds, p, point);
    *rows++ = point.x; *rows++ = point.y; *rows++ = point.z;
    for (int f = 0; f < clouds->features; ++f) *rows++ = feature_of(*clouds, p, f);
  }
}
"""


@pytest.fixture(scope="module")
def host(host_library):
    return host_library(HOST)


def compare_on_host(host, data, rgb, layout, matrix, mode="mean"):
    """The cells and rows of the device code, built by g++, against the CPU backend's."""
    features = len(layout.sources)
    grid, reduction = checked_grid(*GRID.values()), checked_reduction(mode, features, None, 20)
    # Both images in a block of their own size: a read past it would meet the other's bytes, or a sanitizer.
    source = cloud_of_depth(data, layout, rgb.data_ptr() - data.data_ptr(), matrix, Voxelization(grid, reduction, ()))
    packed = packer(Clouds).pack(*source.numbers)
    cell, rows = np.full(source.count, -9, np.int32), np.full((source.count, 3 + features), -9, np.float32)
    host.locate(ctypes.c_char_p(packed), *(a.ctypes.data_as(ctypes.c_void_p) for a in (cell, rows)))
    columns = depth_columns(data.numpy(), rgb.numpy(), layout, matrix)
    expected, _ = place_columns(columns, grid, reduction, 1, None)
    assert np.array_equal(np.maximum(cell, -1), expected)
    got, wanted = rows[expected >= 0], np.stack(columns, axis=1)[expected >= 0]
    assert np.array_equal(got.view(np.uint32), wanted.view(np.uint32))


@pytest.mark.parametrize("dtype", [np.uint16, np.float32])
@pytest.mark.parametrize(("big_endian", "padding", "matrix"), [(False, 0, None), (True, 3, TURN.numpy())])
def test_device_code_gives_the_cpu_backends_bits(host, dtype, big_endian, padding, matrix):
    data, kind = image(scene(4, dtype=dtype), big_endian, padding)
    over = ColorLayout("bgr8", 100, 0)
    layout = check(data, kind, color=over, features=("g", "x", "r"))
    rgb = torch.from_numpy(np.random.default_rng(5).integers(0, 256, 24 * 100, dtype=np.uint8))
    compare_on_host(host, data, rgb, layout, matrix)


@settings(max_examples=60)
@given(
    raw=st.binary(min_size=0, max_size=400),
    width=st.integers(0, 12),
    height=st.integers(0, 8),
    step=st.integers(0, 60),
    deep=st.sampled_from(["16UC1", "32FC1", "mono16"]),
    big_endian=st.booleans(),
    camera=st.tuples(*[st.floats(width=32)] * 4),
)
def test_any_bytes_and_intrinsics_are_refused_or_give_the_same_bits(
    host, raw, width, height, step, deep, big_endian, camera
):
    data = torch.frombuffer(bytearray(raw or b"\0"), dtype=torch.uint8)
    try:
        layout = check_depth(
            len(raw), 0, DepthImageLayout(ImageLayout(deep, width, height, step, big_endian), camera), ("z",)
        )
    except RoboCacheError:
        return
    compare_on_host(host, data, data, layout, TURN.numpy())


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [np.uint16, np.float32])
@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_a_gpu_gives_the_cpus_bits(dtype, reduce):
    rng = np.random.default_rng(6)
    for size, big_endian, padding in ((1, False, 0), (7, True, 3), (480, False, 0), (96, True, 4)):
        width = size * 4 // 3
        data, layout = image(scene(size, size, width, dtype), big_endian, padding)
        rgb = torch.from_numpy(rng.integers(0, 256, size * width * 4, dtype=np.uint8))
        options = {**GRID, "camera": (size, size, width / 2, size / 2), "transform": TURN, "mode": reduce}
        if REDUCTIONS[reduce].reads_features:
            options |= {"features": ("r", "g", "b", "z"), "color_encoding": "bgra8"}
        if REDUCTIONS[reduce].needs_max_points:
            options["max_points"] = 3
        for sparse in (False, True):
            on_cpu = voxelize_depth(data, **layout, color=rgb, **options, sparse=sparse)
            on_gpu = voxelize_depth(data.cuda(), **layout, color=rgb.cuda(), **options, sparse=sparse)
            assert torch.equal(on_cpu.tally, on_gpu.tally.cpu())
            for name in ("dense", "coordinates", "num_points", "features"):
                one, other = getattr(on_cpu, name), getattr(on_gpu, name)
                assert (one is None) == (other is None)
                if one is not None:
                    assert torch.equal(one.view(torch.uint8), other.cpu().view(torch.uint8))
