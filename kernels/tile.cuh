// One block's share of a resampling, in steps that all its threads do together, with a barrier between them:
//
//   stage_times, stage    times (and the samples themselves, where most of them are needed) into shared memory
//   choose                one thread per row of the tile: the samples that it is made of
//   write                 one thread per item, a few elements of a row: blend, round, store
//
// As host code the steps can be run for one thread after the other, so that tests without a GPU run all of this.
#pragma once
#include "item.cuh"
#include "pick.cuh"

namespace robocache {

struct Stream {          // one source, in device memory; the host packs these fields in this order
  const void* data;      // (B, S, D)
  const void* times;     // (B, S), or (S) for all batches
  const int64* lengths;  // (B) samples that count, or null: all S
  Limits limits;
  int samples;       // S
  int width;         // D
  int column;        // its first column in a row of the output
  int group;         // batches in a tile
  int span;          // targets in a tile: all T of them where group > 1
  int first_block;   // its first block in the grid
  int kind;          // how it is read and written
  int each_times;    // 1: times are per batch
  int staged_times;  // 0: too many for shared memory; searched where they are
  int padding;
};

struct Job {            // what all streams share
  void* out;            // (B, T, pitch)
  const void* targets;  // (B, T), or (T) for all batches
  uint8* valid;         // (B, T, streams), or null
  int64* age;           // (B, T, streams) ns, or null
  int64 batches;        // B
  int count;            // T
  int pitch;            // elements of a row of the output
  int streams;
  int each_targets;  // 1: targets are per batch
};

struct Chosen {         // rows of one source, chosen already
  const void* data;     // (S, D)
  void* out;            // (rows, D)
  const int64* lower;   // (rows), -1 for none
  const int64* upper;   // (rows)
  const float* weight;  // (rows)
  int64 rows;
  int samples;  // S
  int width;    // D
  int span;     // rows of a block
  int padding;
};

struct Tile {
  int64 batch, row;  // its first batch, and its first row of the output
  int batches, start, targets, rows;
};

struct Room {  // a block's shared memory, each part at a multiple of 16 bytes
  Pick* picks;
  int64* times;  // null where they are not staged
  char* data;
};

HD int at_most(int64 a, int b) { return a < b ? (int)a : b; }

HD Tile make_tile(const Stream& stream, const Job& job, int block) {
  int per_batch = (job.count + stream.span - 1) / stream.span;
  Tile tile;
  tile.batch = (int64)(block / per_batch) * stream.group;
  tile.batches = at_most(job.batches - tile.batch, stream.group);
  tile.start = block % per_batch * stream.span;
  tile.targets = at_most(job.count - tile.start, stream.span);
  tile.rows = tile.batches * tile.targets;
  tile.row = tile.batch * job.count + tile.start;
  return tile;
}

HD Room make_room(const Stream& stream, char* shared) {
  Room room;
  room.picks = (Pick*)shared;
  room.times = (int64*)(room.picks + stream.group * stream.span);
  int times = stream.staged_times ? (stream.each_times ? stream.group : 1) * stream.samples : 0;
  room.data = (char*)(room.times + (times + 1) / 2 * 2);
  if (!stream.staged_times) room.times = nullptr;
  return room;
}

HD int samples_of(const Stream& stream, int64 batch) {
  if (!stream.lengths) return stream.samples;
  int64 length = stream.lengths[batch];
  return length < 0 ? 0 : at_most(length, stream.samples);
}

template <class Time>
HD const Time* times_of(const Stream& stream, int64 batch) {
  return (const Time*)stream.times + (stream.each_times ? batch * stream.samples : 0);
}

// Times of the tile's batches to `staged` as ns, where that is not null; true if those that this thread met never fall.
template <class Time>
HD bool stage_times(const Stream& stream, const Tile& tile, int64* staged, int thread, int threads) {
  const int MANY = 4;  // in flight at once
  const Time* times = times_of<Time>(stream, tile.batch);
  int total = (stream.each_times ? tile.batches : 1) * stream.samples;
  bool ragged = stream.lengths && stream.each_times;
  bool rising = true;
  for (int first = thread; first < total; first += MANY * threads) {
    Time stamp[MANY], next[MANY];
    UNROLL
    for (int n = 0; n < MANY; ++n) {
      int i = first + n * threads;
      if (i < total) {
        stamp[n] = times[i];
        int row = total == stream.samples ? 0 : i / stream.samples;
        int size = ragged ? samples_of(stream, tile.batch + row) : stream.samples;
        next[n] = i + 1 - row * stream.samples < size ? times[i + 1] : stamp[n];
      }
    }
    UNROLL
    for (int n = 0; n < MANY; ++n) {
      int i = first + n * threads;
      if (i < total) {
        rising = rising && nanoseconds(stamp[n]) <= nanoseconds(next[n]);
        if (staged) staged[i] = nanoseconds(stamp[n]);
      }
    }
  }
  return rising;
}

// Each row's samples into `picks`, counted from the tile's first batch; valid and age to the output.
template <Method METHOD, class Time>
HD void choose(const Stream& stream, const Job& job, const Tile& tile, const Room& room, bool rising, int index, int thread,
               int threads) {
  for (int row = thread; row < tile.rows; row += threads) {
    int batch = row / tile.targets;
    int target = tile.start + row - batch * tile.targets;
    int64 offset = job.each_targets ? (tile.batch + batch) * job.count : 0;
    int64 t = nanoseconds(((const Time*)job.targets)[offset + target]);
    int size = samples_of(stream, tile.batch + batch);
    int64 age;
    Pick found;
    if (room.times) {
      const int64* staged = room.times + (stream.each_times ? batch * stream.samples : 0);
      found = pick<METHOD>(staged, size, rising, t, stream.limits, age);
    } else {
      Stamps<Time> stamps = {times_of<Time>(stream, tile.batch + batch)};
      found = pick<METHOD>(stamps, size, rising, t, stream.limits, age);
    }
    int64 place = (tile.row + row) * job.streams + index;
    if (job.valid) job.valid[place] = found.valid;
    if (job.age) job.age[place] = age;
    if (found.lower >= 0) {
      found.lower += batch * stream.samples;
      found.upper += batch * stream.samples;
    }
    room.picks[row] = found;
  }
}

// The same from rows chosen by the caller; a row past the end would be the caller's mistake, and is kept in bounds.
HD void take(const Chosen& chosen, int64 first, int rows, Pick* picks, int thread, int threads) {
  for (int row = thread; row < rows; row += threads) {
    int64 lower = chosen.lower[first + row], upper = chosen.upper[first + row];
    float weight = chosen.weight[first + row];
    Pick found = {-1, -1, 0.0f, 0};
    if (lower >= 0 && chosen.samples > 0) {
      found.lower = at_most(lower, chosen.samples - 1);
      found.upper = upper < 0 ? found.lower : at_most(upper, chosen.samples - 1);
      found.weight = found.upper == found.lower ? 0.0f : weight;
    }
    picks[row] = found;
  }
}

// All items of a tile. `data` is its first batch; DEPTH items are loaded before the first is stored.
template <class K, int DEPTH>
HD void write(const typename K::In* data, int width, const Pick* picks, int rows, typename K::Out* out, int pitch, int thread,
              int threads) {
  int row = (int)((unsigned)(thread * K::ITEM) / (unsigned)width), d = thread * K::ITEM - row * width;
  int step = (int)((unsigned)(threads * K::ITEM) / (unsigned)width), rest = threads * K::ITEM - step * width;
  while (row < rows) {
    Item<K> items[DEPTH];
    int at[DEPTH], from[DEPTH];
    UNROLL
    for (int n = 0; n < DEPTH; ++n) {
      at[n] = row, from[n] = d;
      if (row < rows) fetch<K>(items[n], data, width, picks, row, rows, d);
      row += step, d += rest;
      if (d >= width) d -= width, ++row;
    }
    UNROLL
    for (int n = 0; n < DEPTH; ++n) {
      if (at[n] < rows) {
        int64 left = (int64)(rows - at[n]) * width - from[n];
        put<K>(items[n], out + (int64)at[n] * pitch + from[n], at_most(left, K::ITEM));
      }
    }
  }
}

}  // namespace robocache
