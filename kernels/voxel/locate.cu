// The cells of points, and the clearing of memory before a launch that may be a programmatic dependent launch.
//
// Compiled with THREADS of a block.
#include "voxel/block.cuh"
#include "voxel/fixed_point.cuh"

using namespace robocache;

// Clears memory, 16 bytes at a time if aligned, and the tally of all clouds.
extern "C" __global__ void clear(const __grid_constant__ ClearArguments arguments) {
  wait_for_previous();  // first, because the next launch reads points that the previous launch may write
  let_next_begin();
  unsigned char* out = arguments.out;
  const long long bytes = arguments.bytes, pieces = arguments.pieces, apart = arguments.apart;
  const long long step = (long long)gridDim.x * blockDim.x, first = (long long)blockIdx.x * blockDim.x + threadIdx.x;
  for (long long piece = 0; piece < pieces; ++piece, out += apart) {
    const long long head = min((long long)(-(long long)out & 15), bytes), vectors = (bytes - head) / 16;
    for (long long i = first; i < vectors; i += step) reinterpret_cast<uint4*>(out + head)[i] = make_uint4(0, 0, 0, 0);
    if (first < head) out[first] = 0;
    if (first < bytes - head - 16 * vectors) out[head + 16 * vectors + first] = 0;
  }
  for (long long i = first; i < arguments.counters; i += step) arguments.tally[i] = 0;
}

// For sparse forms: the cell of each point in the batched grid, (B * N,) int64, -1 if the point is not placed; and, if
// `rows` is not null, its transformed coordinates and its features, (B * N, 3 + F). tally must be cleared.
extern "C" __global__ void __launch_bounds__(THREADS) locate_points(
    const __grid_constant__ LocateArguments arguments
) {
  const Clouds& clouds = arguments.clouds;
  long long* cell = arguments.cell;
  uint64* tally = arguments.tally;
  const long long batch = arguments.batch, cells = arguments.cells;
  float* rows = arguments.rows;
  const float limit = arguments.limit;
  for (long long cloud = blockIdx.y; cloud < batch; cloud += gridDim.y) {
    const Placed placed = locate(clouds, cloud);
    const long long at = cloud * clouds.count + placed.number;
    if (placed.number < clouds.count) cell[at] = placed.cell >= 0 ? cloud * cells + placed.cell : -1;
    if (rows && placed.cell >= 0) {
      float* row = rows + at * (3 + clouds.features);
      row[0] = placed.point.x;
      row[1] = placed.point.y;
      row[2] = placed.point.z;
      for (int f = 0; f < clouds.features; ++f) {
        row[3 + f] = feature_at(clouds, placed.bytes, placed.point, f);
        if (limit > 0 && saturates(row[3 + f], limit)) atomicAdd(tally + 3 * cloud + 2, 1ull);
      }
    }
    count_refused(tally, cloud, placed.cell);
  }
}
