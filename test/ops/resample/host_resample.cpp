// kernels/resample/resample.cu and blend.cu on the CPU: the same headers, a block's threads one after the other.
#include "resample/tile.cuh"

#include <vector>

using namespace robocache;

#ifdef TRAITS_CASES
template <class K>
static void resample(const Job& job, const Stream& stream, int index, int block, char* shared) {
  typedef typename K::In In;
  typedef typename K::Out Out;
  const Tile tile = make_tile<K>(stream, job, block);
  const SharedParts parts = shared_parts<K>(stream, shared);
  const In* data = data_of<K>(stream, tile);
  if (STREAMS > 1 && tile.batch >= job.batches) return;
  if constexpr (K::staged) {
    const In* from = data;
    for (int t = 0; t < THREADS; ++t) data = stage_samples<K>(stream, tile, parts.data, from, t, THREADS);
  }
  bool rising = true;
  for (int t = 0; t < THREADS; ++t) rising = stage_times<K, TIME, TIMES_IN_FLIGHT>(stream, tile, parts.times, t, THREADS) && rising;
  for (int t = 0; t < THREADS; ++t) {
    auto targets = first_targets<K, TIME, EACH_TARGETS, 2>(job, tile, t, THREADS);
    select_rows<K, TIME, EACH_TARGETS>(stream, job, tile, parts, rising, index, targets, t, THREADS);
  }
  if (stream.width == 0) return;
  Out* out = (Out*)job.out + tile.row * job.pitch + stream.column + tile.column;
  for (int t = 0; t < stream.lanes; ++t) {
    int reach = K::shifted ? stream.reach : stream.width, row = divided(t * K::ITEM, reach, stream.reach_magic), d = t * K::ITEM - row * reach;
    write<K, (K::staged ? 1 : IN_FLIGHT)>(data, stream.width, parts.selections, tile.rows, out, job.pitch, row, d, reach, stream.step, stream.rest);
  }
}

// Returns 0, or 1 if the blocks wrote beyond the shared memory that was planned for.
extern "C" int run(const ResampleArguments<STREAMS>* arguments, int blocks, int bytes) {
  const char guard = 0x5a;
  std::vector<char> memory(bytes + 64 + 16, guard);
  char* shared = memory.data() + (16 - (unsigned long long)memory.data() % 16) % 16;
  for (int number = 0; number < blocks; ++number) {
    const StreamBlock place = stream_block(*arguments, number);
    const Stream& stream = arguments->streams[place.index];
#define CASE(NUMBER, ...) \
  if (stream.traits == NUMBER) \
    resample<StreamTraits<__VA_ARGS__>>(arguments->job, stream, place.index, place.block, shared);
    TRAITS_CASES
#undef CASE
  }
  for (int i = 0; i < 64; ++i) {
    if (shared[bytes + i] != guard) return 1;
  }
  return 0;
}
#endif

#ifdef TRAITS
extern "C" int run_blend(const BlendArguments* arguments, int blocks) {
  typedef StreamTraits<TRAITS> K;
  std::vector<Selection> selections(arguments->span);
  for (int block = 0; block < blocks; ++block) {
    const int64 first = (int64)block * arguments->span;
    const int rows = at_most(arguments->rows - first, arguments->span);
    for (int t = 0; t < THREADS; ++t) copy_selection(*arguments, first, rows, selections.data(), t, THREADS);
    K::Out* out = (K::Out*)arguments->out + first * arguments->width;
    const int width = arguments->width, step = THREADS * K::ITEM / width, rest = THREADS * K::ITEM - step * width;
    for (int t = 0; t < THREADS; ++t) {
      int row = t * K::ITEM / width, d = t * K::ITEM - row * width;
      write<K, IN_FLIGHT>((const K::In*)arguments->data, width, selections.data(), rows, out, width, row, d, width, step, rest);
    }
  }
  return 0;
}
#endif
