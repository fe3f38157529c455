"""The device code of clouds as host code, and comparisons."""

import ctypes

import numpy as np
import pytest

from robocache_ros.ops.cuda.kernels import packer
from robocache_ros.ops.voxel.cuda import Clouds
from test.ops.conftest import same_bits

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


@pytest.fixture(scope="session")
def host(host_library):
    return host_library(HOST)


def pointer(array):
    return array.ctypes.data_as(ctypes.c_void_p)


def located(host, clouds, features):
    """The cell of each point and its coordinates and features, by the device code."""
    total = clouds.batch * clouds.count
    cell, rows = np.full(total, -9, np.int32), np.full((total, 3 + features), -9, np.float32)
    packed = packer(Clouds).pack(*clouds.numbers)
    host.locate(ctypes.c_char_p(packed), ctypes.c_longlong(clouds.batch), pointer(cell), pointer(rows))
    return cell, rows


def same_voxels(one, other):
    for name in ("dense", "tally", "coordinates", "num_points", "features"):
        mine, theirs = getattr(one, name), getattr(other, name)
        assert (mine is None) == (theirs is None)
        if mine is not None:
            same_bits(mine, theirs)
