// How a block of threads finds its points' cells. Device code only.
#pragma once
#include "voxel.cuh"

namespace robocache {

constexpr int PER_THREAD = 2;  // points, so that a thread has several loads on their way

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
  int64 point;  // number in its cloud
  int cell;
};

// The block's points: thread t has points t, t + blockDim.x, ... of the block's run.
__device__ __forceinline__ void locate(const Clouds& clouds, int64 cloud, Placed (&placed)[PER_THREAD]) {
  const int64 count = points_of(clouds, cloud);
  Point read[PER_THREAD];
#pragma unroll
  for (int k = 0; k < PER_THREAD; ++k) {  // all loads on their way before the first is used
    placed[k].point = ((int64)blockIdx.x * PER_THREAD + k) * blockDim.x + threadIdx.x;
    placed[k].cell = NO_POINT;
    if (placed[k].point < count) {
      placed[k].bytes = point_at(clouds, cloud, placed[k].point);
      read[k] = read_point(clouds, placed[k].bytes);
    }
  }
#pragma unroll
  for (int k = 0; k < PER_THREAD; ++k)
    if (placed[k].point < count) placed[k].cell = place(clouds, placed[k].bytes, to_grid(clouds, read[k]));
}

// Adds the points that were not placed to tally (B, 3), with at most two atomics a block. Every thread must call it.
__device__ __forceinline__ void count_refused(uint64* tally, int64 cloud, const Placed (&placed)[PER_THREAD]) {
  int refused = 0;
#pragma unroll
  for (int k = 0; k < PER_THREAD; ++k) refused |= placed[k].cell == NOT_FINITE || placed[k].cell == OUTSIDE;
  if (!__syncthreads_or(refused)) return;
  int not_finite = 0, outside = 0;
#pragma unroll
  for (int k = 0; k < PER_THREAD; ++k) {
    not_finite += __syncthreads_count(placed[k].cell == NOT_FINITE);
    outside += __syncthreads_count(placed[k].cell == OUTSIDE);
  }
  if (threadIdx.x == 0) {
    if (not_finite) atomicAdd(tally + 3 * cloud, (uint64)not_finite);
    if (outside) atomicAdd(tally + 3 * cloud + 1, (uint64)outside);
  }
}

// Runs of equal keys in neighbouring lanes of a full warp: a scan's neighbours often share a voxel.
struct Run {
  bool leads;
  int length;  // of the leading lane's run
};

__device__ __forceinline__ Run run_of(long long key) {
  const int lane = threadIdx.x & 31;
  const long long before = __shfl_up_sync(~0u, key, 1);
  const bool leads = lane == 0 || before != key;
  const uint32 later = __ballot_sync(~0u, leads) & ~(~0u >> (31 - lane));  // leaders in higher lanes
  return Run{leads, (later ? __ffs(later) - 1 : 32) - lane};
}

}  // namespace robocache
