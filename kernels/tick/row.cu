// Fuses all vector streams of a tick into one row, in one launch: a block for each stream, and one for valid and age.
#include "tick/row.cuh"

using namespace robocache;

extern "C" __global__ void tick_row(const __grid_constant__ RowArguments arguments) {
  const RowTarget row = *arguments.target;
  const int streams = arguments.streams;
  if ((int)blockIdx.x == streams) {
    for (int i = threadIdx.x; i < row.statuses; i += blockDim.x)
      row.row[row.values + i] = row.again[row.values + i] = row.status[i];
    return;
  }
  const RowTask task = arguments.tasks[blockIdx.x];
  for (int i = threadIdx.x; i < task.width; i += blockDim.x) {
    const float value = value_at(task, i);
    row.row[task.column + i] = row.again[task.column + i] = row.host[task.column + i] = value;
  }
}
