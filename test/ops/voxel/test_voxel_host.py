"""The device code of voxels, built by g++, gives the CPU backend's bits."""

import ctypes

import numpy as np
import pytest
import torch

from robocache_ros.ops.cuda.kernels import packer
from robocache_ros.ops.voxel.cuda import Clouds, cloud_of_bytes, cloud_of_tensor
from robocache_ros.ops.voxel.grid import Voxelization, checked_grid, checked_reduction
from robocache_ros.ops.voxel.layouts import CloudLayout, check_cloud, column_sources
from robocache_ros.ops.voxel.voxelize import cloud_columns, place_columns
from robocache_ros.reductions.kind import fixed_point, key_of_float
from test.ops.voxel.clouds import GRID, TURN, awkward_points, cloud_bytes, same_bits

HOST = """
#include "voxel/cloud.cuh"
#include "voxel/fixed_point.cuh"
using namespace robocache;
extern "C" void locate(const Clouds* clouds, long long batch, int* cell, float* rows) {
  for (long long cloud = 0; cloud < batch; ++cloud)
    for (long long i = 0; i < points_of(*clouds, cloud); ++i) {
      const unsigned char* p = point_at(*clouds, cloud, i);
      const Point point = to_grid(*clouds, read_point(*clouds, p));
      *cell++ = place(*clouds, p, point);
      *rows++ = point.x; *rows++ = point.y; *rows++ = point.z;
      for (int f = 0; f < clouds->features; ++f) *rows++ = feature_of(*clouds, p, f);
    }
}
extern "C" void sums(
    const float* value, int n, float scale, float limit, long long* fixed, int* key, float* back
) {
  for (int i = 0; i < n; ++i) {
    fixed[i] = fixed_point(value[i], scale, limit);
    key[i] = key_of(value[i]);
    back[i] = float_of_key(key[i]);
  }
}
extern "C" void means(const long long* sum, const long long* count, int n, double unit, float* mean) {
  for (int i = 0; i < n; ++i) mean[i] = mean_of(sum[i], count[i], unit);
}
"""


@pytest.fixture(scope="module")
def host(host_library):
    return host_library(HOST)


def pointer(array):
    return array.ctypes.data_as(ctypes.c_void_p)


def located(host, clouds, features):
    total = clouds.batch * clouds.count
    cell, rows = np.full(total, -9, np.int32), np.full((total, 3 + features), -9, np.float32)
    packed = packer(Clouds).pack(*clouds.numbers)
    host.locate(ctypes.c_char_p(packed), ctypes.c_longlong(clouds.batch), pointer(cell), pointer(rows))
    return cell, rows


def test_cells_of_awkward_points_are_the_same_as_host_code(host):
    points = awkward_points(3000, 3)
    grid, reduction = checked_grid(*GRID), checked_reduction("count", 0, None, 20)
    cell, rows = located(
        host, cloud_of_tensor(torch.from_numpy(points)[None], None, Voxelization(grid, reduction, ())), 0
    )
    wanted, tally = place_columns(list(points.T), grid, reduction, 1, None)
    assert np.array_equal(np.where(cell < 0, -1, cell), wanted)
    assert (np.count_nonzero(cell == -1), np.count_nonzero(cell == -2)) == tuple(tally[0, :2])
    same_bits(rows, points)


def test_a_feature_that_is_not_finite_refuses_its_point_in_host_code(host):
    points = awkward_points(900, 5)
    points[5:80:3, 4] = np.nan
    grid, reduction = checked_grid(*GRID), checked_reduction("mean", 2, None, 20)
    cell, _ = located(host, cloud_of_tensor(torch.from_numpy(points)[None], None, Voxelization(grid, reduction, ())), 2)
    wanted, tally = place_columns(list(points.T), grid, reduction, 1, None)
    assert np.array_equal(np.where(cell < 0, -1, cell), wanted)
    assert np.count_nonzero(cell == -1) == tally[0, 0]


@pytest.mark.parametrize("big_endian", [False, True])
@pytest.mark.parametrize("kind", ["f4", "f8", "i1", "u2", "i4"])
@pytest.mark.parametrize("transform", [None, TURN])
def test_every_layout_reads_the_same_as_host_code(host, kind, big_endian, transform):
    data, layout = cloud_bytes(kind, big_endian, height=7, padding=11)
    cloud = check_cloud(data.numel(), CloudLayout(**layout))
    sources = column_sources(cloud, [f"i{n}" for n in range(8)] + ["z", "y", "x"])
    matrix = None if transform is None else transform[:3].numpy()
    grid, reduction = checked_grid(*GRID), checked_reduction("count", 11, None, 20)
    _, rows = located(host, cloud_of_bytes(data, cloud, sources, matrix, Voxelization(grid, reduction, ())), 11)
    same_bits(rows, np.stack(cloud_columns(data.numpy(), cloud, sources, matrix), axis=1))


def test_fixed_point_and_order_keys_are_the_same_as_host_code(host):
    bits = np.random.default_rng(3).integers(0, 2**32, 20000, dtype=np.uint32)
    values = bits.view(np.float32)
    values = np.concatenate(
        [values[np.isfinite(values)], np.float32([0.0, -0.0, 1e-45, -1e-45, 2**20, -(2**20), 3e38, 0.5])]
    )
    fixed, key = np.empty(len(values), np.int64), np.empty(len(values), np.int32)
    back = np.empty_like(values)
    scale, limit = ctypes.c_float(2**20), ctypes.c_float(2**20)
    host.sums(pointer(values), len(values), scale, limit, pointer(fixed), pointer(key), pointer(back))
    tensor = torch.from_numpy(values)
    assert np.array_equal(fixed, fixed_point(tensor, 20).numpy())
    assert np.array_equal(key, key_of_float(tensor).numpy())
    same_bits(back, values)


def test_means_are_the_same_as_host_code(host):
    random = np.random.default_rng(4)
    total, count = random.integers(-(2**62), 2**62, 5000), random.integers(1, 2**30, 5000)
    count[:2000] = 2 ** random.integers(0, 31, 2000)
    mean = np.empty(5000, np.float32)
    host.means(pointer(total), pointer(count), 5000, ctypes.c_double(2.0**-20), pointer(mean))
    wanted = torch.from_numpy(total).double() / torch.from_numpy(count).double() * 2.0**-20
    same_bits(mean, wanted.float().numpy())
