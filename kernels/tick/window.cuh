// The samples of a stream since the previous tick, as rows or reduced to one row, as in ops/window.py.
#pragma once
#include "common/number.cuh"

namespace robocache {

enum class Reduction { NONE, MEAN, RMS, MAX, MIN };

struct WindowTask {      // one stream
  const float* samples;  // (slots, dim)
  const int* slots;      // (count) samples of the tick, oldest first
  int count;             // number of samples
  int dim;               // values of a sample
  int width, column;     // number of values, and the column of the first one
  int reduction;         // a Reduction
  int unused;
};

// Column i of sample `s` of the window.
HD float sample_at(const WindowTask& task, int s, int i) { return task.samples[(int64)task.slots[s] * task.dim + i]; }

// The sum is in float64, from the oldest sample to the newest, and is rounded once.
HD float mean_at(const WindowTask& task, int i) {
  const bool squares = task.reduction == (int)Reduction::RMS;
  double total = 0;
  for (int s = 0; s < task.count; ++s) {
    const double value = sample_at(task, s, i);
    total = add(total, squares ? mul(value, value) : value);
  }
  const double mean = div(total, (double)task.count);
  return Rounded<float>::of((float)(squares ? root(mean) : mean));
}

HD float extreme_at(const WindowTask& task, int i) {
  const bool greatest = task.reduction == (int)Reduction::MAX;
  float best = sample_at(task, 0, i);
  for (int s = 1; s < task.count; ++s) {
    const float value = sample_at(task, s, i);
    if (greatest ? value > best : value < best) best = value;
  }
  return Rounded<float>::of(best);
}

// Value i of a window that is not reduced.
HD float copied_value(const WindowTask& task, int i) {
  const int s = i / task.dim;
  return s < task.count ? sample_at(task, s, i - s * task.dim) : 0.0f;
}

// Value i of a window that is reduced.
HD float reduced_value(const WindowTask& task, int i) {
  if (task.count == 0) return 0.0f;
  return task.reduction == (int)Reduction::MEAN || task.reduction == (int)Reduction::RMS ? mean_at(task, i) : extreme_at(task, i);
}

// Value i of a stream at the tick.
HD float window_value(const WindowTask& task, int i) {
  return task.reduction == (int)Reduction::NONE ? copied_value(task, i) : reduced_value(task, i);
}

}  // namespace robocache
