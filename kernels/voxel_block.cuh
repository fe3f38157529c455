// How a block of threads finds its points' cells. Device code only.
#pragma once
#include "voxel.cuh"

namespace robocache {

// Lets the next launch begin; its threads wait in `wait_for_previous` until this one has ended.
__device__ __forceinline__ void let_next_begin() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

__device__ __forceinline__ void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

struct Placed {
  const unsigned char* bytes;
  int64 number;  // in its cloud
  int cell;
  Point point;  // in the grid's frame
};

// The thread's point and its cell. JUDGED: by its features, too. More points to a thread, and so fewer warps, is slower.
template <bool JUDGED = true>
__device__ __forceinline__ Placed locate(const Clouds& clouds, int64 cloud) {
  Placed placed = {nullptr, (int64)blockIdx.x * blockDim.x + threadIdx.x, NO_POINT, {}};
  if (placed.number >= points_of(clouds, cloud)) return placed;
  placed.bytes = point_at(clouds, cloud, placed.number);
  placed.point = to_grid(clouds, read_point(clouds, placed.bytes));
  placed.cell = JUDGED ? place(clouds, placed.bytes, placed.point) : cell_of(clouds, placed.point);
  return placed;
}

// Adds the points that were not placed to tally (B, 3), with at most two atomics a block. Every thread must call it.
__device__ __forceinline__ void count_refused(uint64* tally, int64 cloud, int cell) {
  if (!__syncthreads_or(cell == NOT_FINITE || cell == OUTSIDE)) return;
  const int not_finite = __syncthreads_count(cell == NOT_FINITE), outside = __syncthreads_count(cell == OUTSIDE);
  if (threadIdx.x == 0) {
    if (not_finite) atomicAdd(tally + 3 * cloud, (uint64)not_finite);
    if (outside) atomicAdd(tally + 3 * cloud + 1, (uint64)outside);
  }
}

// Runs of equal keys in neighbouring lanes of a full warp: a scan's neighbours often share a voxel.
struct Run {
  bool leads;
  int leader;  // the lane that does
  int length;  // from this lane to the run's end
};

template <class T>
__device__ __forceinline__ Run run_of(T key) {
  const int lane = threadIdx.x & 31;
  const T before = __shfl_up_sync(~0u, key, 1);
  const bool leads = lane == 0 || before != key;
  const uint32 leaders = __ballot_sync(~0u, leads), here = ~0u >> (31 - lane), later = leaders & ~here;
  return Run{leads, 31 - __clz(leaders & here), (later ? __ffs(later) - 1 : 32) - lane};
}

struct Sum {
  template <class T>
  __device__ __forceinline__ T operator()(T a, T b) const { return a + b; }
};
struct Maximum {
  template <class T>
  __device__ __forceinline__ T operator()(T a, T b) const { return a > b ? a : b; }
};

// A value of each lane combined over its run, in the lane that leads it. Every lane of the warp must call it.
template <class T, class Operation>
__device__ __forceinline__ T over_run(T value, Run run, Operation operation) {
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const T other = __shfl_down_sync(~0u, value, step);
    if (step < run.length) value = operation(value, other);
  }
  return value;
}

}  // namespace robocache
