// Images: bytes in device memory -> (channels, out_height, out_width), in one pass.
//
// Compiled for one FAMILY, one RESIZE and one ELEMENT kind of the result, and for blocks of THREADS. This keeps the
// code short and the loop over channels free of branches: a kernel of 3 us is limited by latency, and fetching its code
// takes time.
#include "image/pixel.cuh"
#include "common/dependent_launch.cuh"

using namespace robocache;

// One thread computes one output pixel.
extern "C" __global__ void __launch_bounds__(THREADS) convert_image(
    const __grid_constant__ ConvertArguments arguments
) {
  const int out_width = arguments.width, out_height = arguments.height;
  let_next_begin();
  const int at = blockIdx.x * blockDim.x + threadIdx.x, y = quotient(at, out_width), x = at - y * out_width;
  wait_for_previous();
  if (y < out_height)
    convert_pixel<FAMILY, RESIZE>(arguments.image, arguments.affine, x, y, out_width, out_height, arguments.out, ELEMENT);
}

// Sums the bytes begin..end of a row over rows; a thread sums BYTES of them, and `begin` is aligned to BYTES. All rows
// except the first and the last have the same weight: their bytes are summed in 16 bits each, two per register, before
// they are weighted.
template <int BYTES>
__device__ __forceinline__ void sum_rows(
    const Image& image, Span rows, int y, int out_height, int begin, int end, unsigned int* sums
) {
  constexpr int AHEAD = 4, MOST = 256;  // loads in flight together; rows whose sum of bytes fits in 16 bits
  constexpr unsigned int EVEN = 0x00ff00ff;
  const unsigned int first_weight = area_overlap(rows.first, y, image.rows, out_height);
  const unsigned int last_weight =
      rows.last > rows.first ? area_overlap(rows.last, y, image.rows, out_height) : 0;
  for (int byte = begin + threadIdx.x * BYTES; byte < end; byte += blockDim.x * BYTES) {
    const unsigned char* column = image.data + image.step * image.top + byte;
    const auto load = [&](int row) {
      const unsigned char* p = column + image.step * row;
      return BYTES == 4 ? *reinterpret_cast<const unsigned int*>(p) : (unsigned int)*p;
    };
    const unsigned int first = load(rows.first), last = load(rows.last);
    unsigned int inner[4] = {};
    for (int start = rows.first + 1; start < rows.last; start += MOST) {
      unsigned int even = 0, odd = 0;
      const int stop = min(start + MOST, rows.last);
      for (int row = start; row < stop; row += AHEAD) {
        unsigned int loaded[AHEAD];
#pragma unroll
        for (int k = 0; k < AHEAD; ++k) loaded[k] = row + k < stop ? load(row + k) : 0;
#pragma unroll
        for (int k = 0; k < AHEAD; ++k) {
          even += loaded[k] & EVEN;
          odd += loaded[k] >> 8 & EVEN;
        }
      }
      inner[0] += even & 0xffff, inner[1] += odd & 0xffff, inner[2] += even >> 16, inner[3] += odd >> 16;
    }
    unsigned int total[4];
#pragma unroll
    for (int i = 0; i < 4; ++i)
      total[i] = inner[i] * out_height + (first >> i * 8 & 255) * first_weight + (last >> i * 8 & 255) * last_weight;
    if constexpr (BYTES == 4) {
      *reinterpret_cast<uint4*>(sums + byte - begin) = make_uint4(total[0], total[1], total[2], total[3]);
    } else {
      sums[byte - begin] = total[0];
    }
  }
}

// A block computes `per_block` columns of one output row. It first sums each byte (PACKED) or the colours of each
// pixel, weighted, over the rows in shared memory, with coalesced reads that read each byte once. It then sums over
// columns.
extern "C" __global__ void __launch_bounds__(THREADS) area_image(
    const __grid_constant__ AreaImageArguments arguments
) {
  const Image& image = arguments.convert.image;
  const int out_width = arguments.convert.width, out_height = arguments.convert.height;
  const int per_block = arguments.per_block, vector = arguments.vector;
  extern __shared__ __align__(16) unsigned int sums[];
  const int y = blockIdx.y, x_begin = blockIdx.x * per_block;
  const int count = min(per_block, out_width - x_begin);
  const int first = area_span(x_begin, image.columns, out_width).first;
  const int last = area_span(x_begin + count - 1, image.columns, out_width).last;
  const Span rows = area_span(y, image.rows, out_height);
  int start = 0;  // byte of the row at which the sums begin
  if (FAMILY == PACKED) {
    start = (image.left + first) * image.pixel_bytes & -vector;
    const int end = (image.left + last + 1) * image.pixel_bytes;
    if (vector == 4) sum_rows<4>(image, rows, y, out_height, start, end, sums);
    else sum_rows<1>(image, rows, y, out_height, start, end, sums);
  } else {
    for (int i = first + threadIdx.x; i <= last; i += blockDim.x) {
      unsigned int total[3] = {};
      for (int j = rows.first; j <= rows.last; ++j) {
        int rgb[3] = {};
        rgb_at<FAMILY>(image, image.left + i, image.top + j, rgb);
        const int weight = area_overlap(j, y, image.rows, out_height);
#pragma unroll
        for (int channel = 0; channel < 3; ++channel) total[channel] += weight * rgb[channel];
      }
#pragma unroll
      for (int channel = 0; channel < 3; ++channel) sums[(i - first) * 3 + channel] = total[channel];
    }
  }
  __syncthreads();
  for (int item = threadIdx.x; item < count * image.channels; item += blockDim.x) {
    const int channel = quotient(item, count), x = x_begin + item - channel * count;
    const Span span = area_span(x, image.columns, out_width);
    const unsigned int* sum = FAMILY == PACKED
        ? sums + (image.left + span.first) * image.pixel_bytes - start + image.offset[channel]
        : sums + (span.first - first) * 3 + channel;
    const int stride = FAMILY == PACKED ? image.pixel_bytes : 3;
    const int inner = span.last - span.first - 1;
    unsigned long long total = 0;
#pragma unroll 4
    for (int i = 1; i <= inner; ++i) total += sum[i * stride];
    total *= (unsigned int)out_width;
    total += (unsigned long long)area_overlap(span.first, x, image.columns, out_width) * sum[0];
    if (inner >= 0)
      total += (unsigned long long)area_overlap(span.last, x, image.columns, out_width) * sum[(inner + 1) * stride];
    const int value = area_mean(total, image.rows, image.columns);
    store_u8(arguments.convert.out, ((long long)channel * out_height + y) * out_width + x, value, ELEMENT, arguments.convert.affine,
             channel);
  }
}

extern "C" __global__ void normalize_image(const __grid_constant__ NormalizeArguments arguments) {
  let_next_begin();
  wait_for_previous();
  const long long planes = arguments.planes, plane = arguments.plane;
  const long long step = (long long)gridDim.x * blockDim.x;
  for (long long which = blockIdx.y; which < planes; which += gridDim.y) {
    const int channel = which % arguments.channels;
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < plane; i += step)
      store_u8(arguments.out, which * plane + i, arguments.image[which * plane + i], ELEMENT, arguments.affine, channel);
  }
}
