// kernels/resample.cu and blend.cu run on the CPU: the same headers, a block's threads one after the other.
#include "tile.cuh"

#include <vector>

using namespace robocache;

#ifdef KINDS
struct Arguments {
  Job job;
  Stream streams[STREAMS];
  int first[STREAMS];
};

template <class K>
static void resample(const Job& job, const Stream& stream, int index, int block, char* shared) {
  typedef typename K::In In;
  typedef typename K::Out Out;
  const Tile tile = make_tile<K>(stream, job, block);
  const Room room = make_room<K>(stream, shared);
  const In* data = data_of<K>(stream, tile);
  if (STREAMS > 1 && tile.batch >= job.batches) return;
  if constexpr (K::staged) {
    const In* from = data;
    for (int t = 0; t < THREADS; ++t) data = stage_samples<K>(stream, tile, room.data, from, t, THREADS);
  }
  bool rising = true;
  for (int t = 0; t < THREADS; ++t) rising = stage_times<K, TIME, TIMES_IN_FLIGHT>(stream, tile, room.times, t, THREADS) && rising;
  for (int t = 0; t < THREADS; ++t) {
    auto targets = first_targets<K, TIME, EACH_TARGETS, 2>(job, tile, t, THREADS);
    choose<K, TIME, EACH_TARGETS>(stream, job, tile, room, rising, index, targets, t, THREADS);
  }
  if (stream.width == 0) return;
  Out* out = (Out*)job.out + tile.row * job.pitch + stream.column + tile.column;
  for (int t = 0; t < stream.lanes; ++t) {
    int reach = reach_of<K>(stream.width), row = divided(t * K::ITEM, reach, stream.reach_magic), d = t * K::ITEM - row * reach;
    write<K, (K::staged ? 1 : IN_FLIGHT)>(data, stream.width, room.picks, tile.rows, out, job.pitch, row, d, stream.step, stream.rest);
  }
}

// Returns 0, or 1 if the blocks wrote beyond the shared memory that was planned for.
extern "C" int run(const Arguments* arguments, int blocks, int bytes) {
  const char guard = 0x5a;
  std::vector<char> memory(bytes + 64 + 16, guard);
  char* shared = memory.data() + (16 - (unsigned long long)memory.data() % 16) % 16;
  for (int number = 0; number < blocks; ++number) {
    const Job& job = arguments->job;
    int index = 0, turn = STREAMS > 1 ? divided(number, job.turn, job.turn_magic) : 0, block = number - turn * job.turn;
    while (index + 1 < STREAMS && block >= arguments->first[index + 1]) ++index;
    const Stream& stream = arguments->streams[index];
    int end = index + 1 < STREAMS ? arguments->first[index + 1] : job.turn;
    block += turn * (end - arguments->first[index]) - arguments->first[index];
#define CASE(NUMBER, ...) \
  if (stream.kind == NUMBER) resample<Kind<__VA_ARGS__>>(job, stream, index, block, shared);
    KINDS
#undef CASE
  }
  for (int i = 0; i < 64; ++i) {
    if (shared[bytes + i] != guard) return 1;
  }
  return 0;
}
#endif

#ifdef KIND
extern "C" int run_blend(const Chosen* chosen, int blocks) {
  typedef Kind<KIND> K;
  std::vector<Pick> picks(chosen->span);
  for (int block = 0; block < blocks; ++block) {
    const int64 first = (int64)block * chosen->span;
    const int rows = at_most(chosen->rows - first, chosen->span);
    for (int t = 0; t < THREADS; ++t) take(*chosen, first, rows, picks.data(), t, THREADS);
    K::Out* out = (K::Out*)chosen->out + first * chosen->width;
    const int width = chosen->width, step = THREADS * K::ITEM / width, rest = THREADS * K::ITEM - step * width;
    for (int t = 0; t < THREADS; ++t) {
      int row = t * K::ITEM / width, d = t * K::ITEM - row * width;
      write<K, IN_FLIGHT>((const K::In*)chosen->data, width, picks.data(), rows, out, width, row, d, step, rest);
    }
  }
  return 0;
}
#endif
