// An item: a few elements of the output, from the loads of their samples to the stores of what lies between.
#pragma once
#include "blend.cuh"
#include "vector.cuh"

namespace robocache {

struct alignas(16) Pick {  // what a row is made of
  int lower;               // the sample taken or blended from, -1 for none
  int upper;               // the sample blended towards
  float weight;            // its share; 0 where `lower` is taken whole
  int valid;               // 0 none, 1 aligned, 2 held past its neighbour
};

// How a stream is read and written; all powers of two.
//   LOAD   elements that a load moves
//   UNIT   elements of an item that lie in one row of the output
//   STORE  elements that a store moves
//   ITEM   elements of an item: greater than UNIT only where rows follow each other in the output without a gap
//   STAGED 1 where the samples are in shared memory
template <Method METHOD_, class In_, class Out_, int LOAD_, int UNIT_, int STORE_, int ITEM_, int STAGED_>
struct Kind {
  typedef In_ In;
  typedef Out_ Out;
  static constexpr Method METHOD = METHOD_;
  static constexpr int LOAD = LOAD_, UNIT = UNIT_, STORE = STORE_, ITEM = ITEM_;
  static constexpr bool STAGED = STAGED_, BLENDS = METHOD_ == LINEAR || METHOD_ == SLERP || METHOD_ == ANGLE;
  static constexpr bool SPANS = ITEM_ > UNIT_;
};

template <class K>
struct Item {
  Word<typename K::In, K::LOAD> before[K::ITEM / K::LOAD], after[K::BLENDS ? K::ITEM / K::LOAD : 1];
  float weight[K::ITEM / K::UNIT];
};

template <class K>
HD Word<typename K::In, K::LOAD> read(const typename K::In* from) {
  auto word = (const Word<typename K::In, K::LOAD>*)from;
  if constexpr (K::STAGED) return *word;
  else return load_constant(word);
}

// The samples of the item that begins in column d of a row.
template <class K>
HD void fetch(Item<K>& item, const typename K::In* data, int width, const Pick* picks, int row, int rows, int d) {
  UNROLL
  for (int u = 0; u < K::ITEM; u += K::UNIT) {
    Pick found = {-1, -1, 0.0f, 0};
    if (!K::SPANS || row < rows) found = picks[row];
    const typename K::In* before = data + (int64)found.lower * width + d;
    const typename K::In* after = data + (int64)found.upper * width + d;
    item.weight[u / K::UNIT] = found.weight;
    UNROLL
    for (int i = 0; i < K::UNIT; i += K::LOAD) {
      item.before[(u + i) / K::LOAD] = {};
      if (found.lower >= 0) item.before[(u + i) / K::LOAD] = read<K>(before + i);
      if constexpr (K::BLENDS) {
        item.after[(u + i) / K::LOAD] = {};
        if (found.weight != 0) item.after[(u + i) / K::LOAD] = read<K>(after + i);
      }
    }
    d += K::UNIT;
    if (K::SPANS && d >= width) d -= width, ++row;
  }
}

template <class T>
HD T converted(T value, const T*) {  // taken whole: the very bits
  return value;
}
template <class Out, class In>
HD Out converted(In value, const Out*) {
  return Rounded<Out>::of(to_float(value));
}

template <class K>
HD void mix(const typename K::In* before, const typename K::In* after, float weight, typename K::Out* out) {
  typedef typename K::Out Out;
  UNROLL
  for (int i = 0; i < K::UNIT; ++i) out[i] = converted(before[i], (const Out*)nullptr);
  if constexpr (K::METHOD == LINEAR || K::METHOD == ANGLE) {
    UNROLL
    for (int i = 0; i < K::UNIT; ++i) {
      float a = to_float(before[i]), b = to_float(after[i]);
      Out mixed = Rounded<Out>::of(K::METHOD == LINEAR ? linear(a, b, weight) : angle(a, b, weight));
      if (weight != 0) out[i] = mixed;
    }
  }
  if constexpr (K::METHOD == SLERP) {
    if (weight == 0) return;
    UNROLL
    for (int i = 0; i < K::UNIT; i += 4) {
      float p[4], q[4], mixed[4];
      UNROLL
      for (int j = 0; j < 4; ++j) p[j] = to_float(before[i + j]), q[j] = to_float(after[i + j]);
      slerp(p, q, weight, mixed);
      UNROLL
      for (int j = 0; j < 4; ++j) out[i + j] = Rounded<Out>::of(mixed[j]);
    }
  }
}

// Blends the item and stores it, or as much of it as there is.
template <class K>
HD void put(const Item<K>& item, typename K::Out* out, int count) {
  typedef typename K::In In;
  typedef typename K::Out Out;
  In before[K::ITEM], after[K::ITEM];
  Out mixed[K::ITEM];
  UNROLL
  for (int i = 0; i < K::ITEM; i += K::LOAD) {
    memcpy(before + i, &item.before[i / K::LOAD], sizeof item.before[0]);
    if constexpr (K::BLENDS) memcpy(after + i, &item.after[i / K::LOAD], sizeof item.after[0]);
  }
  UNROLL
  for (int u = 0; u < K::ITEM; u += K::UNIT) mix<K>(before + u, after + u, item.weight[u / K::UNIT], mixed + u);
  if (K::SPANS && count < K::ITEM) {
    UNROLL
    for (int i = 0; i < K::ITEM; ++i) {
      if (i < count) out[i] = mixed[i];
    }
    return;
  }
  UNROLL
  for (int i = 0; i < K::ITEM; i += K::STORE) {
    Pack<Out, K::STORE> pack;
    UNROLL
    for (int j = 0; j < K::STORE; ++j) pack.at[j] = mixed[i + j];
    store(out + i, pack);
  }
}

}  // namespace robocache
