// Dense voxel grids by atomics, for a reduction that reads no features.
//
// Launches may be programmatic dependent launches: the kernel begins while the preceding clearing still runs, reads
// points and finds their cells, and waits before it accesses the grid.
//
// Compiled with REDUCTION of cell_grid.cuh and THREADS of a block.
#include "voxel/block.cuh"
#include REDUCTION

using namespace robocache;

// grid (B, ...), with `cells` elements per cloud.
extern "C" __global__ void __launch_bounds__(THREADS) place_points(
    const __grid_constant__ PlaceArguments arguments
) {
  let_next_begin();
  const Clouds& clouds = arguments.clouds;
  uint64* tally = arguments.tally;
  const long long batch = arguments.batch, cells = arguments.cells;
  for (long long cloud = blockIdx.y; cloud < batch; cloud += gridDim.y) {
    const Placed placed = locate(clouds, cloud);
    if (cloud == blockIdx.y) wait_for_previous();
    const Run run = run_of(placed.cell);
    if (run.leads && placed.cell >= 0)
      Reduction::put({arguments.grid, cloud * cells, clouds.shape[2], arguments.words != 0}, placed.cell, run.length);
    count_refused(tally, cloud, placed.cell);
  }
}
