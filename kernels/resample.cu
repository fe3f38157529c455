// Any number of streams onto one timeline in one launch.
//
// Compiled with  KINDS       CASE(0, LINEAR, bf16, bf16, 8, 8, 8, 8, 2, 7) CASE(1, ...: the Kind of each of the job's kinds
//                STREAMS     how many streams there are
//                TIME        int64 (ns), double or float (seconds)
//                EACH_TARGETS  whether targets are per batch
//                THREADS     of a block
//                BLOCKS      that a multiprocessor should hold
//                IN_FLIGHT   items that a thread loads before it stores the first
#include "dependent.cuh"
#include "tile.cuh"

using namespace robocache;

struct Arguments {
  Job job;
  Stream streams[STREAMS];
};

template <class K>
__device__ __forceinline__ void resample(const Job& job, const Stream& stream, int index, int block, char* shared) {
  typedef typename K::In In;
  typedef typename K::Out Out;
  const int thread = threadIdx.x;
  const Tile tile = make_tile<K>(stream, job, block);
  const Room room = make_room<K>(stream, shared);
  const In* data = data_of<K>(stream, tile);
  wait_for_previous();
  if constexpr (K::staged) {
    int bytes = tile.batches * stream.samples * stream.width * (int)sizeof(In);
    data = (const In*)stage<K::whole>(room.data, (const char*)data, bytes, thread, THREADS);
  }
  const int64 target = target_of<K, TIME, EACH_TARGETS>(job, tile, thread);
  bool rising = stage_times<K, TIME>(stream, tile, room.times, thread, THREADS);
  rising = __syncthreads_and(rising);
  choose<K, TIME, EACH_TARGETS>(stream, job, tile, room, rising, index, target, thread, THREADS);
  if constexpr (K::staged) await_copies();
  __syncthreads();
  if (stream.width == 0 || thread >= stream.lanes) return;
  const int row = divided(thread * K::ITEM, stream.width, stream.width_magic);
  Out* out = (Out*)job.out + tile.row * job.pitch + stream.column;
  write<K, (K::staged ? 1 : IN_FLIGHT)>(data, stream.width, room.picks, tile.rows, out, job.pitch, row, thread * K::ITEM - row * stream.width,
                      stream.step, stream.rest);
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) resample_streams(const __grid_constant__ Arguments arguments) {
  extern __shared__ __align__(16) char shared[];
  let_next_begin();
  int index = 0;
  while (index + 1 < STREAMS && (int)blockIdx.x >= arguments.streams[index + 1].first_block) ++index;
  const Stream& stream = arguments.streams[index];
  int block = (int)blockIdx.x - stream.first_block;
#define CASE(NUMBER, ...) \
  if (stream.kind == NUMBER) resample<Kind<__VA_ARGS__>>(arguments.job, stream, index, block, shared);
  KINDS
#undef CASE
}
