// One image of a tick. Compiled for one FAMILY and one RESIZE.
#include "plan.cuh"

#ifndef FAMILY
#define FAMILY PACKED
#define RESIZE BILINEAR
#endif

using namespace robocache;

// One thread makes one pixel.
extern "C" __global__ void __launch_bounds__(128) tick_image(const ImageTask* __restrict__ plan) {
  __shared__ ImageTask task;
  for (int i = threadIdx.x; i < (int)(sizeof task / 4); i += blockDim.x)
    reinterpret_cast<int*>(&task)[i] = reinterpret_cast<const int*>(plan)[i];
  __syncthreads();
  if (task.target.action != MAKE) return fill(task.target);
  const int at = blockIdx.x * blockDim.x + threadIdx.x;
  if (at >= task.width * task.height) return;
  convert_pixel<FAMILY, RESIZE>(task.image, task.affine, at % task.width, at / task.width, task.width, task.height,
                                task.out, task.kind);
}
