// A reduction of FEATURES features in dense voxels; the result does not depend on the order of the atomics.
//
// Most voxels of a cloud hold at most one point, and requests to the L2 cache limit the speed. A point therefore claims
// its voxel with one request. Only a point whose voxel is already claimed combines terms: it moves the earlier point
// and itself into a row, which later points join. The last pass reads the voxels in order, reads single points from the
// cloud, and writes the result. Which point claims a voxel and whose row is used differ from run to run. The combined
// terms do not differ.
//
// The claim of a voxel is stored in place of the first feature of the grid. Its value is 0 for no claim, 1 + the number
// of the voxel's only point, or, with SHARED, 1 + the number of the row that holds all of its points.
//
// Compiled with REDUCTION of term.cuh, TERM_BYTES of its Term, THREADS of a block, POINTS that a thread claims voxels
// for, and CELLS that a thread writes.
#include "voxel/block.cuh"
#include REDUCTION

using namespace robocache;

namespace {

typedef Reduction::Term Term;

constexpr uint32 SHARED = 0x80000000u;
static_assert(sizeof(Term) == TERM_BYTES, "term_bytes of the reduction's Python module");

struct Row {
  Term term[FEATURES];
  Term points;
};

// The features of point `number`.
__device__ __forceinline__ void read_features(const Clouds& clouds, int64 cloud, int64 number, float* value) {
  const unsigned char* bytes = point_at(clouds, cloud, number);
  Point point = {};
  if (ANY_FEATURE && clouds.listed) point = to_grid(clouds, read_point(clouds, bytes));
#pragma unroll
  for (int f = 0; f < FEATURES; ++f) value[f] = feature_at(clouds, bytes, point, f);
}

__device__ __forceinline__ Row row_of(const float* value, float scale, float limit) {
  Row row;
#pragma unroll
  for (int f = 0; f < FEATURES; ++f) row.term[f] = Reduction::term(value[f], scale, limit);
  row.points = 1;
  return row;
}

__device__ __forceinline__ Row row_of(const Clouds& clouds, int64 cloud, int64 number, float scale, float limit) {
  float value[FEATURES];
  read_features(clouds, cloud, number, value);
  return row_of(value, scale, limit);
}

__device__ __forceinline__ Row combined(Row a, Row b) {
#pragma unroll
  for (int f = 0; f < FEATURES; ++f) a.term[f] = Reduction::combined(a.term[f], b.term[f]);
  a.points += b.points;
  return a;
}

// Neighbouring points of one voxel that did not claim it.
struct Others {
  uint32 first, claim;  // number of the first point; the claim that it found
  int length, cell;
};

// Adds them to the voxel's row, or creates the row from them and the voxel's only point so far.
__device__ __forceinline__ void join(
    const Clouds& clouds, int64 cloud, uint32* claims, Row* rows, Others others, float scale, float limit
) {
  uint32 claim = others.claim;
  float value[FEATURES];
  if (!(claim & SHARED)) read_features(clouds, cloud, claim - 1, value);
  Row row = row_of(clouds, cloud, others.first, scale, limit);
  for (int i = 1; i < others.length; ++i) row = combined(row, row_of(clouds, cloud, others.first + i, scale, limit));
  if (!(claim & SHARED)) {
    rows[others.first] = combined(row, row_of(value, scale, limit));
    __threadfence();  // a thread that sees the claim also sees the row
    const uint32 now = atomicCAS(claims + others.cell, claim, (others.first + 1) | SHARED);
    if (now == claim) return;
    claim = now;  // another thread created the row
  }
  __threadfence();
  Row& theirs = rows[(claim & ~SHARED) - 1];
#pragma unroll
  for (int f = 0; f < FEATURES; ++f) Reduction::combine_at(theirs.term + f, row.term[f]);
  if constexpr (Reduction::COUNTED) Reduction::combine_at(&theirs.points, row.points);
}

}  // namespace

