// Area means of a packed image, sixteen bytes of a row at a time.
//
// The overlap of a source pixel with an output pixel is a whole number of shares. A share is a source pixel divided by
// the output size in lowest terms: 1080 rows to 224 are 135 to 28, so a source row has 28 shares and an output row 135.
// The weighted sum of a column's bytes therefore mostly fits in 16 bits, and two sums fit in a register.
#pragma once
#include "image/pixel.cuh"

namespace robocache {

// The source pixels that an output pixel covers, and the shares of the first and the last pixel that are outside of it.
struct Cover {
  int first, last, before, after;
};

HD Cover cover_of(const Axis& axis, int i) {
  const int start = i * axis.source, end = start + axis.source;
  Cover cover;
  cover.first = divided(start, axis.out, axis.magic);
  cover.last = divided(end - 1, axis.out, axis.magic);
  cover.before = start - cover.first * axis.out;
  cover.after = (cover.last + 1) * axis.out - end;
  return cover;
}

struct alignas(16) Chunk {
  uint32 word[4];
};

HD uint32 odd_bytes(uint32 word) {
#if defined(__CUDA_ARCH__)
  return __byte_perm(word, 0, 0x4341);
#else
  return word >> 8 & 0x00ff00ff;
#endif
}

// Sums sixteen columns of bytes over the rows of `cover`, weighted, to 16 bits each, in order. `down.source` is at most 65535 / 255.
// `bytes` points into the first row.
HD void sum_rows(const unsigned char* bytes, uint32 step, const Axis& down, Cover cover, Chunk* sums) {
  constexpr int AHEAD = 6;  // loads in flight together
  uint32 even[4] = {}, odd[4] = {};
  const int rows = cover.last - cover.first;  // minus one
  for (int start = 0; start <= rows; start += AHEAD) {
    Chunk loaded[AHEAD];
    UNROLL
    for (int k = 0; k < AHEAD; ++k) {
      const int row = start + k < rows ? start + k : rows;
      loaded[k] = *reinterpret_cast<const Chunk*>(bytes + step * row);
    }
    UNROLL
    for (int k = 0; k < AHEAD; ++k) {
      const int row = start + k;
      const int inside = down.out - (row == 0 ? cover.before : 0) - (row == rows ? cover.after : 0);
      const uint32 weight = row <= rows ? inside : 0;
      UNROLL
      for (int i = 0; i < 4; ++i) {
        even[i] += (loaded[k].word[i] & 0x00ff00ff) * weight;
        odd[i] += odd_bytes(loaded[k].word[i]) * weight;
      }
    }
  }
  UNROLL
  for (int i = 0; i < 4; ++i) {
    sums[i / 2].word[i % 2 * 2] = (even[i] & 0xffff) | odd[i] << 16;
    sums[i / 2].word[i % 2 * 2 + 1] = even[i] >> 16 | (odd[i] & 0xffff0000);
  }
}

// The mean, 0..255, over the columns of `cover`; their sums over the rows are `stride` apart. `pixels`: shares of an
// output pixel.
template <int stride>
HD int mean_across(const unsigned short* sums, const Axis& across, Cover cover, uint32 pixels) {
  uint32 total = 0;
  UNROLL_BY(5)
  for (int i = 0; i < across.least; ++i) total += sums[i * stride];
  const int columns = cover.last - cover.first + 1;
  const int last = (columns > across.least ? across.out : 0) - cover.after;  // corrects the share of the last column
  total = total * across.out - sums[0] * cover.before + sums[(columns - 1) * stride] * last;
  return quotient(total + pixels / 2, pixels);
}

}  // namespace robocache
