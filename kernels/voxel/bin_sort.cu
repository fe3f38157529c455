// A reduction of FEATURES features in dense voxels, first half: sorts the points by bin.
//
// One atomic in global memory per point is one request to the L2 cache per point, and these requests limit the speed.
// Instead, a block sorts a tile of points by the bins of their voxels in shared memory, and writes a run of records for
// each bin. In bin_reduce.cu, one block per bin gathers the runs, reduces them in shared memory, and writes every cell
// of the bin once.
//
// A record is a row of features, of one point or of several combined points of one voxel.
//
// Compiled with REDUCTION of term.cuh, SORTERS (threads of a tile), POINTS (points of a tile that each thread sorts),
// and PIECE of cell_bins.cuh.
#include "voxel/cell_bins.cuh"
#include "voxel/block.cuh"
#include "voxel/record.cuh"

using namespace robocache;

namespace {

constexpr uint32 CROWD = 96;  // if one tile has more records in one bin, they are first combined by voxel
constexpr int SLOTS = FEATURES <= 4 ? 64 : 16, PARTS = Reduction::PARTS;  // voxels to combine in; records of each

// Combines the warp's points into records: a run of points in one voxel becomes one record, or two records for the low
// and the high part of its terms. Returns the number of points in the lane's record, 0 for a low part, -1 if the lane
// has no record.
__device__ __forceinline__ int combine(Row& row, int cell, float scale, float unit) {
  constexpr int WORTH = PARTS == 1 ? 2 : 3;
  const Run run = run_of(cell);
  const int alone = cell >= 0 ? 1 : -1;
  if (!__any_sync(~0u, cell >= 0 && run.length >= WORTH)) return alone;
  const int lane = threadIdx.x & 31;
  const uint32 leaders = __ballot_sync(~0u, run.leads);
  const int rank = lane - (31 - __clz(leaders & ~0u >> (31 - lane)));  // position in the run
  const bool merged = cell >= 0 && rank + run.length >= WORTH;
  Term terms[TERMS];
  terms[TERMS - 1] = 1;
#pragma unroll
  for (int f = 0; f < FEATURES; ++f) terms[f] = merged ? Reduction::of_record(row.of[f], scale) : NONE;
  combine_run(terms, run.length);
#pragma unroll
  for (int f = 0; f < FEATURES; ++f) {  // the lane after the leader has the low part
    const Term before = __shfl_up_sync(~0u, terms[f], 1);
    if (merged) row.of[f] = Reduction::record_of(rank ? before : terms[f], rank ? 0 : 1, 1, unit);
  }
  if (!merged) return alone;
  return rank == 0 ? run.length : rank == 1 && PARTS > 1 ? 0 : -1;
}

// The combined records of one voxel of a tile.
struct Slot {
  int cell, records;
  Term terms[TERMS];
};

// Adds a record to the slot of its voxel; returns false if another voxel has that slot.
__device__ __forceinline__ bool join(Slot* slots, int cell, const Row& row, int points, float scale) {
  Slot& slot = slots[(uint32)cell * 0x9e3779b9u >> 16 & (SLOTS - 1)];
  const int before = atomicCAS(&slot.cell, (int)NO_POINT, cell);
  if (before != NO_POINT && before != cell) return false;
  Term terms[TERMS];
  terms[TERMS - 1] = points;
#pragma unroll
  for (int f = 0; f < FEATURES; ++f) terms[f] = Reduction::of_record(row.of[f], scale);
  Reduction::combine_at<TERMS>(slot.terms, terms);
  atomicAdd(&slot.records, 1);
  return true;
}

}  // namespace

