// Mean (or, with MAXIMUM, maximum) of FEATURES features in dense voxels, the same whatever order the atomics come in.
//
// Most voxels of a cloud hold one point or none, so there is a row of sums for every point and not for every voxel. A point
// writes its own features into its row and then claims its voxel; one that comes later adds its features to the row of the
// voxel's owner, in integers; the last pass writes the grid. Which point owns a voxel differs from run to run, what the
// integers add up to does not. What bounds it are bytes and requests: nothing but the owners has to be cleared, and a voxel of
// one point is one sector to the last pass.
#include "voxel_block.cuh"

#ifndef FEATURES
#define FEATURES 1
#define MAXIMUM 0
#endif

using namespace robocache;

namespace {

#if MAXIMUM
typedef int Term;
typedef Maximum Combine;
constexpr Term NOTHING = -2147483647 - 1;  // no finite float has this key
__device__ __forceinline__ Term term(float value, float, float) { return key_of(value); }
__device__ __forceinline__ void add_to(Term* row, Term value) { atomicMax(row, value); }
#else
typedef uint64 Term;
typedef Sum Combine;
constexpr Term NOTHING = 0;
__device__ __forceinline__ Term term(float value, float scale, float limit) {
  return (uint64)fixed_point(value, scale, limit);
}
__device__ __forceinline__ void add_to(Term* row, Term value) { atomicAdd(row, value); }
#endif

constexpr uint32 SHARED = 0x80000000u;  // in owner: the voxel has other points
constexpr int CELLS = 2;                // that a thread writes

// Terms of one point, and neighbouring values of a plane: read and written together where that is possible.
struct __align__(FEATURES * sizeof(Term) % 16 == 0 ? 16 : sizeof(Term)) Row {
  Term term[FEATURES];
};
template <class T>
struct __align__(4 * CELLS) Cells {
  T value[CELLS];
};

}  // namespace

// owner (B, X, Y, Z), cleared: 1 + the number of the point that owns the voxel, | SHARED. Written: rows (B, N), and count
// (B, N), the points that are in a row. tally (B, 3), cleared.
extern "C" __global__ void __launch_bounds__(256) claim_voxels(
    const __grid_constant__ Clouds clouds, uint32* owner, uint32* count, Row* rows, uint64* tally, long long batch,
    long long cells, float scale, float limit
) {
  let_next_begin();
  for (long long cloud = blockIdx.y; cloud < batch; cloud += gridDim.y) {
    Placed placed = locate<false>(clouds, cloud);
    const int64 at = cloud * clouds.count + placed.number;
    Row mine;
    int saturated = 0;
    if (placed.cell != NO_POINT) {
      bool all_finite = true;
#pragma unroll
      for (int f = 0; f < FEATURES; ++f) {
        const float value = feature_at(clouds, placed.bytes, placed.point, f);
        all_finite &= finite(value);
        saturated += !MAXIMUM && placed.cell >= 0 && saturates(value, limit);
        mine.term[f] = term(value, scale, limit);
      }
      if (!all_finite) placed.cell = NOT_FINITE;
      if (placed.cell >= 0) {
        rows[at] = mine;
        count[at] = 1;
      }
    }
    __threadfence();  // who sees the claim sees the row
    if (cloud == blockIdx.y) wait_for_previous();
    if (saturated && placed.cell >= 0) atomicAdd(tally + 3 * cloud + 2, (uint64)saturated);
    const Run run = run_of(placed.cell);
    const bool here = placed.cell >= 0;
    uint32* slot = owner + cloud * cells + placed.cell;
    uint32 first = 0;
    if (here && run.leads) first = atomicCAS(slot, 0u, (uint32)placed.number + 1);
    __threadfence();
    count_refused(tally, cloud, placed.cell);
    const bool owns = here && run.leads && !first;
    if (!__any_sync(~0u, here && !owns)) continue;
    const uint32 owner_of = first ? first & ~SHARED : (uint32)placed.number + 1;
    const int64 row = cloud * clouds.count + __shfl_sync(~0u, owner_of, run.leader) - 1;
    const bool alone = !__any_sync(~0u, here && !run.leads), adds = here && run.leads && run.length > owns;
#pragma unroll
    for (int f = 0; f < FEATURES; ++f) {
      Term total = here && !owns ? mine.term[f] : NOTHING;
      if (!alone) total = over_run(total, run, Combine());
      if (adds) add_to(rows[row].term + f, total);
    }
    if (adds) {
      atomicAdd(count + row, (uint32)(run.length - owns));
      if (!(first & SHARED)) atomicOr(slot, SHARED);
    }
  }
}

// grid (B, F, X, Y, Z) float32. A thread writes CELLS cells; `aligned`: they are one aligned piece of owner and of each plane.
extern "C" __global__ void __launch_bounds__(256) write_voxels(
    const uint32* __restrict__ owner, const uint32* __restrict__ count, const Row* __restrict__ rows,
    float* __restrict__ grid, long long batch, long long number, long long cells, float unit, int aligned
) {
  wait_for_previous();
  const int64 first = ((int64)blockIdx.x * blockDim.x + threadIdx.x) * CELLS;
  if (first >= cells) return;
  for (long long cloud = blockIdx.y; cloud < batch; cloud += gridDim.y) {
    Cells<uint32> owners = {};
    if (aligned) {
      owners = *reinterpret_cast<const Cells<uint32>*>(owner + cloud * cells + first);
    } else {
#pragma unroll
      for (int k = 0; k < CELLS; ++k)
        if (first + k < cells) owners.value[k] = owner[cloud * cells + first + k];
    }
    Row row[CELLS] = {};
#if !MAXIMUM
    uint32 points[CELLS];
#endif
#pragma unroll
    for (int k = 0; k < CELLS; ++k) {  // all loads on their way before the first is used
      const int64 at = cloud * number + (owners.value[k] & ~SHARED) - 1;
      if (owners.value[k]) row[k] = rows[at];
#if !MAXIMUM
      points[k] = owners.value[k] & SHARED ? count[at] : 1;
#endif
    }
#pragma unroll
    for (int f = 0; f < FEATURES; ++f) {
      Cells<float> written = {};
#pragma unroll
      for (int k = 0; k < CELLS; ++k) {
        if (!owners.value[k]) continue;
#if MAXIMUM
        written.value[k] = float_of_key(row[k].term[f]);
#else
        // One value is a float32, whose product with a power of two is exact: the division's result, in less time.
        const int64 sum = (int64)row[k].term[f];
        written.value[k] = points[k] == 1 ? mul((float)sum, unit) : mean_of(sum, points[k], (double)unit);
#endif
      }
      float* plane = grid + (cloud * FEATURES + f) * cells + first;
      if (aligned) {
        *reinterpret_cast<Cells<float>*>(plane) = written;
      } else {
#pragma unroll
        for (int k = 0; k < CELLS; ++k)
          if (first + k < cells) plane[k] = written.value[k];
      }
    }
  }
}
