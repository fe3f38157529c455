// The voxel grid of a tick, in two launches, or three where features are reduced:
//
//   begin_cloud   sets the grid and the sums to zero, or copies the grid of the previous tick
//   place_points  adds points to cells: OCCUPANCY, COUNT; MEAN and MAX to integer sums, in any order
//   end_cloud     converts sums to float32
//
// The arithmetic, and therefore the bits, are those of the kernels in voxel/, whose scratch memory is sized for the cloud. These
// kernels keep sums of all voxels, so that no launch depends on the number of points and one CUDA graph serves every cloud.
#include "tick/tasks.cuh"

#define OCCUPANCY 0
#define COUNT 1
#define MEAN 2
#define MAX 3
#ifndef MODE
#define MODE MEAN
#define FEATURES 1
#endif

using namespace robocache;

__device__ __forceinline__ void load_task(CloudTask& task, const CloudTask* from) {
  for (int i = threadIdx.x; i < (int)(sizeof task / 4); i += blockDim.x)
    reinterpret_cast<int*>(&task)[i] = reinterpret_cast<const int*>(from)[i];
  __syncthreads();
}

extern "C" __global__ void __launch_bounds__(256) begin_cloud(const __grid_constant__ CloudArguments arguments) {
  __shared__ CloudTask task;
  load_task(task, arguments.task);
  fill(task.target);
#if MODE == MEAN || MODE == MAX
  if (task.target.action != MAKE) return;
  const int64 step = (int64)gridDim.x * blockDim.x;
  for (int64 i = (int64)blockIdx.x * blockDim.x + threadIdx.x; i < task.cells * (FEATURES + 1); i += step)
    task.sums[i] = MODE == MAX && i < task.cells * FEATURES ? -2147483648ll : 0;
#endif
}

extern "C" __global__ void __launch_bounds__(256) place_points(const __grid_constant__ CloudArguments arguments) {
  __shared__ CloudTask task;
  load_task(task, arguments.task);
  if (task.target.action != MAKE) return;
  const Clouds& clouds = task.clouds;
  const int64 step = (int64)gridDim.x * blockDim.x;
  for (int64 i = (int64)blockIdx.x * blockDim.x + threadIdx.x; i < clouds.count; i += step) {
    const unsigned char* bytes = point_at(clouds, 0, i);
    const Point point = to_grid(clouds, read_point(clouds, bytes));
    const int cell = place(clouds, bytes, point);
    if (cell < 0) continue;
#if MODE == OCCUPANCY
    static_cast<uint8*>(task.target.out)[cell] = 1;  // all threads write the same value
#elif MODE == COUNT
    atomicAdd(static_cast<int*>(task.target.out) + cell, 1);
#else
    for (int f = 0; f < FEATURES; ++f) {
      const float value = feature_at(clouds, bytes, point, f);
      int64* sum = task.sums + f * task.cells + cell;
      if (MODE == MAX) atomicMax(sum, (int64)key_of(value));
      else atomicAdd((uint64*)sum, (uint64)fixed_point(value, task.scale, task.limit));
    }
    atomicAdd((uint64*)task.sums + FEATURES * task.cells + cell, 1ull);
#endif
  }
}

#if MODE == MEAN || MODE == MAX
extern "C" __global__ void __launch_bounds__(256) end_cloud(const __grid_constant__ CloudArguments arguments) {
  __shared__ CloudTask task;
  load_task(task, arguments.task);
  if (task.target.action != MAKE) return;
  const int64 step = (int64)gridDim.x * blockDim.x;
  for (int64 i = (int64)blockIdx.x * blockDim.x + threadIdx.x; i < task.cells; i += step) {
    const int64 points = task.sums[FEATURES * task.cells + i];
    if (!points) continue;
    for (int f = 0; f < FEATURES; ++f) {
      const int64 sum = task.sums[f * task.cells + i];
      static_cast<float*>(task.target.out)[f * task.cells + i] =
          MODE == MAX ? float_of_key((int)sum) : mean_of(sum, points, task.unit);
    }
  }
}
#endif
