// Mean (or, with MAXIMUM, maximum) of FEATURES features in dense voxels, the same whatever order the atomics come in.
//
// Most voxels of a sparse cloud hold one point, so sums are not kept for every voxel. The first point to come to a voxel owns
// it; the first of the others lends the row of sums that those others are added to, in integers; the last pass adds the
// owner's own features and writes the grid. Who owns and who lends differs from run to run, the integers do not.
#include "voxel_block.cuh"

#ifndef FEATURES
#define FEATURES 1
#define MAXIMUM 0
#endif

using namespace robocache;

namespace {

constexpr int ROW = FEATURES + !MAXIMUM;  // sums, and for a mean the number of points

__device__ __forceinline__ int64 term(float value, float scale, float limit) {
  return MAXIMUM ? key_of(value) : fixed_point(value, scale, limit);
}

__device__ __forceinline__ int64 combined(int64 a, int64 b) { return MAXIMUM ? max(a, b) : a + b; }

// Over the lanes of a run, in its leading lane.
__device__ __forceinline__ int64 combined_run(int64 value, Run run) {
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const int64 other = __shfl_down_sync(~0u, value, step);
    if (step < run.length) value = combined(value, other);
  }
  return value;
}

}  // namespace

// owner (B, X, Y, Z) and lender (B, N), cleared: 1 + the point's number in its cloud, 0 for none.
// row (B, N): which point's sums it is to be added to; -1 for an owner and for a point not placed.
extern "C" __global__ void __launch_bounds__(256) claim_voxels(
    const __grid_constant__ Clouds clouds, uint32* owner, uint32* lender, int* row, int64* sums, uint64* tally,
    long long batch, long long cells, float limit
) {
  let_next_begin();
  for (long long cloud = blockIdx.y; cloud < batch; cloud += gridDim.y) {
    Placed placed[PER_THREAD];
    locate(clouds, cloud, placed);
    if (cloud == blockIdx.y) wait_for_previous();
    uint32 claimed[PER_THREAD];
#pragma unroll
    for (int k = 0; k < PER_THREAD; ++k) {
      if (placed[k].cell < 0) continue;
      uint32* slot = owner + cloud * cells + placed[k].cell;
      claimed[k] = *(volatile uint32*)slot;
      if (!claimed[k]) claimed[k] = atomicCAS(slot, 0u, (uint32)placed[k].point + 1);
    }
#pragma unroll
    for (int k = 0; k < PER_THREAD; ++k) {
      if (placed[k].point >= clouds.count) continue;
      const int64 at = cloud * clouds.count + placed[k].point;
      int mine = -1;
      if (placed[k].cell >= 0 && claimed[k]) {
        uint32* slot = lender + cloud * clouds.count + claimed[k] - 1;
        uint32 lent = *(volatile uint32*)slot;
        if (!lent) lent = atomicCAS(slot, 0u, (uint32)placed[k].point + 1);
        if (!lent) {
          lent = (uint32)placed[k].point + 1;
          for (int f = 0; f < ROW; ++f) sums[at * ROW + f] = MAXIMUM ? (int64)-2147483648ll : 0;
        }
        mine = (int)lent - 1;
      }
      row[at] = mine;
#if !MAXIMUM
      if (placed[k].cell < 0) continue;
      for (int f = 0; f < FEATURES; ++f)
        if (saturates(feature_of(clouds, placed[k].bytes, f), limit)) atomicAdd(tally + 3 * cloud + 2, 1ull);
#endif
    }
    count_refused(tally, cloud, placed);
  }
}

extern "C" __global__ void __launch_bounds__(256) add_points(
    const __grid_constant__ Clouds clouds, const int* row, int64* sums, long long batch, float scale, float limit
) {
  let_next_begin();
  wait_for_previous();
  for (long long cloud = blockIdx.y; cloud < batch; cloud += gridDim.y) {
    const int64 point = (int64)blockIdx.x * blockDim.x + threadIdx.x;
    const int into = point < clouds.count ? row[cloud * clouds.count + point] : -1;
    if (!__any_sync(~0u, into >= 0)) continue;
    const Run run = run_of(into);
    const bool alone = __all_sync(~0u, run.leads);
    const unsigned char* bytes = into >= 0 ? point_at(clouds, cloud, point) : nullptr;
    int64* sum = sums + (cloud * clouds.count + into) * ROW;
    for (int f = 0; f < FEATURES; ++f) {
      int64 value = into >= 0 ? term(feature_of(clouds, bytes, f), scale, limit) : 0;
      if (!alone) value = combined_run(value, run);
      if (into < 0 || !run.leads) continue;
      if (MAXIMUM) atomicMax((long long*)sum + f, value);
      else atomicAdd((uint64*)sum + f, (uint64)value);
    }
    if (!MAXIMUM && into >= 0 && run.leads) atomicAdd((uint64*)sum + FEATURES, (uint64)run.length);
  }
}

// grid (B, F, X, Y, Z) float32. A thread writes four cells; `aligned` if they are 16 aligned bytes of owner and of each plane.
extern "C" __global__ void __launch_bounds__(256) write_voxels(
    const __grid_constant__ Clouds clouds, const uint32* __restrict__ owner, const uint32* __restrict__ lender,
    const int64* __restrict__ sums, float* __restrict__ grid, long long batch, long long cells, float scale, float limit,
    double unit, int aligned
) {
  wait_for_previous();
  const int64 first = ((int64)blockIdx.x * blockDim.x + threadIdx.x) * 4;
  if (first >= cells) return;
  const int valid = (int)min((int64)4, cells - first);
  for (long long cloud = blockIdx.y; cloud < batch; cloud += gridDim.y) {
    uint32 owners[4] = {};
    if (aligned) *reinterpret_cast<uint4*>(owners) = *reinterpret_cast<const uint4*>(owner + cloud * cells + first);
    else for (int k = 0; k < valid; ++k) owners[k] = owner[cloud * cells + first + k];
    float value[FEATURES][4];
    uint32 lenders[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) {  // all loads on their way before the first is used
      lenders[k] = owners[k] ? lender[cloud * clouds.count + owners[k] - 1] : 0;
#pragma unroll
      for (int f = 0; f < FEATURES; ++f) {
        value[f][k] = 0;
        if (owners[k]) value[f][k] = feature_of(clouds, point_at(clouds, cloud, (int64)owners[k] - 1), f);
      }
    }
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      if (!owners[k]) continue;
      const int64* sum = sums + (cloud * clouds.count + lenders[k] - 1) * ROW;
      const int64 points = MAXIMUM || !lenders[k] ? 1 : 1 + sum[FEATURES];
#pragma unroll
      for (int f = 0; f < FEATURES; ++f) {
        int64 total = term(value[f][k], scale, limit);
        if (lenders[k]) total = combined(total, sum[f]);
        value[f][k] = MAXIMUM ? float_of_key((int)total) : mean_of(total, points, unit);
      }
    }
#pragma unroll
    for (int f = 0; f < FEATURES; ++f) {
      float* plane = grid + (cloud * FEATURES + f) * cells + first;
      if (aligned) *reinterpret_cast<float4*>(plane) = make_float4(value[f][0], value[f][1], value[f][2], value[f][3]);
      else for (int k = 0; k < valid; ++k) plane[k] = value[f][k];
    }
  }
}
