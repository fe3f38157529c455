// Images: bytes in device memory -> (channels, out_height, out_width), in one pass. Compiled for one FAMILY and one RESIZE.
#include "image.cuh"

#ifndef FAMILY
#define FAMILY PACKED
#define RESIZE AREA
#endif

using namespace robocache;

// One thread makes one output pixel.
extern "C" __global__ void convert_image(
    Image image, Affine affine, void* out, int out_width, int out_height, int kind
) {
  const int at = blockIdx.x * blockDim.x + threadIdx.x;
  if (at >= out_width * out_height) return;
  convert_pixel<FAMILY, RESIZE>(image, affine, at % out_width, at / out_width, out_width, out_height, out, kind);
}

// The part of a row of bytes that a block sums over rows, in chunks of `vector` bytes from an aligned start.
template <class Chunk>
__device__ __forceinline__ void sum_rows(
    const Image& image, Span rows, int y, int out_height, int begin, int end, unsigned int* sums
) {
  constexpr int BYTES = sizeof(Chunk), WORDS = BYTES < 4 ? 1 : BYTES / 4, AHEAD = 6;
  for (int byte = begin + threadIdx.x * BYTES; byte < end; byte += blockDim.x * BYTES) {
    unsigned int total[BYTES] = {};
    for (int first = rows.first; first <= rows.last; first += AHEAD) {
      union { Chunk chunk; unsigned int word[WORDS]; unsigned char byte; } loaded[AHEAD];
#pragma unroll
      for (int k = 0; k < AHEAD; ++k) {  // all on their way before the first is used
        if (first + k > rows.last) break;
        loaded[k].chunk = *reinterpret_cast<const Chunk*>(image.data + image.step * (image.top + first + k) + byte);
      }
#pragma unroll
      for (int k = 0; k < AHEAD; ++k) {
        if (first + k > rows.last) break;
        const unsigned int weight = area_overlap(first + k, y, image.rows, out_height);
#pragma unroll
        for (int i = 0; i < BYTES; ++i)
          total[i] += weight * (BYTES == 1 ? loaded[k].byte : loaded[k].word[i / 4] >> i % 4 * 8 & 255);
      }
    }
#pragma unroll
    for (int i = 0; i < BYTES; ++i) sums[byte - begin + i] = total[i];
  }
}

// A block makes `per_block` columns of one output row: first the weighted sum over the rows of each byte (PACKED) or of each
// pixel's colours, read once and coalesced, into shared memory; then the sums over columns.
// `vector`: 16, 4 or 1; PACKED data and step are multiples of it.
extern "C" __global__ void __launch_bounds__(128) area_image(
    Image image, Affine affine, void* out, int out_width, int out_height, int kind, int per_block, int vector
) {
  extern __shared__ unsigned int sums[];
  const int y = blockIdx.y, x_begin = blockIdx.x * per_block;
  const int count = min(per_block, out_width - x_begin);
  const int first = area_span(x_begin, image.columns, out_width).first;
  const int last = area_span(x_begin + count - 1, image.columns, out_width).last;
  const Span rows = area_span(y, image.rows, out_height);
  int start = 0;  // of the sums, in bytes of the row
  if (FAMILY == PACKED) {
    start = (image.left + first) * image.pixel_bytes / vector * vector;
    const int end = (image.left + last + 1) * image.pixel_bytes;
    if (vector == 16) sum_rows<uint4>(image, rows, y, out_height, start, end, sums);
    else if (vector == 4) sum_rows<unsigned int>(image, rows, y, out_height, start, end, sums);
    else sum_rows<unsigned char>(image, rows, y, out_height, start, end, sums);
  } else {
    for (int i = first + threadIdx.x; i <= last; i += blockDim.x) {
      unsigned int total[3] = {};
      for (int j = rows.first; j <= rows.last; ++j) {
        int rgb[3];
        rgb_at<FAMILY>(image, image.left + i, image.top + j, rgb);
        const int weight = area_overlap(j, y, image.rows, out_height);
        for (int channel = 0; channel < 3; ++channel) total[channel] += weight * rgb[channel];
      }
      for (int channel = 0; channel < 3; ++channel) sums[(i - first) * 3 + channel] = total[channel];
    }
  }
  __syncthreads();
  for (int item = threadIdx.x; item < count * image.channels; item += blockDim.x) {
    const int channel = item / count, x = x_begin + item % count;
    const Span span = area_span(x, image.columns, out_width);
    const unsigned int* sum = FAMILY == PACKED
        ? sums + (image.left + span.first) * image.pixel_bytes - start + image.offset[channel]
        : sums + (span.first - first) * 3 + channel;
    const int stride = FAMILY == PACKED ? image.pixel_bytes : 3;
    unsigned long long total = 0;
    for (int i = span.first; i <= span.last; ++i, sum += stride)
      total += (unsigned long long)area_overlap(i, x, image.columns, out_width) * *sum;
    const int value = area_mean(total, image.rows, image.columns);
    store_u8(out, ((long long)channel * out_height + y) * out_width + x, value, kind, affine, channel);
  }
}

// (planes, plane) uint8, the channel of a plane being its number modulo `channels` -> normalised `kind`.
extern "C" __global__ void normalize_image(
    const unsigned char* __restrict__ image, Affine affine, void* out, long long planes, long long plane, int channels,
    int kind
) {
  const long long step = (long long)gridDim.x * blockDim.x;
  for (long long which = blockIdx.y; which < planes; which += gridDim.y) {
    const int channel = which % channels;
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < plane; i += step)
      store_u8(out, which * plane + i, image[which * plane + i], kind, affine, channel);
  }
}
