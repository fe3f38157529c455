// One row of the fused tensor: each vector stream between two of its samples, with the arithmetic of
// robocache_ros/alignments.
#pragma once
#include "resample/alignment.cuh"
#include "tick/window.cuh"

namespace robocache {

struct RowTask {         // one stream
  const float* samples;  // (slots, width)
  int64 lower, upper;    // slots; lower is -1 if there is none
  float weight;          // share of `upper`; 0 where `lower` is copied
  int width, column;     // number of values, and the column of the first one
  int method;            // a Method
};

struct RowTarget {
  float* row;            // (values + statuses,)
  float* again;          // a second copy in the ring of rows, which keeps every window contiguous
  float* host;           // (values,) pinned
  const float* status;   // valid and age of every stream, and the age of every sample of windows
  int values, statuses;
};

struct RowArguments {
  const RowTarget* target;
  const RowTask* tasks;  // (streams)
  const WindowTask* windows;
  int streams, window_count;
};

// Value i between two samples.
template <Method METHOD>
HD float blended(const float* before, const float* after, float weight, int i) {
  typedef Alignment<METHOD> A;
  const int first = i & ~(A::GROUP - 1);
  float mixed[A::GROUP];
  A::blend(before + first, after + first, weight, mixed);
  return Rounded<float>::of(mixed[i - first]);
}

// Value i of a stream at the tick.
HD float value_at(const RowTask& task, int i) {
  if (task.lower < 0) return 0.0f;
  const float* before = task.samples + task.lower * task.width;
  const float* after = task.samples + task.upper * task.width;
  if (task.weight == 0 || task.upper == task.lower) return before[i];
#define BLENDS(NAME, GROUP) \
  if (task.method == (int)Method::NAME) return blended<Method::NAME>(before, after, task.weight, i);
#define COPIES(NAME, SELECTS)
  ALIGNMENTS(BLENDS, COPIES)
#undef BLENDS
#undef COPIES
  return before[i];
}

}  // namespace robocache
