// An item is a few elements of the output; this file has its steps from loading samples to storing the blend.
#pragma once
#include "resample/alignment.cuh"
#include "common/vector.cuh"

namespace robocache {

struct alignas(16) Selection {  // the samples of a row
  int lower;               // the sample to copy, or to blend from
  int upper;               // the sample to blend towards
  float weight;            // share of `upper`; 0 if `lower` is copied
  int valid;               // 0 invalid, 1 aligned, 2 held
};

HD Selection no_selection() { return Selection{0, 0, 0.0f, 0}; }

// Properties of a stream that are known when its kernel is compiled: a sum of flags.
enum StreamFlag {
  STAGED = 1,      // its samples are in shared memory
  EACH_TIMES = 2,  // each batch has its own times
  RAGGED = 4,      // the stream has lengths
  GROUPED = 8,     // a tile has several batches
  WIDE = 16,       // offsets in a tile need 64 bits
  EVEN = 32,       // a thread stays in one column from item to item
  WHOLE = 64,      // the samples of every batch begin and end at a multiple of 16 bytes
  TWICE = 128,     // an item covers at most two rows
  MARKED = 256,    // valid or age are written
  PARTED = 512,    // a tile has some of the columns; its samples are staged
  SHIFTED = 1024,  // items begin where a store can, anywhere in a row: the outer ones begin before it or end after it
};

// How a stream is read and written; all sizes are powers of two.
//   LOAD   elements that a load moves
//   UNIT   elements of an item in one row of the output
//   STORE  elements that a store moves
//   ITEM   elements of an item: greater than UNIT only if rows follow each other in the output without a gap
//   STEPS  steps of the search in shared memory, which has 2^STEPS times per batch; 0 if times are not there
template <Method METHOD_, class In_, class Out_, int LOAD_, int UNIT_, int STORE_, int ITEM_, int FLAGS_, int STEPS_>
struct StreamTraits {
  typedef In_ In;
  typedef Out_ Out;
  static constexpr Method METHOD = METHOD_;
  static constexpr int LOAD = LOAD_, UNIT = UNIT_, STORE = STORE_, ITEM = ITEM_, STEPS = STEPS_;
  static constexpr bool staged = FLAGS_ & STAGED, each_times = FLAGS_ & EACH_TIMES, ragged = FLAGS_ & RAGGED;
  static constexpr bool whole = FLAGS_ & WHOLE, grouped = FLAGS_ & GROUPED, wide = FLAGS_ & WIDE, even = FLAGS_ & EVEN, staged_times = STEPS_ > 0;
  static constexpr bool twice = FLAGS_ & TWICE, marked = FLAGS_ & MARKED, parted = FLAGS_ & PARTED;
  static constexpr bool shifted = FLAGS_ & SHIFTED;
  static constexpr int GROUP = Alignment<METHOD_>::GROUP;
  static constexpr bool blends = Alignment<METHOD_>::SELECTS == Selects::neighbours, spans = ITEM_ > UNIT_;
};

// The distance by which the first item of a row begins before it; rows have `pitch` elements and start at `out`.
template <class K>
HD int shift_of(const typename K::Out* out, int pitch, int row) {
  if constexpr (!K::shifted) return 0;
  return (int)((unsigned long long)out / sizeof *out + (uint32)row * (uint32)pitch) & (K::ITEM - 1);
}

// The start of a selected sample in its tile's data. A selection holds the row if offsets are wide, else the offset
// itself.
template <class K>
HD auto offset(int place, int width) {
  if constexpr (K::wide) return (int64)place * width;
  else return place;
}

template <class K>
struct Item {
  Word<typename K::In, K::LOAD> before[K::ITEM / K::LOAD], after[K::blends ? K::ITEM / K::LOAD : 1];
  float weight[K::ITEM / K::UNIT];
};

template <class K>
HD Word<typename K::In, K::LOAD> read(const typename K::In* from) {
  auto word = (const Word<typename K::In, K::LOAD>*)from;
  if constexpr (K::staged) return *word;
  else return load_constant(word);
}

// Loads a unit of an item, which begins in column d, from the samples at elements `lower` and `upper` of the data.
template <class K, class Offset>
HD void fetch_unit(Item<K>& item, int u, const typename K::In* data, int width, int d, Offset lower, Offset upper,
                   float weight, bool some) {
  typedef Word<typename K::In, K::LOAD> W;
  item.weight[u / K::UNIT] = weight;
  UNROLL
  for (int i = 0; i < K::UNIT; i += K::LOAD) {
    W& before = item.before[(u + i) / K::LOAD];
    if constexpr (K::staged) {  // an extra read is cheaper than a branch, and memory around the samples is readable
      W word = read<K>(data + (lower + i));
      before = some ? word : W{};
      if constexpr (K::blends) item.after[(u + i) / K::LOAD] = read<K>(data + (upper + i));
    } else {
      const bool there = !K::shifted || (d + i >= 0 && d + i < width);
      before = {};
      if (some && there) before = read<K>(data + (lower + i));
      if constexpr (K::blends) {
        item.after[(u + i) / K::LOAD] = {};
        if (weight != 0 && there) item.after[(u + i) / K::LOAD] = read<K>(data + (upper + i));
      }
    }
  }
}

// Loads the samples of the item that begins in column d of a row.
template <class K>
HD void fetch(Item<K>& item, const typename K::In* data, int width, const Selection* selections, int row, int rows, int d) {
  const Selection none = no_selection();
  Selection found = selections[row];
  if constexpr (K::spans && K::twice) {  // both rows at once, so that a unit does not wait for the previous one
    const Selection next = d + K::ITEM > width && row + 1 < rows ? selections[row + 1] : none;
    const auto lower = offset<K>(found.lower, width) + d, upper = offset<K>(found.upper, width) + d;
    const auto next_lower = offset<K>(next.lower, width) + d - width, next_upper = offset<K>(next.upper, width) + d - width;
    UNROLL
    for (int u = 0; u < K::ITEM; u += K::UNIT) {
      const bool over = d + u >= width;
      fetch_unit<K>(item, u, data, width, d, (over ? next_lower : lower) + u, (over ? next_upper : upper) + u,
                    over ? next.weight : found.weight, (over ? next.valid : found.valid) != 0);
    }
  } else {
    UNROLL
    for (int u = 0; u < K::ITEM; u += K::UNIT) {
      fetch_unit<K>(item, u, data, width, d, offset<K>(found.lower, width) + d, offset<K>(found.upper, width) + d,
                    found.weight, found.valid != 0);
      d += K::UNIT;
      if (K::spans && u + K::UNIT < K::ITEM && d >= width) {
        d -= width, ++row;
        found = row < rows ? selections[row] : none;
      }
    }
  }
}

template <class T>
HD T converted(T value, const T*) {  // copied with the same bits
  return value;
}
template <class Out, class In>
HD Out converted(In value, const Out*) {
  return Narrowed<Out>::of(to_float(value));
}

// The elements of a word as float32; 16-bit elements take one operation each.
template <class T, int N>
HD void widen(const Word<T, N>& word, float* wide) {
  if constexpr (sizeof(T) == 2 && N % 2 == 0) {
    uint32 parts[N / 2];
    memcpy(parts, &word, sizeof parts);
    UNROLL
    for (int i = 0; i < N / 2; ++i) both_floats(parts[i], (const T*)nullptr, wide[2 * i], wide[2 * i + 1]);
  } else {
    Pack<T, N> pack = unpack<T, N>(word);
    UNROLL
    for (int i = 0; i < N; ++i) wide[i] = to_float(pack.at[i]);
  }
}

// Computes a unit of the output from copied samples.
template <class K>
HD void copy(const Word<typename K::In, K::LOAD>* before, typename K::Out* out) {
  typedef typename K::In In;
  UNROLL
  for (int i = 0; i < K::UNIT; i += K::LOAD) {
    Pack<In, K::LOAD> pack = unpack<In, K::LOAD>(before[i / K::LOAD]);
    UNROLL
    for (int j = 0; j < K::LOAD; ++j) out[i + j] = converted(pack.at[j], (const typename K::Out*)nullptr);
  }
}

// Computes a unit of the output between two samples.
template <class K>
HD void mix(const Word<typename K::In, K::LOAD>* before, const Word<typename K::In, K::LOAD>* after, float weight,
            typename K::Out* out) {
  typedef typename K::Out Out;
  float p[K::UNIT], q[K::UNIT], mixed[K::UNIT];
  UNROLL
  for (int i = 0; i < K::UNIT; i += K::LOAD) {
    widen<typename K::In, K::LOAD>(before[i / K::LOAD], p + i);
    widen<typename K::In, K::LOAD>(after[i / K::LOAD], q + i);
  }
  UNROLL
  for (int i = 0; i < K::UNIT; i += K::GROUP) Alignment<K::METHOD>::blend(p + i, q + i, weight, mixed + i);
  if constexpr (sizeof(Out) == 2 && K::UNIT % 2 == 0) {
    UNROLL
    for (int i = 0; i < K::UNIT; i += 2) {
      uint32 both = Narrowed<Out>::pair(mixed[i], mixed[i + 1]);
      memcpy(out + i, &both, 4);
    }
  } else {
    UNROLL
    for (int i = 0; i < K::UNIT; ++i) out[i] = Narrowed<Out>::of(mixed[i]);
  }
}

// Selects one of two units, without a branch if they consist of words.
template <class T, int N>
HD void select_unit(bool first, const T* one, const T* other, T* out) {
  if constexpr (N * sizeof(T) % 4 == 0) {
    uint32 a[N * sizeof(T) / 4], b[N * sizeof(T) / 4];
    memcpy(a, one, sizeof a), memcpy(b, other, sizeof b);
    UNROLL
    for (int i = 0; i < (int)(N * sizeof(T) / 4); ++i) a[i] = first ? a[i] : b[i];
    memcpy(out, a, sizeof a);
  } else {
    UNROLL
    for (int i = 0; i < N; ++i) out[i] = first ? one[i] : other[i];
  }
}

// Blends the item and stores its elements from `first` up to `end`.
template <class K>
HD void put(const Item<K>& item, typename K::Out* out, int first, int end) {
  typedef typename K::Out Out;
  alignas(16) Out settled[K::ITEM];
  UNROLL
  for (int u = 0; u < K::ITEM; u += K::UNIT) {
    if constexpr (!K::blends) {
      copy<K>(item.before + u / K::LOAD, settled + u);
    } else if constexpr (K::GROUP > 1) {  // expensive arithmetic: a branch is cheaper than an unused result
      if (item.weight[u / K::UNIT] != 0) mix<K>(item.before + u / K::LOAD, item.after + u / K::LOAD, item.weight[u / K::UNIT], settled + u);
      else copy<K>(item.before + u / K::LOAD, settled + u);
    } else {
      alignas(16) Out taken[K::UNIT], mixed[K::UNIT];
      copy<K>(item.before + u / K::LOAD, taken);
      mix<K>(item.before + u / K::LOAD, item.after + u / K::LOAD, item.weight[u / K::UNIT], mixed);
      select_unit<Out, K::UNIT>(item.weight[u / K::UNIT] != 0, mixed, taken, settled + u);
    }
  }
  if ((K::spans && end < K::ITEM) || (K::shifted && (first > 0 || end < K::ITEM))) {
    UNROLL
    for (int i = 0; i < K::ITEM; ++i) {
      if (i >= first && i < end) out[i] = settled[i];
    }
    return;
  }
  UNROLL
  for (int i = 0; i < K::ITEM; i += K::STORE) {
    Pack<Out, K::STORE> pack;
    memcpy(&pack, settled + i, sizeof pack);
    store(out + i, pack);
  }
}

}  // namespace robocache
