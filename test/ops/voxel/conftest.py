"""The device code of clouds as host code."""

import pytest

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
