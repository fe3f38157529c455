// All vector streams of a tick into one row, in one launch: a block for each stream, and one for valid and age.
#include "row.cuh"

using namespace robocache;

extern "C" __global__ void tick_row(const RowPlan* __restrict__ plan, const RowTask* __restrict__ tasks, int streams) {
  const RowPlan row = *plan;
  if ((int)blockIdx.x == streams) {
    for (int i = threadIdx.x; i < row.statuses; i += blockDim.x)
      row.row[row.values + i] = row.again[row.values + i] = row.status[i];
    return;
  }
  const RowTask task = tasks[blockIdx.x];
  for (int i = threadIdx.x; i < task.width; i += blockDim.x) {
    const float value = value_at(task, i);
    row.row[task.column + i] = row.again[task.column + i] = row.host[task.column + i] = value;
  }
}
