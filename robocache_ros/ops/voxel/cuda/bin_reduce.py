"""The launch of kernels/voxel/bin_reduce.cu: features of points that are sorted by bins of voxels."""

from __future__ import annotations

from torch import Tensor

from robocache_ros.ops.cuda.dependent_launch import launch_dependent
from robocache_ros.ops.cuda.loader import kernel
from robocache_ros.ops.cuda.structures import packer
from robocache_ros.ops.voxel.cuda.arguments import BinArguments
from robocache_ros.ops.voxel.cuda.bin_sort import sort_points
from robocache_ros.ops.voxel.cuda.bins import REDUCERS, Bins, bin_defines
from robocache_ros.ops.voxel.cuda.clouds import CloudSource
from robocache_ros.ops.voxel.grid import Grid, Reduction


def reduce_by_bins(
    clouds: CloudSource, grid: Grid, reduction: Reduction, out: Tensor, tally: Tensor, bins: Bins
) -> None:
    """Sort the points by bins of voxels, then reduce each bin into `out` (B, F, X, Y, Z); fills the tally."""
    _scratch, pointers, sizes = sort_points(clouds, reduction, bins)
    scale, defines, device = 2.0**reduction.fraction_bits, (*bin_defines(reduction), *clouds.defines), clouds.device
    launchable = kernel("voxel/bin_reduce.cu", "reduce_bins", packer(BinArguments), device.index, defines, bins.limit)
    room = (bins.places, bins.capacity, bins.reduce_bytes)
    aligned = int(grid.cells % 4 == 0 and out.data_ptr() % 16 == 0)
    arguments = (out.data_ptr(), *pointers, tally.data_ptr(), grid.cells, *sizes, *room, scale, 1 / scale, aligned)
    launch_dependent(launchable, (1 << bins.bits, clouds.batch, 1), REDUCERS, bins.reduce_bytes, *arguments)
