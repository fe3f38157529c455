// Finds the cells of a block's points. Device code only.
#pragma once
#include "common/dependent_launch.cuh"
#include "voxel/cloud.cuh"

namespace robocache {

struct Placed {
  const unsigned char* bytes;
  int64 number;  // in its cloud
  int cell;
  Point point;  // in the grid's frame
};

// A point and its cell. JUDGED: a point with a feature that is not finite has no cell, if features are read.
template <bool JUDGED = true>
__device__ __forceinline__ Placed locate(const Clouds& clouds, int64 cloud, int64 number) {
  Placed placed = {nullptr, number, NO_POINT, {}};
  if (placed.number >= points_of(clouds, cloud)) return placed;
  placed.bytes = point_at(clouds, cloud, placed.number);
  placed.point = to_grid(clouds, read_point(clouds, placed.bytes));
  placed.cell = JUDGED ? place(clouds, placed.bytes, placed.point) : cell_of(clouds, placed.point);
  return placed;
}

// The thread's point. If each point takes just one atomic, more points per thread, and so fewer warps, are slower.
__device__ __forceinline__ Placed locate(const Clouds& clouds, int64 cloud) {
  return locate(clouds, cloud, (int64)blockIdx.x * blockDim.x + threadIdx.x);
}

// Adds the points that were not placed to tally (B, 3), with at most two atomics for each block. Every thread must call it.
__device__ __forceinline__ void count_refused(uint64* tally, int64 cloud, int cell) {
  if (!__syncthreads_or(cell == NOT_FINITE || cell == OUTSIDE)) return;
  const int not_finite = __syncthreads_count(cell == NOT_FINITE), outside = __syncthreads_count(cell == OUTSIDE);
  if (threadIdx.x == 0) {
    if (not_finite) atomicAdd(tally + 3 * cloud, (uint64)not_finite);
    if (outside) atomicAdd(tally + 3 * cloud + 1, (uint64)outside);
  }
}

// A run of equal keys in neighbouring lanes of a full warp: neighbours in a lidar scan often share a voxel.
struct Run {
  bool leads;
  int length;  // from this lane to the end of the run
};

template <class T>
__device__ __forceinline__ Run run_of(T key) {
  const int lane = threadIdx.x & 31;
  const T before = __shfl_up_sync(~0u, key, 1);
  const bool leads = lane == 0 || before != key;
  const uint32 leaders = __ballot_sync(~0u, leads), here = ~0u >> (31 - lane), later = leaders & ~here;
  return Run{leads, (later ? __ffs(later) - 1 : 32) - lane};
}

struct Scan {
  int before, total;
};

// Sums over the threads before this one, and over all threads, of a block of WARPS warps. Every thread must call it,
// and a barrier must separate two calls.
template <int WARPS>
__device__ __forceinline__ Scan scan(int value) {
  __shared__ int sums[WARPS];
  const int lane = threadIdx.x & 31, warp = threadIdx.x / 32;
  int through = value;
#pragma unroll
  for (int d = 1; d < 32; d *= 2) {
    const int other = __shfl_up_sync(~0u, through, d);
    if (lane >= d) through += other;
  }
  if (lane == 31) sums[warp] = through;
  __syncthreads();
  int all = lane < WARPS ? sums[lane] : 0;
#pragma unroll
  for (int d = 1; d < WARPS; d *= 2) {
    const int other = __shfl_up_sync(~0u, all, d);
    if (lane >= d) all += other;
  }
  const int before = __shfl_sync(~0u, all, (warp + 31) & 31);
  return Scan{(warp ? before : 0) + through - value, __shfl_sync(~0u, all, WARPS - 1)};
}

}  // namespace robocache
