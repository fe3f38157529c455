// Blends rows of one buffer that the caller selected.
//
// Compiled with  TRAITS     Method::linear, bf16, bf16, 8, 8, 8, 8, 16, 0: the arguments of StreamTraits
//                THREADS    of a block
//                IN_FLIGHT  number of items that a thread loads before it stores the first
#include "resample/tile.cuh"

using namespace robocache;

extern "C" __global__ void __launch_bounds__(THREADS) blend_rows(const __grid_constant__ BlendArguments arguments) {
  extern __shared__ __align__(16) char shared[];
  typedef StreamTraits<TRAITS> K;
  Selection* selections = (Selection*)shared;
  const int64 first = (int64)blockIdx.x * arguments.span;
  const int rows = at_most(arguments.rows - first, arguments.span), width = arguments.width;
  copy_selection(arguments, first, rows, selections, threadIdx.x, THREADS);
  __syncthreads();
  const int row = threadIdx.x * K::ITEM / width, step = THREADS * K::ITEM / width;
  K::Out* out = (K::Out*)arguments.out + first * width;
  write<K, IN_FLIGHT>((const K::In*)arguments.data, width, selections, rows, out, width, row, threadIdx.x * K::ITEM - row * width,
                      width, step, THREADS * K::ITEM - step * width);
}
