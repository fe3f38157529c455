// Any number of streams onto one timeline in one launch.
//
// Blocks of all streams take turns, a few batches of each: what they write side by side in a row meets in the L2 cache, and
// blocks that wait for memory run beside those that keep it busy.
//
// Compiled with  KINDS       CASE(0, LINEAR, bf16, bf16, 8, 8, 8, 8, 2, 7) CASE(1, ...: the Kind of each of the job's kinds
//                STREAMS     how many streams there are
//                TIME        int64 (ns), double or float (seconds)
//                EACH_TARGETS  whether targets are per batch
//                THREADS     of a block
//                BLOCKS      that a multiprocessor should hold
//                IN_FLIGHT   items that a thread loads before it stores the first
//                TIMES_IN_FLIGHT  times that it loads before it stores the first
#include "dependent.cuh"
#include "tile.cuh"

using namespace robocache;

constexpr int AHEAD = THREADS < 128 ? 2 : 1;  // targets that a thread loads before they are needed

struct Arguments {
  Job job;
  Stream streams[STREAMS];
  int first[STREAMS];  // block of each stream in a turn: all of them in a few words, for every block looks through them
};

template <class K>
__device__ __forceinline__ void resample(const Job& job, const Stream& stream, int index, int block, char* shared) {
  typedef typename K::In In;
  typedef typename K::Out Out;
  const int thread = threadIdx.x;
  const Tile tile = make_tile<K>(stream, job, block);
  if (STREAMS > 1 && tile.batch >= job.batches) return;  // the last turn is not full
  const Room room = make_room<K>(stream, shared);
  const In* data = data_of<K>(stream, tile);
  wait_for_previous();
  if constexpr (K::staged) data = stage_samples<K>(stream, tile, room.data, data, thread, THREADS);
  const auto targets = first_targets<K, TIME, EACH_TARGETS, AHEAD>(job, tile, thread, THREADS);
  bool rising = stage_times<K, TIME, TIMES_IN_FLIGHT>(stream, tile, room.times, thread, THREADS);
  rising = __syncthreads_and(rising);
  choose<K, TIME, EACH_TARGETS>(stream, job, tile, room, rising, index, targets, thread, THREADS);
  if constexpr (K::staged) await_copies();
  __syncthreads();
  if (stream.width == 0 || thread >= stream.lanes) return;
  const int reach = reach_of<K>(stream.width), row = divided(thread * K::ITEM, reach, stream.reach_magic);
  Out* out = (Out*)job.out + tile.row * job.pitch + stream.column + tile.column;
  const int d = thread * K::ITEM - row * reach;
  write<K, (K::staged ? 1 : IN_FLIGHT)>(data, stream.width, room.picks, tile.rows, out, job.pitch, row, d, stream.step,
                                        stream.rest);
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) resample_streams(const __grid_constant__ Arguments arguments) {
  extern __shared__ __align__(16) char shared[];
  let_next_begin();
  int index = 0, block = (int)blockIdx.x;
  if constexpr (STREAMS > 1) {
    const int turn = divided(block, arguments.job.turn, arguments.job.turn_magic);
    const int place = block - turn * arguments.job.turn;
    while (index + 1 < STREAMS && place >= arguments.first[index + 1]) ++index;
    const int first = arguments.first[index];
    const int end = index + 1 < STREAMS ? arguments.first[index + 1] : arguments.job.turn;
    block = turn * (end - first) + place - first;
  }
  const Stream& stream = arguments.streams[index];
#define CASE(NUMBER, ...) \
  if (stream.kind == NUMBER) resample<Kind<__VA_ARGS__>>(arguments.job, stream, index, block, shared);
  KINDS
#undef CASE
}
