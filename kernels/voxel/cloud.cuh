// From bytes to cells: reads any PointCloud2 layout, applies the sensor's pose, and computes the cell of a point.
//
// The arithmetic of robocache_ros/ops/voxel/voxelize.py, one rounding per operation.
#pragma once
#include "voxel/camera.cuh"

namespace robocache {

// The inputs that the kernels of a module can read. With 0, the code for an input is left out.
#ifndef ANY_LAYOUT
#define ANY_LAYOUT 1  // coordinates of any type at any alignment, not only aligned float32
#endif
#ifndef ANY_FEATURE
#define ANY_FEATURE 1  // features as listed, not only float32 that follow z
#endif

#ifndef DEPTH
#define DEPTH 1  // depth images, projected as they are read
#endif

enum { NOT_FINITE = -1, OUTSIDE = -2, NO_POINT = -3 };  // instead of a cell
enum { UINT16 = 4 };  // of PointField's datatypes
HD int64 points_of(const Clouds& clouds, int64 cloud) {
  if (!clouds.lengths) return clouds.count;
  const int64 length = clouds.lengths[cloud];
  return length < 0 ? 0 : length > clouds.count ? clouds.count : length;
}

HD const unsigned char* point_at(const Clouds& clouds, int64 cloud, int64 point) {
  const unsigned char* start = clouds.data + cloud * clouds.cloud_step;
  if (clouds.width == clouds.count) return start + point * clouds.point_step;
  return start + point / clouds.width * clouds.row_step + point % clouds.width * clouds.point_step;
}

HD uint64 word_at(const unsigned char* p, int bytes, int big_endian) {
  uint64 word = 0;
  for (int i = 0; i < bytes; ++i) word |= (uint64)p[big_endian ? bytes - 1 - i : i] << 8 * i;
  return word;
}

HD double double_of(uint64 bits) {
#if defined(__CUDA_ARCH__)
  return __longlong_as_double((long long)bits);
#else
  double value;
  memcpy(&value, &bits, sizeof value);
  return value;
#endif
}

// A value of a PointField datatype, rounded to float32. Not inlined, because it would be most of every kernel.
#if defined(__CUDACC__)
static __device__ __noinline__
#else
inline
#endif
float scalar_at(const unsigned char* p, int type, int big_endian) {
  switch (type) {
    case 1: return (float)(signed char)*p;
    case 2: return (float)*p;
    case 3: return (float)(short)word_at(p, 2, big_endian);
    case 4: return (float)(unsigned short)word_at(p, 2, big_endian);
    case 5: return (float)(int)word_at(p, 4, big_endian);
    case 6: return (float)(uint32)word_at(p, 4, big_endian);
    case 7: return float_of((uint32)word_at(p, 4, big_endian));
    default: return (float)double_of(word_at(p, 8, big_endian));
  }
}

struct Point {
  float x, y, z;
};

struct Pixel {
  int u, v;  // column, row
};

// The pixel whose depth is at `p`, in a depth image of less than 2^31 bytes.
HD Pixel pixel_of(const Clouds& clouds, const unsigned char* p) {
  const uint32 step = (uint32)clouds.row_step, at = (uint32)(p - clouds.data), row = at / step;
  return Pixel{(int)((at - row * step) >> (clouds.type[0] == UINT16 ? 1 : 2)), (int)row};
}

HD float read_depth(const Clouds& clouds, const unsigned char* p) {
  if (clouds.type[0] == UINT16) return (float)word_at(p, 2, clouds.big_endian);
  return float_of((uint32)word_at(p, 4, clouds.big_endian));
}

HD float moved(const float* row, float x, float y, float z) {
  return add(add(add(mul(row[0], x), mul(row[1], y)), mul(row[2], z)), row[3]);
}

// The point that is stored in the bytes, in the sensor's frame.
HD Point read_point(const Clouds& clouds, const unsigned char* p) {
  Point point;
  if (DEPTH && clouds.layout == PIXELS) {
    const Pixel pixel = pixel_of(clouds, p);
    project(clouds.camera, read_depth(clouds, p), pixel.u, pixel.v, point.x, point.y, point.z);
    return point;
  }
#if defined(__CUDACC__)
  if (clouds.layout == VECTORS) {
    const float4 loaded = *reinterpret_cast<const float4*>(p + clouds.offset[0]);
    return Point{loaded.x, loaded.y, loaded.z};
  }
#endif
  if (!ANY_LAYOUT || clouds.layout != BYTES) {
    point.x = *reinterpret_cast<const float*>(p + clouds.offset[0]);
    point.y = *reinterpret_cast<const float*>(p + clouds.offset[1]);
    point.z = *reinterpret_cast<const float*>(p + clouds.offset[2]);
  } else {
    point.x = scalar_at(p + clouds.offset[0], clouds.type[0], clouds.big_endian);
    point.y = scalar_at(p + clouds.offset[1], clouds.type[1], clouds.big_endian);
    point.z = scalar_at(p + clouds.offset[2], clouds.type[2], clouds.big_endian);
  }
  return point;
}

HD Point to_grid(const Clouds& clouds, Point p) {
  if (!clouds.transformed) return p;
  const float* m = clouds.transform;
  return Point{moved(m, p.x, p.y, p.z), moved(m + 4, p.x, p.y, p.z), moved(m + 8, p.x, p.y, p.z)};
}

// Feature f of the point at `p`; `point` is the same point in the grid's frame.
HD float feature_at(const Clouds& clouds, const unsigned char* p, Point point, int f) {
  if (!ANY_FEATURE || !clouds.listed) return *reinterpret_cast<const float*>(p + 12 + 4 * f);
  const int type = clouds.type[3 + f];
  if (type <= 0) return type == 0 ? point.x : type == -1 ? point.y : point.z;
  if (DEPTH && clouds.layout == PIXELS) {
    const Pixel pixel = pixel_of(clouds, p);
    const Camera& camera = clouds.camera;
    const int64 at = camera.color + pixel.v * camera.color_row + pixel.u * camera.color_step;
    return (float)clouds.data[at + clouds.offset[3 + f]];
  }
  return scalar_at(p + clouds.offset[3 + f], type, clouds.big_endian);
}

HD float feature_of(const Clouds& clouds, const unsigned char* p, int f) {
  return feature_at(clouds, p, to_grid(clouds, read_point(clouds, p)), f);
}

HD bool finite(float value) { return fabsf(value) < float_of(0x7f800000); }

// The cell, row-major with z fastest; or NOT_FINITE or OUTSIDE.
HD int cell_of(const Clouds& clouds, Point point) {
  const float x = div(sub(point.x, clouds.low[0]), clouds.size[0]);
  const float y = div(sub(point.y, clouds.low[1]), clouds.size[1]);
  const float z = div(sub(point.z, clouds.low[2]), clouds.size[2]);
  if (x >= 0 && x < (float)clouds.shape[0] && y >= 0 && y < (float)clouds.shape[1] && z >= 0 &&
      z < (float)clouds.shape[2])
    return ((int)x * clouds.shape[1] + (int)y) * clouds.shape[2] + (int)z;
  return finite(point.x) && finite(point.y) && finite(point.z) ? OUTSIDE : NOT_FINITE;
}

// Like cell_of; also NOT_FINITE if the reduction reads features and one of them is not finite.
HD int place(const Clouds& clouds, const unsigned char* p, Point point) {
  const int cell = cell_of(clouds, point);
  if (clouds.reads_features && cell != NOT_FINITE) {
    for (int f = 0; f < clouds.features; ++f)
      if (!finite(feature_at(clouds, p, point, f))) return NOT_FINITE;
  }
  return cell;
}

}  // namespace robocache
