// The arguments of the kernels in this folder. ops/image/cuda.py defines the same structures.
#pragma once
#include "common/number.cuh"

namespace robocache {

struct Image {
  const unsigned char* data;
  long long step;              // bytes from a row to the next row
  int width, height;           // of the full image; NV12's chroma starts at step * height
  int top, left, rows, columns;  // of the crop
  int pixel_bytes;
  int offset[4];               // PACKED: byte of each channel; YUV422: of Y0, U, Y1, V; BAYER: x and y of the red pixel
  int big_endian;
  int channels;
};

// (value - mean) / std of each channel.
struct Affine {
  int given;
  float mean[3], std[3];
};

struct ConvertArguments {
  Image image;
  Affine affine;
  void* out;            // (channels, height, width)
  int width, height;    // of the result
  int element;          // enum ElementKind of the result, for kernels that are not compiled for one kind
};

struct AreaImageArguments {
  ConvertArguments convert;
  int per_block;  // columns of the result that a block computes
  int vector;     // bytes of a load: 4, or 1 if the address or the step of PACKED data is not a multiple of 4
};

// One axis; both sizes are in lowest terms.
struct Axis {
  int source, out;
  uint32 magic;  // for division by `out`; see `divided`
  int least;     // source pixels that an output pixel covers fully or in part are this many, or one more
};

struct AreaArguments {
  ConvertArguments convert;
  Axis across, down;
  int per_block;  // columns of the result that a block computes
};

// (planes, plane) uint8; the channel of a plane is its number modulo `channels`.
struct NormalizeArguments {
  const unsigned char* image;
  Affine affine;
  void* out;
  long long planes, plane;
  int channels;
};

}  // namespace robocache
