// Resamples any number of streams to one timeline in one launch.
//
// Blocks of all streams take turns, with a few batches each. Values that they write next to each other in a row meet in
// the L2 cache, and blocks that wait for memory run together with blocks that compute.
//
// Compiled with  TRAITS_CASES  CASE(0, Method::linear, bf16, bf16, 8, 8, 8, 8, 2, 7) CASE(1, ...: the arguments of StreamTraits that
//                              streams have, numbered
//                STREAMS     number of streams
//                TIME        int64 (ns), double or float (seconds)
//                EACH_TARGETS  whether targets are per batch
//                THREADS     of a block
// minimum number of blocks per multiprocessor
//                IN_FLIGHT   items that a thread loads before it stores the first
//                TIMES_IN_FLIGHT  times that it loads before it stores the first
#include "common/dependent_launch.cuh"
#include "resample/tile.cuh"

using namespace robocache;

constexpr int AHEAD = THREADS < 128 ? 2 : 1;  // targets that a thread loads before they are needed

template <class K>
__device__ __forceinline__ void resample(const Job& job, const Stream& stream, int index, int block, char* shared) {
  typedef typename K::In In;
  typedef typename K::Out Out;
  const int thread = threadIdx.x;
  const Tile tile = make_tile<K>(stream, job, block);
  if (STREAMS > 1 && tile.batch >= job.batches) return;  // the last turn may be incomplete
  const SharedParts parts = shared_parts<K>(stream, shared);
  const In* data = data_of<K>(stream, tile);
  wait_for_previous();
  if constexpr (K::staged) data = stage_samples<K>(stream, tile, parts.data, data, thread, THREADS);
  const auto targets = first_targets<K, TIME, EACH_TARGETS, AHEAD>(job, tile, thread, THREADS);
  bool rising = stage_times<K, TIME, TIMES_IN_FLIGHT>(stream, tile, parts.times, thread, THREADS);
  rising = __syncthreads_and(rising);
  select_rows<K, TIME, EACH_TARGETS>(stream, job, tile, parts, rising, index, targets, thread, THREADS);
  if constexpr (K::staged) await_copies();
  __syncthreads();
  if (stream.width == 0 || thread >= stream.lanes) return;
  const int reach = K::shifted ? stream.reach : stream.width, row = divided(thread * K::ITEM, reach, stream.reach_magic);
  Out* out = (Out*)job.out + tile.row * job.pitch + stream.column + tile.column;
  const int d = thread * K::ITEM - row * reach;
  write<K, (K::staged ? 1 : IN_FLIGHT)>(data, stream.width, parts.selections, tile.rows, out, job.pitch, row, d, reach,
                                        stream.step, stream.rest);
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    resample_streams(const __grid_constant__ ResampleArguments<STREAMS> arguments) {
  extern __shared__ __align__(16) char shared[];
  let_next_begin();
  const StreamBlock place = stream_block(arguments, (int)blockIdx.x);
  const Stream& stream = arguments.streams[place.index];
#define CASE(NUMBER, ...) \
  if (stream.traits == NUMBER) resample<StreamTraits<__VA_ARGS__>>(arguments.job, stream, place.index, place.block, shared);
  TRAITS_CASES
#undef CASE
}
