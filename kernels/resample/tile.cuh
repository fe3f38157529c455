// The part of a resampling that one block computes, in steps with barriers between them. All threads take part in each
// step:
//
//   stage_times, stage_samples   copy times, and the samples if most of them are needed, into shared memory
//   select_rows                  one thread per row of the tile selects its samples
//   write                        one thread per item, a few elements of a row, blends, rounds and stores
//
// When compiled for the host, each step runs for one thread after another, so that tests without a GPU execute this
// code.
#pragma once
#include "resample/arguments.cuh"
#include "resample/item.cuh"
#include "resample/select.cuh"

namespace robocache {

struct Tile {
  int64 row;  // its first row of the output
  int batch, batches, start, rows;
  int column;  // its first of the stream's columns
};

struct SharedParts {  // shared memory of a block, each part at a multiple of 16 bytes
  Selection* selections;
  int64* times;
  char* data;
};

HD int at_most(int64 a, int b) { return a < b ? (int)a : b; }

struct StreamBlock {
  int index;  // of the stream
  int block;  // index among the stream's blocks
};

// Blocks of all streams take turns: finds the stream of a block of the launch, and the block's number in that stream.
template <int COUNT>
HD StreamBlock stream_block(const ResampleArguments<COUNT>& arguments, int block) {
  int index = 0;
  if constexpr (COUNT > 1) {
    const int turn = divided(block, arguments.job.turn, arguments.job.turn_magic);
    const int place = block - turn * arguments.job.turn;
    while (index + 1 < COUNT && place >= arguments.first[index + 1]) ++index;
    const int first = arguments.first[index];
    const int end = index + 1 < COUNT ? arguments.first[index + 1] : arguments.job.turn;
    block = turn * (end - first) + place - first;
  }
  return StreamBlock{index, block};
}

template <class K>
HD Tile make_tile(const Stream& stream, const Job& job, int block) {
  Tile tile;
  int group = block, number = 0;
  tile.column = 0;
  if constexpr (K::parted) {
    group = block >> stream.part_bits;
    tile.column = (block - (group << stream.part_bits)) * stream.width;
  }
  if (stream.tiles > 1) number = group, group = (uint32)group / (uint32)stream.tiles, number -= group * stream.tiles;
  tile.batch = K::grouped ? group * stream.group : group;
  tile.batches = K::grouped ? at_most(job.batches - tile.batch, stream.group) : 1;
  tile.start = number * stream.span;
  int targets = at_most(job.count - tile.start, stream.span);
  tile.rows = tile.batches * targets;
  tile.row = (int64)tile.batch * job.count + tile.start;
  return tile;
}

// The samples of a tile's first batch.
template <class K>
HD const typename K::In* data_of(const Stream& stream, const Tile& tile) {
  auto data = (const typename K::In*)stream.data;
  const int pitch = K::parted ? stream.width << stream.part_bits : stream.width;
  if constexpr (K::wide) data += (int64)tile.batch * stream.samples * pitch;
  else data += (int64)tile.batch * (stream.samples * pitch);
  if constexpr (K::parted) data += tile.column;
  hold(data);
  return data;
}

template <class K>
HD SharedParts shared_parts(const Stream& stream, char* shared) {
  SharedParts parts;
  parts.selections = (Selection*)shared;
  parts.times = (int64*)(parts.selections + stream.group * stream.span);
  parts.data = (char*)(parts.times + (K::staged_times ? (K::each_times ? stream.group : 1) << K::STEPS : 0));
  return parts;
}

// Copies a tile's samples to shared memory with all threads; they are at the returned address after `await_copies`.
template <class K>
HD const typename K::In* stage_samples(const Stream& stream, const Tile& tile, char* to, const typename K::In* data,
                                       int thread, int threads) {
  typedef typename K::In In;
  if constexpr (K::parted) {
    constexpr int EACH = 16 / sizeof(In);  // elements per copy
    const int total = stream.samples * stream.width, pitch = stream.width << stream.part_bits;
    ROLLED
    for (int i = thread * EACH; i < total; i += threads * EACH) {
      const int row = divided(i, stream.width, stream.width_magic);
      copy_async(to + i * sizeof(In), data + ((int64)row * (pitch - stream.width) + i));
    }
    return (const In*)to;
  } else {
    const int bytes = tile.batches * stream.samples * stream.width * (int)sizeof(In);
    return (const In*)stage<K::whole>(to, (const char*)data, bytes, thread, threads);
  }
}

template <class K>
HD int samples_of(const Stream& stream, int batch) {
  if constexpr (!K::ragged) return stream.samples;
  int64 length = stream.lengths[batch];
  return length < 0 ? 0 : at_most(length, stream.samples);
}

template <class K, class Time>
HD const Time* times_of(const Stream& stream, int batch) {
  return (const Time*)stream.times + (K::each_times ? (int64)batch * stream.samples : 0);
}

// Copies the times of the tile's batches to shared memory as ns, if planned. Returns whether the times that this thread
// read increase. DEPTH times are loaded at once.
template <class K, class Time, int DEPTH>
HD bool stage_times(const Stream& stream, const Tile& tile, int64* staged, int thread, int threads) {
  const Time* times = times_of<K, Time>(stream, tile.batch);
  const int rows = K::each_times && K::grouped ? tile.batches : 1;
  const int total = K::staged_times ? rows << K::STEPS : stream.samples;
  bool rising = true;
  ROLLED
  for (int begin = thread; begin < total; begin += DEPTH * threads) {
    Time first[DEPTH], next[DEPTH];
    bool some[DEPTH], last[DEPTH];
    UNROLL
    for (int n = 0; n < DEPTH; ++n) {
      int place = begin + n * threads;
      int row = K::staged_times && K::grouped ? place >> K::STEPS : 0;
      int i = K::staged_times ? place - (row << K::STEPS) : place;
      int size = place >= total ? 0 : K::each_times ? samples_of<K>(stream, tile.batch + row) : stream.samples;
      some[n] = i < size, last[n] = i + 1 == size;
      const Time* at = times + (row * stream.samples + i);
      first[n] = some[n] ? at[0] : Time();
      next[n] = some[n] && !last[n] ? at[1] : first[n];
    }
    UNROLL
    for (int n = 0; n < DEPTH; ++n) {
      int64 stamp = some[n] ? nanoseconds(first[n]) : FOREVER;
      if (some[n]) rising = rising && stamp != NEVER && (last[n] || stamp < nanoseconds(next[n]));
      if (K::staged_times && begin + n * threads < total) staged[begin + n * threads] = stamp;
    }
  }
  return rising;
}

// The target of a row of the tile, in ns; any value for a row after the end.
template <class K, class Time, bool EACH_TARGET>
HD int64 target_of(const Job& job, const Tile& tile, int row) {
  if (row >= tile.rows) return 0;
  auto targets = (const Time*)job.targets;
  if constexpr (EACH_TARGET) return nanoseconds(targets[tile.row + row]);
  if constexpr (K::grouped) row -= divided(row, job.count, job.count_magic) * job.count;
  return nanoseconds(targets[tile.start + row]);
}

// The thread's next targets, loaded before they are needed.
template <int AHEAD>
struct Targets {
  int64 at[AHEAD];
};

template <class K, class Time, bool EACH_TARGET, int AHEAD>
HD Targets<AHEAD> first_targets(const Job& job, const Tile& tile, int thread, int threads) {
  Targets<AHEAD> targets;
  UNROLL
  for (int n = 0; n < AHEAD; ++n) targets.at[n] = target_of<K, Time, EACH_TARGET>(job, tile, thread + n * threads);
  return targets;
}

// Writes each row's samples to `selections`, counted from the tile's first batch, and valid and age to the output.
// `targets` are the targets of the thread's first rows, loaded before the barrier that the times need.
template <class K, class Time, bool EACH_TARGET, int AHEAD>
HD void select_rows(const Stream& stream, const Job& job, const Tile& tile, const SharedParts& parts, bool rising, int index,
               Targets<AHEAD> targets, int thread, int threads) {
  ROLLED
  for (int row = thread; row < tile.rows; row += threads) {
    const int64 target = targets.at[0];
    UNROLL
    for (int n = 1; n < AHEAD; ++n) targets.at[n - 1] = targets.at[n];
    targets.at[AHEAD - 1] = target_of<K, Time, EACH_TARGET>(job, tile, row + AHEAD * threads);
    int batch = K::grouped ? divided(row, job.count, job.count_magic) : 0;
    int size = samples_of<K>(stream, tile.batch + batch);
    int64 age;
    Selection found;
    if constexpr (K::staged_times) {
      Staged<K::STEPS> staged = {parts.times + (K::each_times ? batch << K::STEPS : 0)};
      found = select<Alignment<K::METHOD>::SELECTS>(staged, size, rising, target, stream.limits, age);
    } else {
      Stamps<Time> stamps = {times_of<K, Time>(stream, tile.batch + batch)};
      found = select<Alignment<K::METHOD>::SELECTS>(stamps, size, rising, target, stream.limits, age);
    }
    if (K::marked && tile.column == 0) {
      int64 place = (tile.row + row) * job.marks + job.mark + index;
      if (job.valid) job.valid[place] = (uint8)found.valid;
      if (job.age) job.age[place] = age;
    }
    if (K::grouped && found.valid) {
      found.lower += batch * stream.samples;
      found.upper += batch * stream.samples;
    }
    if (!K::wide) found.lower *= stream.width, found.upper *= stream.width;
    parts.selections[row] = found;
  }
}

// The same, for rows that the caller selected. A row after the end is clamped.
HD void copy_selection(const BlendArguments& arguments, int64 first, int rows, Selection* selections, int thread, int threads) {
  for (int row = thread; row < rows; row += threads) {
    int64 lower = arguments.lower[first + row], upper = arguments.upper[first + row];
    float weight = arguments.weight[first + row];
    Selection found = no_selection();
    if (lower >= 0 && arguments.samples > 0) {
      found.valid = 1;
      found.lower = at_most(lower, arguments.samples - 1);
      found.upper = upper < 0 ? found.lower : at_most(upper, arguments.samples - 1);
      found.weight = found.upper == found.lower ? 0.0f : weight;
    }
    selections[row] = found;
  }
}

// Computes all items of a tile. `data` is its first batch; a thread begins at (row, d) and continues by (step, rest). DEPTH items
// are loaded before the first is stored. `reach`: columns that the items of a row cover.
template <class K, int DEPTH>
HD void write(const typename K::In* data, int width, const Selection* selections, int rows, typename K::Out* out, int pitch, int row,
              int d, int reach, int step, int rest) {
  hold(out);
  ROLLED
  while (row < rows) {
    Item<K> items[DEPTH];
    int at[DEPTH], from[DEPTH];
    UNROLL
    for (int n = 0; n < DEPTH; ++n) {
      at[n] = row, from[n] = d - shift_of<K>(out, pitch, row);
      if (n == 0 || row < rows) fetch<K>(items[n], data, width, selections, row, rows, from[n]);
      row += step;
      if constexpr (!K::even) {
        d += rest;
        if (d >= reach) d -= reach, ++row;
      }
    }
    UNROLL
    for (int n = 0; n < DEPTH; ++n) {
      if (n == 0 || at[n] < rows) {
        int end = K::ITEM;
        if constexpr (K::spans) end = at_most((int64)(rows - at[n]) * width - from[n], K::ITEM);
        if constexpr (K::shifted) end = width - from[n];
        if constexpr (K::wide) put<K>(items[n], out + ((int64)at[n] * pitch + from[n]), -from[n], end);
        else put<K>(items[n], out + (at[n] * pitch + from[n]), -from[n], end);
      }
    }
  }
}

}  // namespace robocache
