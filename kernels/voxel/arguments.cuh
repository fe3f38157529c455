// The arguments of the kernels in this folder. ops/voxel/cuda.py defines the same structures.
#pragma once
#include "common/number.cuh"

namespace robocache {

typedef unsigned long long uint64;

// How x, y and z are read: byte by byte, as aligned floats, by one aligned 16-byte load, or projected from a depth.
enum Layout { BYTES, WORDS, VECTORS, PIXELS };
// A rectified camera; a colour image of the same size may be registered to its depth image.
struct Camera {
  float fx, fy, cx, cy;  // pixels
  float unit;            // depth units per metre: 1000 for millimetres
  int color_step;        // bytes from the colour of a pixel to the colour of the next pixel
  int64 color;           // bytes from the depth image to the colour image
  int64 color_row;       // bytes from a row of colours to the next row
};

constexpr int MAX_FIELDS = 16;

// Clouds as bytes, and the grid that their points are placed in. A (B, N, 3 + F) float32 tensor is one such layout.
struct Clouds {
  const unsigned char* data;
  const long long* lengths;  // (B,) points of each cloud, or null
  long long cloud_step;      // bytes from a cloud to the next one
  long long row_step, point_step;
  long long count;           // points of each cloud
  long long width;           // points of a row; `count` if rows follow each other without a gap
  float transform[12];       // rows of [R | t], grid <- sensor
  float low[3], size[3];     // of the grid, and of a voxel
  int shape[3];
  int layout, big_endian, transformed;
  int features;              // F
  int listed;                // `offset` and `type` describe the features; else they are float32 after z
  int reads_features;        // points with a feature that is not finite are not placed
  int offset[3 + MAX_FIELDS];
  int type[3 + MAX_FIELDS];  // PointField's datatypes 1..8; 0, -1 and -2 mean the transformed x, y and z
  Camera camera;             // for PIXELS: points are depths of the first type, features are colour bytes
};

// Memory to clear: `bytes` bytes in each of `pieces`, whose starts are `apart` bytes apart; and the tally of all
// clouds.
struct ClearArguments {
  unsigned char* out;
  long long bytes, pieces, apart;
  uint64* tally;
  long long counters;
};

// A dense grid of each cloud. The grid and the tally are cleared.
struct PlaceArguments {
  Clouds clouds;
  void* grid;
  uint64* tally;    // (B, 3)
  long long batch;  // B
  long long cells;  // elements of the grid of a cloud
  int words;        // the grid consists of aligned 32-bit words
};

struct LocateArguments {
  Clouds clouds;
  long long* cell;  // (B * N,)
  uint64* tally;    // (B, 3)
  long long batch, cells;
  float* rows;  // (B * N, 3 + F), or null
  float limit;  // features above it saturate and are counted; 0: features are not counted
};

// Points to sort by bins: `tiles` tiles of `tile` points in each cloud, and 1 << bits bins.
struct SortArguments {
  Clouds clouds;
  float* rows;                    // (B, tiles, tile, F)
  uint32 *words, *runs, *refused; // (B, tiles, tile), (B, 1 << bits, tiles), (B, tiles, 3)
  int tiles, tile, bits;
  float scale, limit, unit;  // of the fixed point
};

// Bins to reduce: each has `places` cells, and room for `capacity` records in `bytes` of shared memory.
struct BinArguments {
  float* grid;  // (B, F, cells)
  const float* rows;
  const uint32 *words, *runs, *refused;
  uint64* tally;  // (B, 3)
  int cells;
  int tiles, tile, bits;
  int places, capacity, bytes;
  float scale, unit;
  int aligned;  // cells can be written four at a time
};

struct ClaimArguments {
  Clouds clouds;
  uint32* grid;   // (B, F, cells): the plane of each cloud's first feature, cleared, becomes the claims
  void* rows;     // (B, N) rows of terms: scratch
  uint64* tally;  // (B, 3), cleared
  long long batch, cells;
  float scale, limit;
};

struct WriteArguments {
  Clouds clouds;
  float* grid;       // (B, F, cells) float32
  const void* rows;  // (B, N) rows of terms
  long long batch, cells;
  float scale, limit, unit;
  int aligned;  // the cells that a thread writes are one aligned piece of each plane
};

}  // namespace robocache
