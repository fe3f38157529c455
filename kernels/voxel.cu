// Dense voxel grids. Each launch but the first may be a programmatic dependent one: it begins while the one before it still
// runs, reads points and finds their cells, and waits before it touches what that one writes.
#include "voxel_block.cuh"

using namespace robocache;

// Clears `bytes` bytes, 16 at a time where they are aligned, and the tally of all clouds.
extern "C" __global__ void clear(
    unsigned char* __restrict__ out, long long bytes, uint64* __restrict__ tally, long long counters
) {
  let_next_begin();
  const long long step = (long long)gridDim.x * blockDim.x, first = (long long)blockIdx.x * blockDim.x + threadIdx.x;
  const long long head = min((long long)(-(long long)out & 15), bytes), vectors = (bytes - head) / 16;
  for (long long i = first; i < vectors; i += step) reinterpret_cast<uint4*>(out + head)[i] = make_uint4(0, 0, 0, 0);
  if (first < head) out[first] = 0;
  if (first < bytes - head - 16 * vectors) out[head + 16 * vectors + first] = 0;
  for (long long i = first; i < counters; i += step) tally[i] = 0;
}

// occupancy: grid (B, X, Y, Z) uint8. Every writer of a voxel writes the same 1.
extern "C" __global__ void __launch_bounds__(256) occupy(
    const __grid_constant__ Clouds clouds, unsigned char* grid, uint64* tally, long long batch, long long cells
) {
  let_next_begin();
  for (long long cloud = blockIdx.y; cloud < batch; cloud += gridDim.y) {
    Placed placed[PER_THREAD];
    locate(clouds, cloud, placed);
    if (cloud == blockIdx.y) wait_for_previous();
#pragma unroll
    for (int k = 0; k < PER_THREAD; ++k)
      if (run_of(placed[k].cell).leads && placed[k].cell >= 0) grid[cloud * cells + placed[k].cell] = 1;
    count_refused(tally, cloud, placed);
  }
}

// occupancy_bits: grid (B, X * Y, words) 32-bit, bit z % 32 of word z / 32; `cells` words to a cloud.
extern "C" __global__ void __launch_bounds__(256) occupy_bits(
    const __grid_constant__ Clouds clouds, uint32* grid, uint64* tally, long long batch, long long cells
) {
  let_next_begin();
  const int depth = clouds.shape[2], words = (depth + 31) / 32;
  for (long long cloud = blockIdx.y; cloud < batch; cloud += gridDim.y) {
    Placed placed[PER_THREAD];
    locate(clouds, cloud, placed);
    if (cloud == blockIdx.y) wait_for_previous();
#pragma unroll
    for (int k = 0; k < PER_THREAD; ++k) {
      if (!run_of(placed[k].cell).leads || placed[k].cell < 0) continue;
      const int z = placed[k].cell % depth;
      uint32* word = grid + cloud * cells + (long long)(placed[k].cell / depth) * words + z / 32;
      const uint32 bit = 1u << z % 32;
      if (!(*(volatile uint32*)word & bit)) atomicOr(word, bit);
    }
    count_refused(tally, cloud, placed);
  }
}

// count: grid (B, X, Y, Z) int32.
extern "C" __global__ void __launch_bounds__(256) count_points(
    const __grid_constant__ Clouds clouds, int* grid, uint64* tally, long long batch, long long cells
) {
  let_next_begin();
  for (long long cloud = blockIdx.y; cloud < batch; cloud += gridDim.y) {
    Placed placed[PER_THREAD];
    locate(clouds, cloud, placed);
    if (cloud == blockIdx.y) wait_for_previous();
#pragma unroll
    for (int k = 0; k < PER_THREAD; ++k) {
      const Run run = run_of(placed[k].cell);
      if (run.leads && placed[k].cell >= 0) atomicAdd(grid + cloud * cells + placed[k].cell, run.length);
    }
    count_refused(tally, cloud, placed);
  }
}

// Sparse forms: the cell of each point in the batched grid, (B * N,) int64, -1 where it is not placed; and, if `rows` is not
// null, its transformed coordinates and its features, (B * N, 3 + F).
extern "C" __global__ void __launch_bounds__(256) locate_points(
    const __grid_constant__ Clouds clouds, long long* cell, uint64* tally, long long batch, long long cells, float* rows,
    float limit
) {
  for (long long cloud = blockIdx.y; cloud < batch; cloud += gridDim.y) {
    Placed placed[PER_THREAD];
    locate(clouds, cloud, placed);
#pragma unroll
    for (int k = 0; k < PER_THREAD; ++k) {
      if (placed[k].point >= clouds.count) continue;
      const long long at = cloud * clouds.count + placed[k].point;
      cell[at] = placed[k].cell >= 0 ? cloud * cells + placed[k].cell : -1;
      if (!rows || placed[k].cell < 0) continue;
      const Point point = to_grid(clouds, read_point(clouds, placed[k].bytes));
      float* row = rows + at * (3 + clouds.features);
      row[0] = point.x;
      row[1] = point.y;
      row[2] = point.z;
      for (int f = 0; f < clouds.features; ++f) {
        row[3 + f] = feature_at(clouds, placed[k].bytes, point, f);
        if (limit > 0 && saturates(row[3 + f], limit)) atomicAdd(tally + 3 * cloud + 2, 1ull);
      }
    }
    count_refused(tally, cloud, placed);
  }
}
