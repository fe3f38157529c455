// The arguments of the kernels in this folder. ops/resample/cuda.py defines the same structures.
#pragma once
#include "common/number.cuh"

namespace robocache {

struct Limits {
  int64 max_gap, max_age;  // ns
};

// One source, in device memory.
struct Stream {
  const void* data;      // (B, S, D)
  const void* times;     // (B, S), or (S) for all batches
  const int64* lengths;  // (B) number of samples used, or null for all S
  Limits limits;
  int samples;         // S
  int width;           // columns of a tile: all D, or the columns of one of 2^part_bits parts
  int part_bits;
  int column;          // first column in a row of the output
  int group;           // batches in a tile
  int span;            // targets in a tile: all T if group > 1
  int tiles;           // number of tiles of a batch, or of a part of its columns
  int traits;          // number of its StreamTraits
  int lanes;           // number of threads that write
  int step, rest;      // rows and columns from a thread's item to its next item
  int reach;           // columns that the items of a row cover, wherever the first item begins
  uint32 width_magic;  // for division by width
  uint32 reach_magic;  // for division by reach
};

// The arguments that all streams share.
struct Job {
  void* out;            // (B, T, pitch)
  const void* targets;  // (B, T), or (T) for all batches
  uint8* valid;         // (B, T, marks), or null
  int64* age;           // (B, T, marks) ns, or null
  int batches;          // B
  int count;            // T
  int pitch;            // elements of a row of the output
  int marks, mark;      // number of streams of the output, and the first one of this launch
  uint32 count_magic;   // for division by T, if a tile has several batches
  int turn;             // number of blocks of all streams for the number of batches in the largest tile
  uint32 turn_magic;    // for division by turn; 0 if there is only one turn
};

template <int COUNT>
struct ResampleArguments {
  Job job;
  Stream streams[COUNT];
  int first[COUNT];  // first block of each stream in a turn; contiguous, because every block searches them
};

// Rows of one source that the caller selected.
struct BlendArguments {
  const void* data;     // (S, D)
  void* out;            // (rows, D)
  const int64* lower;   // (rows), -1 for none
  const int64* upper;   // (rows), -1 for none: only the lower sample is used
  const float* weight;  // (rows)
  int64 rows;
  int samples;  // S
  int width;    // D
  int span;     // rows per block
};

}  // namespace robocache