// Writes the records of each tile of `tile` points (a multiple of 32) in the order of bins: rows (B, tiles, tile, F);
// words (B, tiles, tile): place in the bin | number of points << 16; runs (B, 1 << bits, tiles): start of a bin's
// records | their number << 16; refused (B, tiles, 3): points that are not finite, points outside, features that
// saturate.
extern "C" __global__ void __launch_bounds__(SORTERS) sort_points(
    const __grid_constant__ SortArguments arguments
) {
  const Clouds& clouds = arguments.clouds;
  float* rows = arguments.rows;
  uint32 *words = arguments.words, *runs = arguments.runs, *refused = arguments.refused;
  const int tiles = arguments.tiles, tile = arguments.tile, bits = arguments.bits;
  const float scale = arguments.scale, limit = arguments.limit, unit = arguments.unit;
  extern __shared__ uint4 memory[];
  __shared__ Slot slots[SLOTS];
  __shared__ uint32 refusals[3];
  const int bins = 1 << bits;
  uint32* starts = reinterpret_cast<uint32*>(memory);                    // (bins) number of records, later their start
  Row* sorted_rows = reinterpret_cast<Row*>(starts + bins);              // (tile)
  uint32* sorted_words = reinterpret_cast<uint32*>(sorted_rows + tile);  // (tile)
  for (int bin = threadIdx.x; bin < bins; bin += SORTERS) starts[bin] = 0;
  if (threadIdx.x < 3) refusals[threadIdx.x] = 0;
  wait_for_previous();  // the previous launch may write the points
  let_next_begin();
  __syncthreads();
  const int64 cloud = blockIdx.y, first = (int64)blockIdx.x * tile;
  const int count = (int)max(0ll, min((int64)tile, points_of(clouds, cloud) - first));
  const bool flat = clouds.width == clouds.count;
  const unsigned char* start = point_at(clouds, cloud, first);
  const auto bytes_of = [&](int number) {
    return flat ? start + number * clouds.point_step : point_at(clouds, cloud, first + number);
  };
  Row row[POINTS];
  Point point[POINTS];
  const auto read = [&](int j) {
    const int number = j * SORTERS + threadIdx.x;
    if (number >= count) return;
    const unsigned char* bytes = bytes_of(number);
    point[j] = read_point(clouds, bytes);
    if (ANY_FEATURE && clouds.listed) return;
#pragma unroll
    for (int f = 0; f < FEATURES; ++f) row[j].of[f] = feature_at(clouds, bytes, point[j], f);
  };
  uint32 word[POINTS], rank[POINTS];  // word of its record; bin << 16 | rank in the bin
  uint32 not_placed = 0, saturated = 0;
  bool crowded = false;
  read(0);
#pragma unroll
  for (int j = 0; j < POINTS; ++j) {
    if (j + 1 < POINTS) read(j + 1);  // in flight while this point is placed; loading all points at once takes longer
    rank[j] = ~0u;
    if (j * SORTERS >= tile) continue;
    const int number = j * SORTERS + threadIdx.x;
    int cell = NO_POINT;
    if (number < count) {
      point[j] = to_grid(clouds, point[j]);
      cell = cell_of(clouds, point[j]);
      bool all_finite = true;
      int clamped = 0;
#pragma unroll
      for (int f = 0; f < FEATURES; ++f) {
        float value = row[j].of[f];
        if (ANY_FEATURE && clouds.listed) value = feature_at(clouds, bytes_of(number), point[j], f);
        all_finite &= finite(value);
        clamped += Reduction::SATURATES && saturates(value, limit);
        row[j].of[f] = Reduction::alone(value, scale, limit, unit);
      }
      if (!all_finite) cell = NOT_FINITE;
      if (cell >= 0) saturated += clamped;
      not_placed += cell == NOT_FINITE ? 1 : cell == OUTSIDE ? 1 << 16 : 0;
    }
    const int points = combine(row[j], cell, scale, unit);
    if (points >= 0) {
      const uint32 bin = bin_of(cell, bits);
      word[j] = place_of(cell, bits) | points << 16;
      const uint32 before = atomicAdd(starts + bin, 1u);
      rank[j] = bin << 16 | before;
      crowded |= before >= CROWD;
    }
  }
  if (__any_sync(~0u, not_placed)) {
    for (int d = 16; d; d /= 2) not_placed += __shfl_down_sync(~0u, not_placed, d);
    if (threadIdx.x % 32 == 0) {
      atomicAdd(refusals, not_placed & 0xffff);
      atomicAdd(refusals + 1, not_placed >> 16);
    }
  }
  if (saturated) atomicAdd(refusals + 2, saturated);
  const int each = max(1, bins / SORTERS), bin = threadIdx.x * each, end = min(bin + each, bins);
  uint32 slot_rank = ~0u;
  if (__syncthreads_or(crowded)) {  // records of crowded bins join the slot of their voxel; then all are ranked again
    for (int i = threadIdx.x; i < SLOTS; i += SORTERS) {
      slots[i].cell = NO_POINT;
      slots[i].records = 0;
      for (int k = 0; k < TERMS; ++k) slots[i].terms[k] = NONE;
    }
    __syncthreads();
#pragma unroll
    for (int j = 0; j < POINTS; ++j) {
      if (rank[j] == ~0u || starts[rank[j] >> 16] <= CROWD) continue;
      const int cell = cell_at(rank[j] >> 16, word[j] & 0xffff, bits);
      if (join(slots, cell, row[j], word[j] >> 16, scale)) rank[j] = ~0u;
    }
    __syncthreads();
    for (int i = bin; i < end; ++i) starts[i] = 0;
    __syncthreads();
#pragma unroll
    for (int j = 0; j < POINTS; ++j) {
      const uint32 of = rank[j] >> 16;
      if (rank[j] != ~0u) rank[j] = of << 16 | atomicAdd(starts + of, 1u);
    }
    const Slot& slot = slots[threadIdx.x / PARTS % SLOTS];
    // At most one record per joined record, so that a tile never has more records than points.
    if (threadIdx.x < SLOTS * PARTS && threadIdx.x % PARTS < slot.records)
      slot_rank = atomicAdd(starts + bin_of(slot.cell, bits), 1u);
    __syncthreads();
  }
  int mine = 0;
  for (int i = bin; i < end; ++i) mine += starts[i];
  const Scan found = scan<SORTERS / 32>(mine);
  int next = found.before;
  for (int i = bin; i < end; ++i) {
    const int length = starts[i];
    runs[((cloud << bits) + i) * tiles + blockIdx.x] = next | length << 16;
    starts[i] = next;
    next += length;
  }
  if (threadIdx.x < 3) refused[(cloud * tiles + blockIdx.x) * 3 + threadIdx.x] = refusals[threadIdx.x];
  __syncthreads();
#pragma unroll
  for (int j = 0; j < POINTS; ++j) {
    if (rank[j] == ~0u) continue;
    const int at = starts[rank[j] >> 16] + (rank[j] & 0xffff);
    sorted_rows[at] = row[j];
    sorted_words[at] = word[j];
  }
  if (slot_rank != ~0u) {
    const Slot& slot = slots[threadIdx.x / PARTS];
    const int part = threadIdx.x % PARTS, at = starts[bin_of(slot.cell, bits)] + slot_rank;
    for (int f = 0; f < FEATURES; ++f)
      sorted_rows[at].of[f] = Reduction::record_of(slot.terms[f], part, min(PARTS, slot.records) - 1, unit);
    sorted_words[at] = place_of(slot.cell, bits) | (part ? 0 : (uint32)slot.terms[TERMS - 1] << 16);
  }
  __syncthreads();
  const int64 to = (cloud * tiles + blockIdx.x) * tile;
  uint4* to_rows = reinterpret_cast<uint4*>(rows + to * FEATURES);
  uint4* to_words = reinterpret_cast<uint4*>(words + to);
  for (int i = threadIdx.x; i < (found.total * FEATURES + 3) / 4; i += SORTERS)
    to_rows[i] = reinterpret_cast<uint4*>(sorted_rows)[i];
  for (int i = threadIdx.x; i < (found.total + 3) / 4; i += SORTERS)
    to_words[i] = reinterpret_cast<uint4*>(sorted_words)[i];
}
