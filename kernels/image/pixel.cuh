// Images: the bytes of a message -> RGB (or depth) -> resized -> normalised, one output pixel at a time.
//
// The arithmetic of robocache_ros/ops/image/convert.py: integers for 8-bit images; floats with one rounding per operation
// for depth and for normalising.
#pragma once
#include "image/arguments.cuh"

#if defined(__CUDACC__)
#define UNROLL _Pragma("unroll")
#else
#define UNROLL
#endif

namespace robocache {

enum Family { PACKED, YUV422, NV12, BAYER, U16, F32 };
enum Resize { NEAREST, BILINEAR, AREA };
enum ElementKind { ELEMENT_U8, ELEMENT_F32, ELEMENT_F16, ELEMENT_BF16 };  // of the result

constexpr int WEIGHT_BITS = 11;

// n / d for n and d >= 0, with a quotient of at most 2**20. A float division and a correction take a third of the time
// of an integer division.
HD int quotient(unsigned int n, unsigned int d) {
#if defined(__CUDA_ARCH__)
  unsigned int q = (unsigned int)__fdividef((float)n, (float)d);
  const int rest = (int)(n - q * d);
  return (int)q + (rest < 0 ? -1 : rest >= (int)d ? 1 : 0);
#else
  return (int)(n / d);
#endif
}

HD int clamp_u8(int value) { return value < 0 ? 0 : value > 255 ? 255 : value; }

// BT.601, limited range, with 20 fractional bits.
HD void bt601(int luma, int u, int v, int* rgb) {
  const int y = (luma > 16 ? luma - 16 : 0) * 1220542;
  const int half = 1 << 19;
  u -= 128;
  v -= 128;
  rgb[0] = clamp_u8((y + (1673527 * v + half)) >> 20);
  rgb[1] = clamp_u8((y + (-852492 * v - 409993 * u + half)) >> 20);
  rgb[2] = clamp_u8((y + (2116026 * u + half)) >> 20);
}

HD int mirrored(int i, int size) { return i < 0 ? -i : i >= size ? 2 * size - 2 - i : i; }

HD int bayer_at(const Image& image, int x, int y) {
  return image.data[image.step * mirrored(y, image.height) + mirrored(x, image.width)];
}

HD void demosaic(const Image& image, int x, int y, int* rgb) {
  const bool red_row = (y & 1) == image.offset[1], red_column = (x & 1) == image.offset[0];
  const int here = bayer_at(image, x, y);
  const int up = bayer_at(image, x, y - 1), down = bayer_at(image, x, y + 1);
  const int left = bayer_at(image, x - 1, y), right = bayer_at(image, x + 1, y);
  if (red_row == red_column) {  // at a red or a blue pixel
    const int corners = (bayer_at(image, x - 1, y - 1) + bayer_at(image, x + 1, y - 1) +
                             bayer_at(image, x - 1, y + 1) + bayer_at(image, x + 1, y + 1) + 2) >> 2;
    rgb[0] = red_row ? here : corners;
    rgb[1] = (left + right + up + down + 2) >> 2;
    rgb[2] = red_row ? corners : here;
  } else {
    const int beside = (left + right + 1) >> 1, above = (up + down + 1) >> 1;
    rgb[0] = red_row ? beside : above;
    rgb[1] = here;
    rgb[2] = red_row ? above : beside;
  }
}

// The colour (or grey, in rgb[0]) of the pixel at column x, row y of the full image.
template <int family>
HD void rgb_at(const Image& image, int x, int y, int* rgb) {
  const unsigned char* row = image.data + image.step * y;
  if (family == PACKED) {
    const unsigned char* pixel = row + x * image.pixel_bytes;
    rgb[0] = pixel[image.offset[0]];
    if (image.channels == 3) {
      rgb[1] = pixel[image.offset[1]];
      rgb[2] = pixel[image.offset[2]];
    }
  } else if (family == YUV422) {
    const unsigned char* pair = row + (x >> 1) * 4;
    bt601(pair[image.offset[(x & 1) * 2]], pair[image.offset[1]], pair[image.offset[3]], rgb);
  } else if (family == NV12) {
    const unsigned char* chroma = image.data + image.step * (image.height + (y >> 1)) + (x >> 1) * 2;
    bt601(row[x], chroma[0], chroma[1], rgb);
  } else {
    demosaic(image, x, y, rgb);
  }
}

// Depth in the units of the message.
template <int family>
HD float depth_at(const Image& image, int x, int y) {
  const unsigned char* p = image.data + image.step * y + (long long)x * image.pixel_bytes;
  if (family == U16) return float(image.big_endian ? p[0] << 8 | p[1] : p[1] << 8 | p[0]);
  const unsigned int bytes[4] = {p[0], p[1], p[2], p[3]};
  return float_of(image.big_endian ? bytes[0] << 24 | bytes[1] << 16 | bytes[2] << 8 | bytes[3]
                                     : bytes[3] << 24 | bytes[2] << 16 | bytes[1] << 8 | bytes[0]);
}

// Source positions within the crop, for output index i of `out` and a source of `size`; sides are at most 16384.
HD int nearest_tap(int i, int size, int out) { return quotient((2 * i + 1) * size, 2 * out); }

struct Tap {
  int lower, upper, remainder;  // the share of `upper` is remainder / (2 * out)
};

HD Tap bilinear_tap(int i, int size, int out) {
  int position = (2 * i + 1) * size - out;
  if (position < 0) position = 0;
  Tap tap;
  tap.lower = quotient(position, 2 * out);
  tap.upper = tap.lower + 1 < size ? tap.lower + 1 : size - 1;
  tap.remainder = position - tap.lower * 2 * out;
  return tap;
}

HD int fixed_weight(Tap tap, int out) { return quotient((tap.remainder << WEIGHT_BITS) + out, 2 * out); }

// The source pixels of output index i, and the overlap of a source pixel with it, in units of 1 / out of a pixel.
struct Span {
  int first, last;  // inclusive
};

HD Span area_span(int i, int size, int out) {
  Span span;
  span.first = quotient(i * size, out);
  span.last = quotient((i + 1) * size - 1, out);
  return span;
}

HD int area_overlap(int index, int i, int size, int out) {
  const int end = (index + 1) * out < (i + 1) * size ? (index + 1) * out : (i + 1) * size;
  const int start = index * out > i * size ? index * out : i * size;
  return end - start;
}

HD int area_mean(unsigned long long total, int rows, int columns) {
  const unsigned long long pixels = (unsigned long long)rows * columns;
  if (pixels <= 0xffffffffull / 256) {  // fits in 32 bits, whose division is much faster
    return quotient((unsigned int)total + (unsigned int)pixels / 2, (unsigned int)pixels);
  }
  return int((total + pixels / 2) / pixels);
}

// The resized colour at output column x, row y, 0..255.
//
// AREA handles any image here, one pixel at a time, for the graph of a tick and for images too wide for shared memory.
// Two kernels give the same bits in less time: area.cu for packed and aligned rows (1080p to 224 x 224 in 3.8 us), and
// area_image in convert.cu for other 8-bit images.
template <int family, int resize>
HD void resized_rgb(const Image& image, int x, int y, int out_width, int out_height, int* rgb) {
  if (resize == NEAREST) {
    rgb_at<family>(image, image.left + nearest_tap(x, image.columns, out_width),
                       image.top + nearest_tap(y, image.rows, out_height), rgb);
  } else if (resize == BILINEAR) {
    const Tap tx = bilinear_tap(x, image.columns, out_width), ty = bilinear_tap(y, image.rows, out_height);
    const int wx = fixed_weight(tx, out_width), wy = fixed_weight(ty, out_height), one = 1 << WEIGHT_BITS;
    int a[3] = {}, b[3] = {}, c[3] = {}, d[3] = {};
    rgb_at<family>(image, image.left + tx.lower, image.top + ty.lower, a);
    rgb_at<family>(image, image.left + tx.upper, image.top + ty.lower, b);
    rgb_at<family>(image, image.left + tx.lower, image.top + ty.upper, c);
    rgb_at<family>(image, image.left + tx.upper, image.top + ty.upper, d);
    UNROLL
    for (int channel = 0; channel < 3; ++channel) {  // channels that the image lacks are zero
      const int left = a[channel] * (one - wy) + c[channel] * wy;
      const int right = b[channel] * (one - wy) + d[channel] * wy;
      rgb[channel] = (left * (one - wx) + right * wx + (1 << (2 * WEIGHT_BITS - 1))) >> (2 * WEIGHT_BITS);
    }
  } else {
    const Span sx = area_span(x, image.columns, out_width), sy = area_span(y, image.rows, out_height);
    unsigned long long total[3] = {0, 0, 0};
    for (int j = sy.first; j <= sy.last; ++j) {
      unsigned int row[3] = {0, 0, 0};
      for (int i = sx.first; i <= sx.last; ++i) {
        int value[3] = {0, 0, 0};
        rgb_at<family>(image, image.left + i, image.top + j, value);
        const int weight = area_overlap(i, x, image.columns, out_width);
        UNROLL
        for (int channel = 0; channel < 3; ++channel) row[channel] += weight * value[channel];
      }
      const unsigned long long weight = area_overlap(j, y, image.rows, out_height);
      UNROLL
      for (int channel = 0; channel < 3; ++channel) total[channel] += weight * row[channel];
    }
    UNROLL
    for (int channel = 0; channel < 3; ++channel)
      rgb[channel] = area_mean(total[channel], image.rows, image.columns);
  }
}

// Returns the lower value if the weight is 0, so that a NaN next to it does not spread.
HD float lerp_depth(float lower, float upper, float weight) {
  return weight == 0.0f ? lower : add(lower, mul(weight, sub(upper, lower)));
}

template <int family, int resize>
HD float resized_depth(const Image& image, int x, int y, int out_width, int out_height) {
  if (resize == NEAREST) {
    return depth_at<family>(image, image.left + nearest_tap(x, image.columns, out_width),
                image.top + nearest_tap(y, image.rows, out_height));
  }
  if (resize == BILINEAR) {
    const Tap tx = bilinear_tap(x, image.columns, out_width), ty = bilinear_tap(y, image.rows, out_height);
    const int x0 = image.left + tx.lower, x1 = image.left + tx.upper;
    const int y0 = image.top + ty.lower, y1 = image.top + ty.upper;
    const float wx = div(float(tx.remainder), float(2 * out_width));
    const float wy = div(float(ty.remainder), float(2 * out_height));
    const float left = lerp_depth(depth_at<family>(image, x0, y0), depth_at<family>(image, x0, y1), wy);
    const float right = lerp_depth(depth_at<family>(image, x1, y0), depth_at<family>(image, x1, y1), wy);
    return lerp_depth(left, right, wx);
  }
  const Span sx = area_span(x, image.columns, out_width), sy = area_span(y, image.rows, out_height);
  double total = 0;
  for (int i = sx.first; i <= sx.last; ++i) {
    double column = 0;
    for (int j = sy.first; j <= sy.last; ++j) {
      column += double(area_overlap(j, y, image.rows, out_height)) *
                      double(depth_at<family>(image, image.left + i, image.top + j));
    }
    total += double(area_overlap(i, x, image.columns, out_width)) * column;
  }
  return float(total / (double(image.rows) * double(image.columns)));
}

HD float normalized(float value, const Affine& affine, int channel) {
  return affine.given ? div(sub(value, affine.mean[channel]), affine.std[channel]) : value;
}

// value / 255 for 0..255, with the same bits (a test compares all 256), but without a division. A division has a branch
// for subnormal numbers, which keeps the channels of a pixel from overlapping.
HD float unit_of_u8(int value) {
  const float whole = float(value), inverse = 1.0f / 255, near = mul(whole, inverse);
  return fused(fused(near, -255.0f, whole), inverse, near);
}

HD void store(void* out, long long index, float value, int element) {
  if (element == ELEMENT_F32) static_cast<float*>(out)[index] = Rounded<float>::of(value);
  else if (element == ELEMENT_F16) static_cast<f16*>(out)[index] = Rounded<f16>::of(value);
  else static_cast<bf16*>(out)[index] = Rounded<bf16>::of(value);
}

HD void store_u8(void* out, long long index, int value, int element, const Affine& affine, int channel) {
  if (element == ELEMENT_U8) static_cast<uint8*>(out)[index] = (uint8)value;
  else store(out, index, normalized(unit_of_u8(value), affine, channel), element);
}

// Writes one output pixel, all channels, to out (channels, out_height, out_width).
template <int family, int resize>
HD void convert_pixel(
  const Image& image, const Affine& affine, int x, int y, int out_width, int out_height, void* out, int element
) {
  const long long plane = (long long)out_width * out_height, at = (long long)y * out_width + x;
  if (family == U16 || family == F32) {
    const float value = resized_depth<family == U16 ? U16 : F32, resize>(image, x, y, out_width, out_height);
    store(out, at, normalized(value, affine, 0), element);
  } else {
    int rgb[3] = {};
    resized_rgb<family, resize>(image, x, y, out_width, out_height, rgb);
    UNROLL
    for (int channel = 0; channel < 3; ++channel)
      if (channel < image.channels) store_u8(out, channel * plane + at, rgb[channel], element, affine, channel);
  }
}

}  // namespace robocache