// grid (B, F, X, Y, Z): the plane of each cloud's first feature, cleared, becomes the claims. rows (B, N): scratch.
// tally (B, 3), cleared. A thread claims voxels for several points, whose loads overlap. Points that share a voxel are
// few; they are listed, so that few threads process them.
extern "C" __global__ void __launch_bounds__(THREADS, FEATURES <= 4 ? 4 : 2) claim_voxels(
    const __grid_constant__ ClaimArguments arguments
) {
  const Clouds& clouds = arguments.clouds;
  uint32* grid = arguments.grid;
  Row* rows = static_cast<Row*>(arguments.rows);
  uint64* tally = arguments.tally;
  const long long batch = arguments.batch, cells = arguments.cells;
  const float scale = arguments.scale, limit = arguments.limit;
  __shared__ Others list[THREADS * POINTS];
  __shared__ int listed;
  let_next_begin();
  for (long long cloud = blockIdx.y; cloud < batch; cloud += gridDim.y) {
    const int64 start = (int64)blockIdx.x * THREADS * POINTS + threadIdx.x;
    int cell[POINTS], run[POINTS], saturated = 0;
#pragma unroll
    for (int j = 0; j < POINTS; ++j) {
      Placed placed = locate<false>(clouds, cloud, start + j * THREADS);
      if (placed.cell != NO_POINT) {
        bool all_finite = true;
        int clamped = 0;
#pragma unroll
        for (int f = 0; f < FEATURES; ++f) {
          const float value = feature_at(clouds, placed.bytes, placed.point, f);
          all_finite &= finite(value);
          clamped += Reduction::SATURATES && saturates(value, limit);
        }
        if (!all_finite) placed.cell = NOT_FINITE;
        if (placed.cell >= 0) saturated += clamped;
      }
      const Run found = run_of(placed.cell);
      cell[j] = placed.cell;
      run[j] = found.leads && placed.cell >= 0 ? found.length : 0;
    }
    if (threadIdx.x == 0) listed = 0;
    __syncthreads();
    if (cloud == blockIdx.y) wait_for_previous();
    if (saturated) atomicAdd(tally + 3 * cloud + 2, (uint64)saturated);
    uint32* claims = grid + cloud * FEATURES * cells;
    uint32 before[POINTS];
#pragma unroll
    for (int j = 0; j < POINTS; ++j)
      before[j] = run[j] ? atomicCAS(claims + cell[j], 0u, (uint32)(start + j * THREADS) + 1) : 0;
#pragma unroll
    for (int j = 0; j < POINTS; ++j) {
      const int claimed = before[j] == 0;  // claimed by the first point of the run
      if (run[j] <= claimed) continue;
      const uint32 first = (uint32)(start + j * THREADS);
      list[atomicAdd(&listed, 1)] = {first + claimed, claimed ? first + 1 : before[j], run[j] - claimed, cell[j]};
    }
    __syncthreads();
    for (int i = threadIdx.x; i < listed; i += THREADS)
      join(clouds, cloud, claims, rows + cloud * clouds.count, list[i], scale, limit);
#pragma unroll
    for (int j = 0; j < POINTS; ++j) count_refused(tally, cloud, cell[j]);
  }
}

// Replaces claims by features: grid (B, F, X, Y, Z) float32. A thread writes CELLS cells; `aligned`: they are one aligned piece of each
// plane. Cells with a row are listed, because they take long and are few in most clouds.
extern "C" __global__ void __launch_bounds__(THREADS) write_voxels(
    const __grid_constant__ WriteArguments arguments
) {
  const Clouds& clouds = arguments.clouds;
  float* grid = arguments.grid;
  const Row* rows = static_cast<const Row*>(arguments.rows);
  const long long batch = arguments.batch, cells = arguments.cells;
  const float scale = arguments.scale, limit = arguments.limit, unit = arguments.unit;
  const int aligned = arguments.aligned;
  __shared__ uint2 list[THREADS * CELLS];  // cell of the block, and claim
  __shared__ int listed;
  let_next_begin();
  wait_for_previous();
  const int64 block_first = (int64)blockIdx.x * THREADS * CELLS, first = block_first + threadIdx.x * CELLS;
  for (long long cloud = blockIdx.y; cloud < batch; cloud += gridDim.y) {
    if (threadIdx.x == 0) listed = 0;
    __syncthreads();
    float* planes = grid + cloud * FEATURES * cells;
    uint32 claims[CELLS] = {};
    if (aligned) {
      const uint2 both = first < cells ? *reinterpret_cast<const uint2*>(planes + first) : make_uint2(0, 0);
      claims[0] = both.x, claims[1] = both.y;
    } else {
#pragma unroll
      for (int k = 0; k < CELLS; ++k)
        if (first + k < cells) claims[k] = bits_of(planes[first + k]);
    }
    float value[CELLS][FEATURES] = {};
#pragma unroll
    for (int k = 0; k < CELLS; ++k) {  // all loads are in flight before the first is used
      const uint32 claim = claims[k];
      if (claim & SHARED) list[atomicAdd(&listed, 1)] = make_uint2(threadIdx.x * CELLS + k, claim & ~SHARED);
      else if (claim) read_features(clouds, cloud, claim - 1, value[k]);
    }
#pragma unroll
    for (int f = 0; f < FEATURES; ++f) {
      float* plane = planes + f * cells + first;
      float written[CELLS];
#pragma unroll
      for (int k = 0; k < CELLS; ++k) written[k] = Reduction::alone(value[k][f], scale, limit, unit);
      if (aligned) {  // bypasses the caches, which loads use better
        if (first < cells) __stcs(reinterpret_cast<float2*>(plane), make_float2(written[0], written[1]));
      } else {
#pragma unroll
        for (int k = 0; k < CELLS; ++k)
          if (first + k < cells) plane[k] = written[k];
      }
    }
    __syncthreads();
    for (int item = threadIdx.x; item < listed * FEATURES; item += THREADS) {
      const uint2 shared = list[item / FEATURES];
      const int f = item % FEATURES;
      const Row& row = rows[cloud * clouds.count + shared.y - 1];
      planes[f * cells + block_first + shared.x] = Reduction::finished(row.term[f], (int64)row.points, unit);
    }
    __syncthreads();
  }
}
