// The voxel grid of a tick, in two launches, or in three if features are reduced:
//
//   begin_cloud   sets the grid to zero and the terms to those of no point, or copies the grid of the previous tick
//   place_points  adds points to cells; if features are reduced, combines their terms in any order
//   end_cloud     converts terms to float32
//
// The arithmetic and the bits are those of the kernels in voxel/, whose scratch memory depends on the size of the
// cloud. These kernels keep terms of all voxels: no launch depends on the number of points, and one CUDA graph serves
// every cloud.
//
// Compiled with THREADS of a block and FEATURES; with REDUCTION of voxel/term.cuh, or of voxel/cell_grid.cuh if
// FEATURES is 0.
#include "tick/tasks.cuh"
#include REDUCTION

using namespace robocache;

__device__ __forceinline__ void load_task(CloudTask& task, const CloudTask* from) {
  for (int i = threadIdx.x; i < (int)(sizeof task / 4); i += blockDim.x)
    reinterpret_cast<int*>(&task)[i] = reinterpret_cast<const int*>(from)[i];
  __syncthreads();
}

#if FEATURES
// (FEATURES, cells) terms, in the first FEATURES planes of `sums`.
__device__ __forceinline__ Reduction::Term* terms_of(const CloudTask& task) {
  return reinterpret_cast<Reduction::Term*>(task.sums);
}
#endif

extern "C" __global__ void __launch_bounds__(THREADS) begin_cloud(const __grid_constant__ CloudArguments arguments) {
  __shared__ CloudTask task;
  load_task(task, arguments.task);
  fill(task.target);
#if FEATURES
  if (task.target.action != MAKE) return;
  const int64 step = (int64)gridDim.x * blockDim.x;
  for (int64 i = (int64)blockIdx.x * blockDim.x + threadIdx.x; i < task.cells * (FEATURES + 1); i += step) {
    if (i < task.cells * FEATURES) terms_of(task)[i] = Reduction::NONE;
    else task.sums[i] = 0;
  }
#endif
}

extern "C" __global__ void __launch_bounds__(THREADS) place_points(const __grid_constant__ CloudArguments arguments) {
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
#if FEATURES
    for (int f = 0; f < FEATURES; ++f) {
      const float value = feature_at(clouds, bytes, point, f);
      Reduction::combine_at(terms_of(task) + f * task.cells + cell, Reduction::term(value, task.scale, task.limit));
    }
    atomicAdd((uint64*)task.sums + FEATURES * task.cells + cell, 1ull);
#else
    Reduction::put({task.target.out, 0, clouds.shape[2], false}, cell, 1);
#endif
  }
}

#if FEATURES
extern "C" __global__ void __launch_bounds__(THREADS) end_cloud(const __grid_constant__ CloudArguments arguments) {
  __shared__ CloudTask task;
  load_task(task, arguments.task);
  if (task.target.action != MAKE) return;
  const int64 step = (int64)gridDim.x * blockDim.x;
  for (int64 i = (int64)blockIdx.x * blockDim.x + threadIdx.x; i < task.cells; i += step) {
    const int64 points = task.sums[FEATURES * task.cells + i];
    if (!points) continue;
    for (int f = 0; f < FEATURES; ++f) {
      const Reduction::Term term = terms_of(task)[f * task.cells + i];
      static_cast<float*>(task.target.out)[f * task.cells + i] = Reduction::finished(term, points, task.unit);
    }
  }
}
#endif
