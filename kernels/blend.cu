// Rows between the rows of one buffer, chosen by the caller.
//
// Compiled with  KIND       LINEAR, bf16, bf16, 8, 8, 8, 8, 16, 0: the arguments of Kind
//                THREADS    of a block
//                IN_FLIGHT  items that a thread loads before it stores the first
#include "tile.cuh"

using namespace robocache;

extern "C" __global__ void __launch_bounds__(THREADS) blend_rows(const Chosen chosen) {
  extern __shared__ __align__(16) char shared[];
  typedef Kind<KIND> K;
  Pick* picks = (Pick*)shared;
  const int64 first = (int64)blockIdx.x * chosen.span;
  const int rows = at_most(chosen.rows - first, chosen.span), width = chosen.width;
  take(chosen, first, rows, picks, threadIdx.x, THREADS);
  __syncthreads();
  const int row = threadIdx.x * K::ITEM / width, step = THREADS * K::ITEM / width;
  K::Out* out = (K::Out*)chosen.out + first * width;
  write<K, IN_FLIGHT>((const K::In*)chosen.data, width, picks, rows, out, width, row, threadIdx.x * K::ITEM - row * width,
                      step, THREADS * K::ITEM - step * width);
}
