// Mean (or, with MAXIMUM, maximum) of FEATURES features in dense voxels, the same whatever order the atomics come in.
//
// Most voxels of a cloud hold one point or none, so there is a row of sums for every point and not for every voxel. The first
// point to come to a voxel owns it, the others are added to the owner's row, in integers, and the last pass adds the owner's
// own features and writes the grid. It reads one sector for a voxel of one point: requests are what bounds it. Which point owns a voxel differs from run to run; what the integers add up to does not.
#include "voxel_block.cuh"

#ifndef FEATURES
#define FEATURES 1
#define MAXIMUM 0
#endif

using namespace robocache;

namespace {

// A sum of nothing is 0; so is the maximum of nothing, as no finite float has that key.
#if MAXIMUM
typedef uint32 Term;
typedef Maximum Combine;
__device__ __forceinline__ Term term(float value, float, float) { return (uint32)key_of(value) ^ 0x80000000u; }
__device__ __forceinline__ void add_to(Term* row, Term value) { atomicMax(row, value); }
#else
typedef uint64 Term;
typedef Sum Combine;
__device__ __forceinline__ Term term(float value, float scale, float limit) {
  return (uint64)fixed_point(value, scale, limit);
}
__device__ __forceinline__ void add_to(Term* row, Term value) { atomicAdd(row, value); }
#endif

constexpr uint32 SHARED = 0x80000000u;  // in owner: the voxel has other points

// FEATURES floats of one point, read and written together where that is possible.
struct __align__(FEATURES % 4 == 0 ? 16 : 4) Features {
  float value[FEATURES];
};

}  // namespace

// Cleared: owner (B, X, Y, Z), 1 + the number of the point that owns the voxel, | SHARED; others (B, N), how many were added to
// the point's row of sums (B, N, FEATURES); tally (B, 3). Written: own (B, N), the features of each point placed.
extern "C" __global__ void __launch_bounds__(256) claim_voxels(
    const __grid_constant__ Clouds clouds, uint32* owner, uint32* others, Term* sums, Features* own, uint64* tally,
    long long batch, long long cells, float scale, float limit
) {
  let_next_begin();
  for (long long cloud = blockIdx.y; cloud < batch; cloud += gridDim.y) {
    Placed placed = locate<false>(clouds, cloud);
    Features read;
    int saturated = 0;
    if (placed.cell != NO_POINT) {
      bool all_finite = true;
#pragma unroll
      for (int f = 0; f < FEATURES; ++f) {
        read.value[f] = feature_at(clouds, placed.bytes, placed.point, f);
        all_finite &= finite(read.value[f]);
      }
      if (!all_finite) placed.cell = NOT_FINITE;
      if (placed.cell >= 0) {
#pragma unroll
        for (int f = 0; f < FEATURES; ++f) saturated += !MAXIMUM && saturates(read.value[f], limit);
        own[cloud * clouds.count + placed.number] = read;
      }
    }
    if (cloud == blockIdx.y) wait_for_previous();
    if (saturated) atomicAdd(tally + 3 * cloud + 2, (uint64)saturated);
    count_refused(tally, cloud, placed.cell);
    const Run run = run_of(placed.cell);
    const bool here = placed.cell >= 0;
    uint32* slot = owner + cloud * cells + placed.cell;
    uint32 first = 0;
    if (here && run.leads) first = atomicCAS(slot, 0u, (uint32)placed.number + 1);
    const bool owns = here && run.leads && !first;
    if (!__any_sync(~0u, here && !owns)) continue;
    const uint32 mine = first ? first & ~SHARED : (uint32)placed.number + 1;
    const int64 row = cloud * clouds.count + __shfl_sync(~0u, mine, run.leader) - 1;
    const bool alone = !__any_sync(~0u, here && !run.leads), adds = here && run.leads && run.length > owns;
#pragma unroll
    for (int f = 0; f < FEATURES; ++f) {
      Term total = here && !owns ? term(read.value[f], scale, limit) : 0;
      if (!alone) total = over_run(total, run, Combine());
      if (adds) add_to(sums + row * FEATURES + f, total);
    }
    if (adds) {
      atomicAdd(others + row, (uint32)(run.length - owns));
      if (!(first & SHARED)) atomicOr(slot, SHARED);
    }
  }
}

// grid (B, F, X, Y, Z) float32. A thread writes four cells; `aligned` if they are 16 aligned bytes of owner and of each plane.
extern "C" __global__ void __launch_bounds__(256) write_voxels(
    const uint32* __restrict__ owner, const uint32* __restrict__ others, const Term* __restrict__ sums,
    const Features* __restrict__ own, float* __restrict__ grid, long long batch, long long count, long long cells,
    float scale, float limit, float unit, int aligned
) {
  wait_for_previous();
  const int64 first = ((int64)blockIdx.x * blockDim.x + threadIdx.x) * 4;
  if (first >= cells) return;
  const int valid = (int)min((int64)4, cells - first);
  for (long long cloud = blockIdx.y; cloud < batch; cloud += gridDim.y) {
    uint32 owners[4];
    if (aligned) {
      const uint4 four = *reinterpret_cast<const uint4*>(owner + cloud * cells + first);
      owners[0] = four.x, owners[1] = four.y, owners[2] = four.z, owners[3] = four.w;
    } else {
#pragma unroll
      for (int k = 0; k < 4; ++k) owners[k] = k < valid ? owner[cloud * cells + first + k] : 0;
    }
    Features read[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) {  // all loads on their way before the first is used
      if (owners[k]) {
        read[k] = own[cloud * count + (owners[k] & ~SHARED) - 1];
      } else {
#pragma unroll
        for (int f = 0; f < FEATURES; ++f) read[k].value[f] = 0;
      }
    }
#pragma unroll
    for (int k = 0; k < 4; ++k) {
#if !MAXIMUM
#pragma unroll
      for (int f = 0; f < FEATURES; ++f)
        if (!(owners[k] & SHARED)) read[k].value[f] = mean_of_one(read[k].value[f], scale, limit, unit);
#endif
      if (!(owners[k] & SHARED)) continue;
      const int64 point = cloud * count + (owners[k] & ~SHARED) - 1;
      const Term* row = sums + point * FEATURES;
#if !MAXIMUM
      const int64 points = 1 + (int64)others[point];
#endif
#pragma unroll
      for (int f = 0; f < FEATURES; ++f) {
        const Term total = Combine()(term(read[k].value[f], scale, limit), row[f]);
#if MAXIMUM
        read[k].value[f] = float_of_key((int)(total ^ 0x80000000u));
#else
        read[k].value[f] = mean_of((int64)total, points, (double)unit);
#endif
      }
    }
#pragma unroll
    for (int f = 0; f < FEATURES; ++f) {
      float* plane = grid + (cloud * FEATURES + f) * cells + first;
      if (aligned) {
        *reinterpret_cast<float4*>(plane) = make_float4(read[0].value[f], read[1].value[f], read[2].value[f], read[3].value[f]);
      } else {
#pragma unroll
        for (int k = 0; k < 4; ++k)
          if (k < valid) plane[k] = read[k].value[f];
      }
    }
  }
}
