// Area means of packed images whose data and rows are aligned to 16 bytes. Each byte is read about once.
//
// Compiled for the PIXEL_BYTES of a source, for one ELEMENT kind of the result and for blocks of THREADS. One kind
// keeps the code short: fetching it takes a notable part of a kernel of 4 us.
#include "image/area.cuh"
#include "common/dependent_launch.cuh"

using namespace robocache;

constexpr int CHANNELS = PIXEL_BYTES == 1 ? 1 : 3;

// A block computes `per_block` columns of one output row. It first sums every byte of these columns over the rows in
// shared memory, sixteen bytes per thread, and then computes the means of these sums over columns.
extern "C" __global__ void __launch_bounds__(THREADS, 8) area_packed(
    const __grid_constant__ AreaArguments arguments
) {
  const Image& image = arguments.convert.image;
  const Axis &across = arguments.across, &down = arguments.down;
  const int out_width = arguments.convert.width, out_height = arguments.convert.height, per_block = arguments.per_block;
  __shared__ Chunk sums[2 * THREADS];
  let_next_begin();
  const int y = blockIdx.y, x_begin = blockIdx.x * per_block, x_end = min(x_begin + per_block, out_width);
  const int begin = (image.left + cover_of(across, x_begin).first) * PIXEL_BYTES & -16;
  const int end = (image.left + cover_of(across, x_end - 1).last + 1) * PIXEL_BYTES;
  const int byte = begin + 16 * threadIdx.x;
  const Cover rows = cover_of(down, y);
  wait_for_previous();
  if (byte < end) {
    const unsigned char* bytes = image.data + image.step * (image.top + rows.first) + byte;
    sum_rows(bytes, (uint32)image.step, down, rows, sums + 2 * threadIdx.x);
  }
  __syncthreads();
  for (int x = x_begin + threadIdx.x; x < x_end; x += THREADS) {
    const Cover cover = cover_of(across, x);
    const unsigned short* first =
        reinterpret_cast<const unsigned short*>(sums) + (image.left + cover.first) * PIXEL_BYTES - begin;
    const long long at = (long long)y * out_width + x, plane = (long long)out_height * out_width;
    int value[CHANNELS];
#pragma unroll
    for (int channel = 0; channel < CHANNELS; ++channel)
      value[channel] = mean_across<PIXEL_BYTES>(first + image.offset[channel], across, cover, across.source * down.source);
#pragma unroll
    for (int channel = 0; channel < CHANNELS; ++channel)
      store_u8(arguments.convert.out, channel * plane + at, value[channel], ELEMENT, arguments.convert.affine, channel);
  }
}
