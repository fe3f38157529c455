// One image of a tick. Compiled for one FAMILY and one RESIZE, and for blocks of THREADS.
#include "tick/tasks.cuh"

using namespace robocache;

// One thread computes one pixel.
extern "C" __global__ void __launch_bounds__(THREADS) tick_image(const __grid_constant__ ImageArguments arguments) {
  __shared__ ImageTask task;
  for (int i = threadIdx.x; i < (int)(sizeof task / 4); i += blockDim.x)
    reinterpret_cast<int*>(&task)[i] = reinterpret_cast<const int*>(arguments.task)[i];
  __syncthreads();
  if (task.target.action != MAKE) return fill(task.target);
  const int at = blockIdx.x * blockDim.x + threadIdx.x;
  const ConvertArguments& convert = task.convert;
  if (at >= convert.width * convert.height) return;
  convert_pixel<FAMILY, RESIZE>(convert.image, convert.affine, at % convert.width, at / convert.width, convert.width,
                                convert.height, task.target.out, convert.element);
}
