// Fuses all vector streams of a tick into one row, in one launch: one block per stream, and one for valid and ages.
//
// Compiled with  WINDOWS  1 if there are windows; their code would slow down rows without windows
#include "tick/row.cuh"

#ifndef WINDOWS
#define WINDOWS 1
#endif

using namespace robocache;

constexpr int IN_FLIGHT = 4;  // values of a window that a thread loads before it stores the first

__device__ __forceinline__ void store_value(const RowTarget& row, int column, float value) {
  row.row[column] = row.again[column] = row.host[column] = value;
}

// A value needs two dependent loads: the slot of its sample, then the sample.
__device__ __forceinline__ void copy_window(const RowTarget& row, const WindowTask& task) {
  for (int first = threadIdx.x; first < task.width; first += IN_FLIGHT * blockDim.x) {
    float values[IN_FLIGHT];
    UNROLL
    for (int n = 0; n < IN_FLIGHT; ++n) {
      const int i = first + n * blockDim.x;
      values[n] = i < task.width ? copied_value(task, i) : 0.0f;
    }
    UNROLL
    for (int n = 0; n < IN_FLIGHT; ++n) {
      const int i = first + n * blockDim.x;
      if (i < task.width) store_value(row, task.column + i, values[n]);
    }
  }
}

extern "C" __global__ void tick_row(const __grid_constant__ RowArguments arguments) {
  const RowTarget row = *arguments.target;
  const int block = blockIdx.x, streams = arguments.streams;
  if (block == streams + (WINDOWS ? arguments.window_count : 0)) {
    for (int i = threadIdx.x; i < row.statuses; i += blockDim.x)
      row.row[row.values + i] = row.again[row.values + i] = row.status[i];
    return;
  }
#if WINDOWS
  if (block >= streams) {
    const WindowTask task = arguments.windows[block - streams];
    if (task.reduction == (int)Reduction::NONE) return copy_window(row, task);
    ROLLED
    for (int i = threadIdx.x; i < task.width; i += blockDim.x) store_value(row, task.column + i, reduced_value(task, i));
    return;
  }
#endif
  const RowTask task = arguments.tasks[block];
  for (int i = threadIdx.x; i < task.width; i += blockDim.x) store_value(row, task.column + i, value_at(task, i));
}
