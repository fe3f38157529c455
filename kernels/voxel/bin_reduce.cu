// A reduction of FEATURES features in dense voxels, second half: reduces the records of bin_sort.cu into the grid.
//
// Compiled with REDUCTION of term.cuh, REDUCERS (threads of a bin), and PIECE of cell_bins.cuh.
#include "voxel/cell_bins.cuh"
#include "voxel/block.cuh"
#include "voxel/record.cuh"

using namespace robocache;

namespace {

constexpr int RECORDS = FEATURES <= 4 ? 2 : 1;  // records that each thread loads at once

// The records of a cloud, and the runs of a bin.
struct Sorted {
  const Row* rows;
  const uint32 *words, *runs;
  int tiles, tile;
};

// Calls `take` with each record of the bin and its number, from 1 on, in full warps; number 0 means no record. Returns the number of
// records. If it exceeds `capacity`, `take` does not receive all of them.
template <class Take>
__device__ __forceinline__ int gather(const Sorted& sorted, int capacity, Take take) {
  __shared__ int before[REDUCERS], from[REDUCERS];  // records of earlier tiles; place of a record minus its number
  int taken = 0;
  for (int base = 0; base < sorted.tiles && taken <= capacity; base += REDUCERS) {
    const int tile = base + threadIdx.x;
    const uint32 run = tile < sorted.tiles ? sorted.runs[tile] : 0;
    const Scan found = scan<REDUCERS / 32>(run >> 16);
    before[threadIdx.x] = found.before;
    from[threadIdx.x] = tile * sorted.tile + (int)(run & 0xffff) - found.before;
    __syncthreads();
    const int wanted = taken + found.total <= capacity ? found.total : 0;
    for (int first = threadIdx.x & ~31; first < wanted; first += REDUCERS * RECORDS) {
      Row row[RECORDS];
      uint32 word[RECORDS];
#pragma unroll
      for (int k = 0; k < RECORDS; ++k) {  // all loads are in flight before the first is used
        const int i = first + (threadIdx.x & 31) + k * REDUCERS;
        if (i >= wanted) continue;
        int of = 0;
#pragma unroll
        for (int step = REDUCERS / 2; step; step /= 2)
          if (before[of + step] <= i) of += step;
        word[k] = sorted.words[from[of] + i];
        row[k] = sorted.rows[from[of] + i];
      }
#pragma unroll
      for (int k = 0; k < RECORDS; ++k) {
        const int i = first + (threadIdx.x & 31) + k * REDUCERS;
        take(i < wanted ? taken + i + 1 : 0, word[k], row[k]);
      }
    }
    taken += found.total;
    __syncthreads();
  }
  return taken;
}

// Reduces a crowded bin: cells that hold points are numbered in the order of their occurrence. Their terms are combined
// in shared memory, for as many cells at a time as fit.
__device__ __noinline__ void reduce_crowded(
    Sorted sorted, float* planes, int cells, int bin, int places, int bits, void* memory, int bytes, float scale, float unit
) {
  __shared__ uint32 numbered;
  uint32* number = static_cast<uint32*>(memory);           // (places) number of the cell, from 1 on; 0: no points
  Term* sums = reinterpret_cast<Term*>(number + places);  // (room, TERMS)
  const uint32 room = (bytes - 4 * places) / (TERMS * (int)sizeof(Term));
  for (int place = threadIdx.x; place < places; place += REDUCERS) number[place] = 0;
  if (threadIdx.x == 0) numbered = 0;
  for (uint32 first = 0; first == 0 || first < numbered; first += room) {
    for (int i = threadIdx.x; i < room * TERMS; i += REDUCERS) sums[i] = NONE;
    __syncthreads();
    gather(sorted, 0x7fffffff, [&](int record, uint32 word, const Row& row) {
      const int place = record ? (int)(word & 0xffff) : -1;
      const Run run = run_of(place);
      Term terms[TERMS];
      terms[TERMS - 1] = record ? word >> 16 : 0;
#pragma unroll
      for (int f = 0; f < FEATURES; ++f) terms[f] = record ? Reduction::of_record(row.of[f], scale) : NONE;
      combine_run(terms, run.length);
      if (!record || !run.leads) return;
      uint32 mine = atomicAdd(number + place, 0u);
      if (!mine) {
        const uint32 next = atomicAdd(&numbered, 1u) + 1;
        mine = atomicCAS(number + place, 0u, next);
        if (!mine) mine = next;  // else another thread numbered it first, and `next` stays unused
      }
      if (mine - 1 - first < room) Reduction::combine_at<TERMS>(sums + (mine - 1 - first) * TERMS, terms);
    });
    for (int place = threadIdx.x; place < places; place += REDUCERS) {
      const int cell = cell_at(bin, place, bits);
      const bool empty = number[place] == 0;
      const uint32 mine = number[place] - 1 - first;
      if (cell >= cells || (empty ? first > 0 : mine >= room)) continue;
      const Term* of = sums + mine * TERMS;
#pragma unroll
      for (int f = 0; f < FEATURES; ++f)
        planes[(int64)f * cells + cell] = empty ? 0 : Reduction::finished(of[f], (int64)of[TERMS - 1], unit);
    }
    __syncthreads();
  }
}

}  // namespace

