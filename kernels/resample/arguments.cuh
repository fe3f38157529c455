// What the kernels of this folder are launched with. ops/resample/cuda/arguments.py has the same structures.
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
  const int64* lengths;  // (B) samples that count, or null: all S
  Limits limits;
  int samples;         // S
  int width;           // columns of a tile: all D, or as many of them as one of 2^part_bits parts has
  int part_bits;
  int column;          // its first column in a row of the output
  int group;           // batches in a tile
  int span;            // targets in a tile: all T of them where group > 1
  int tiles;           // that a batch, or a part of it, is cut into
  int traits;          // number of the StreamTraits by which it is read and written
  int lanes;           // threads that write
  int step, rest;      // rows and columns from a thread's item to its next
  int reach;           // columns that the items of a row cover, wherever the first of them begins
  uint32 width_magic;  // for division by width
  uint32 reach_magic;  // for division by reach
};

// What all streams share.
struct Job {
  void* out;            // (B, T, pitch)
  const void* targets;  // (B, T), or (T) for all batches
  uint8* valid;         // (B, T, marks), or null
  int64* age;           // (B, T, marks) ns, or null
  int batches;          // B
  int count;            // T
  int pitch;            // elements of a row of the output
  int marks, mark;      // streams that the output has, and which of them is the first one here
  uint32 count_magic;   // for division by T, where there are several batches in a tile
  int turn;             // blocks of all streams for as many batches as the largest tile has
  uint32 turn_magic;    // for division by turn; 0 where there is but one turn
};

template <int COUNT>
struct ResampleArguments {
  Job job;
  Stream streams[COUNT];
  int first[COUNT];  // block of each stream in a turn: all of them in a few words, for every block looks through them
};

// Rows of one source that the caller selected.
struct BlendArguments {
  const void* data;     // (S, D)
  void* out;            // (rows, D)
  const int64* lower;   // (rows), -1 for none
  const int64* upper;   // (rows), -1 for none: the lower one alone
  const float* weight;  // (rows)
  int64 rows;
  int samples;  // S
  int width;    // D
  int span;     // rows of a block
};

}  // namespace robocache
