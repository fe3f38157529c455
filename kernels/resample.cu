// Any number of streams onto one timeline in one launch, and rows between chosen rows.
//
// Compiled with  KINDS      CASE(0, LINEAR, bf16, bf16, 8, 8, 8, 8, 0) CASE(1, ...: the Kind of each of the job's kinds
//                STREAMS    how many streams there are
//                TIME       int64 (ns), double or float (seconds)
//                THREADS    of a block
//                IN_FLIGHT  items that a thread loads before it stores the first
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
  const Tile tile = make_tile(stream, job, block);
  const Room room = make_room(stream, shared);
  const In* data = (const In*)stream.data + tile.batch * stream.samples * stream.width;
  if constexpr (K::STAGED) {
    int bytes = tile.batches * stream.samples * stream.width * (int)sizeof(In);
    data = (const In*)stage(room.data, (const char*)data, bytes, threadIdx.x, THREADS);
  }
  bool rising = stage_times<TIME>(stream, tile, room.times, threadIdx.x, THREADS);
  rising = __syncthreads_and(rising);
  choose<K::METHOD, TIME>(stream, job, tile, room, rising, index, threadIdx.x, THREADS);
  if constexpr (K::STAGED) await_copies();
  __syncthreads();
  if (stream.width == 0) return;
  Out* out = (Out*)job.out + tile.row * job.pitch + stream.column;
  write<K, IN_FLIGHT>(data, stream.width, room.picks, tile.rows, out, job.pitch, threadIdx.x, THREADS);
}

extern "C" __global__ void __launch_bounds__(THREADS) resample_streams(const __grid_constant__ Arguments arguments) {
  extern __shared__ __align__(16) char shared[];
  int index = 0;
  while (index + 1 < STREAMS && (int)blockIdx.x >= arguments.streams[index + 1].first_block) ++index;
  const Stream& stream = arguments.streams[index];
  int block = (int)blockIdx.x - stream.first_block;
#define CASE(NUMBER, ...) \
  if (stream.kind == NUMBER) resample<Kind<__VA_ARGS__>>(arguments.job, stream, index, block, shared);
  KINDS
#undef CASE
}
