// One row of the fused tensor: each vector stream between two of its samples. The arithmetic of ops/resample/arithmetic.py.
#pragma once
#include "resample/arithmetic.cuh"

namespace robocache {

struct RowTask {         // one stream
  const float* samples;  // (slots, width)
  int64 lower, upper;    // slots; lower -1 for none
  float weight;          // share of `upper`; 0 where `lower` is copied
  int width, column;     // values, and where they begin in the row
  int method;            // enum Method
};

struct RowTarget {
  float* row;            // (values + statuses,)
  float* again;          // the same further on in the ring of rows, so that every window of it is contiguous
  float* host;           // (values,) pinned
  const float* status;   // (statuses,) valid and age of every stream
  int values, statuses;
};

struct RowArguments {
  const RowTarget* target;
  const RowTask* tasks;  // (streams)
  int streams;
};

// Value i of a stream at the tick.
HD float value_at(const RowTask& task, int i) {
  if (task.lower < 0) return 0.0f;
  const float* before = task.samples + task.lower * task.width;
  const float* after = task.samples + task.upper * task.width;
  if (task.weight == 0 || task.upper == task.lower) return before[i];
  if (task.method == LINEAR) return Rounded<float>::of(linear(before[i], after[i], task.weight));
  if (task.method == ANGLE) return Rounded<float>::of(angle(before[i], after[i], task.weight));
  if (task.method != SLERP) return before[i];
  float mixed[4];
  slerp(before + (i & ~3), after + (i & ~3), task.weight, mixed);
  return Rounded<float>::of(mixed[i & 3]);
}

}  // namespace robocache