// Writes grid (B, F, X, Y, Z) from the records, with one block per bin; and tally (B, 3), the points that were not
// placed.
extern "C" __global__ void __launch_bounds__(REDUCERS, FEATURES <= 8 ? 4 : 2) reduce_bins(
    const __grid_constant__ BinArguments arguments
) {
  const Row* rows = reinterpret_cast<const Row*>(arguments.rows);
  const uint32 *words = arguments.words, *runs = arguments.runs, *refused = arguments.refused;
  const int cells = arguments.cells, tiles = arguments.tiles, tile = arguments.tile, bits = arguments.bits;
  const int places = arguments.places, capacity = arguments.capacity, aligned = arguments.aligned;
  const float scale = arguments.scale, unit = arguments.unit;
  constexpr int LONG = 64;
  extern __shared__ uint4 memory[];
  __shared__ int listed;
  // Records are numbered from 1 on. Number 0 means no record; its row is the row of an empty cell.
  Row* row = reinterpret_cast<Row*>(memory);                                      // (capacity + 4)
  uint32* head = reinterpret_cast<uint32*>(row + capacity + 4);                   // (places) first record of the cell
  uint32* link = head + places;                                                   // (capacity + 4) next record of the same cell
  unsigned short* points = reinterpret_cast<unsigned short*>(link + capacity + 4);  // (capacity + 4)
  unsigned short* list = points + capacity + 4;                                   // (capacity / 2) first records with a next
  for (int i = threadIdx.x; i < (places + capacity + 4) / 4; i += REDUCERS)
    reinterpret_cast<uint4*>(head)[i] = make_uint4(0, 0, 0, 0);
  if (threadIdx.x < FEATURES) row[0].of[threadIdx.x] = 0;
  if (threadIdx.x == 0) listed = 0;
  let_next_begin();
  wait_for_previous();
  const int64 cloud = blockIdx.y, records = cloud * ((int64)tiles * tile);
  const int bin = blockIdx.x;
  const Sorted sorted = {rows + records, words + records, runs + ((cloud << bits) + bin) * tiles, tiles, tile};
  float* planes = arguments.grid + cloud * FEATURES * cells;
  const int taken = gather(sorted, capacity, [&](int number, uint32 word, const Row& values) {
    if (!number) return;
    row[number] = values;
    points[number] = (unsigned short)(word >> 16);
    const uint32 first = atomicCAS(head + (word & 0xffff), 0u, (uint32)number);
    if (!first) return;
    const uint32 next = atomicExch(link + first, (uint32)number);
    if (next) link[number] = next;
    else list[atomicAdd(&listed, 1)] = (unsigned short)first;
  });
  if (bin == 0 && threadIdx.x < 96) {
    uint64 sum = 0;
    for (int i = threadIdx.x & 31; i < tiles; i += 32) sum += refused[(cloud * tiles + i) * 3 + threadIdx.x / 32];
    for (int d = 16; d; d /= 2) sum += __shfl_down_sync(~0u, sum, d);
    if (threadIdx.x % 32 == 0) arguments.tally[3 * cloud + threadIdx.x / 32] = sum;
  }
  bool crowded = taken > capacity;
  for (int item = threadIdx.x; item < (crowded ? 0 : listed * FEATURES); item += REDUCERS) {
    const int first = list[item / FEATURES], f = item % FEATURES;
    Term sum = Reduction::of_record(row[first].of[f], scale);
    int count = points[first], steps = 0;
    for (int i = link[first]; i && steps < LONG; i = link[i], ++steps) {
      sum = Reduction::combined(sum, Reduction::of_record(row[i].of[f], scale));
      count += points[i];
    }
    crowded |= steps == LONG;
    row[first].of[f] = Reduction::finished(sum, count, unit);
  }
  if (__syncthreads_or(crowded)) {
    reduce_crowded(sorted, planes, cells, bin, places, bits, memory, arguments.bytes, scale, unit);
  } else if (aligned) {  // stores bypass the caches, which loads use better
    for (int place = threadIdx.x * 4; place < places; place += REDUCERS * 4) {
      const int cell = cell_at(bin, place, bits);
      if (cell >= cells) continue;
      const uint4 first = *reinterpret_cast<const uint4*>(head + place);
      const Row a = row[first.x], b = row[first.y], c = row[first.z], d = row[first.w];
#pragma unroll
      for (int f = 0; f < FEATURES; ++f)
        __stcs(reinterpret_cast<float4*>(planes + (int64)f * cells + cell), make_float4(a.of[f], b.of[f], c.of[f], d.of[f]));
    }
  } else {
    for (int place = threadIdx.x; place < places; place += REDUCERS) {
      const int cell = cell_at(bin, place, bits);
      if (cell >= cells) continue;
#pragma unroll
      for (int f = 0; f < FEATURES; ++f) planes[(int64)f * cells + cell] = row[head[place]].of[f];
    }
  }
}
