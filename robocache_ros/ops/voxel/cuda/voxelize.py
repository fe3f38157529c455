"""Points to voxels on a GPU, in as few launches as the dependencies allow.

A (B, N, 3 + F) tensor is read as bytes like any PointCloud2. Launches after the first are programmatic dependent
ones: points are read and their cells found while the grid is still being cleared. Reductions of features need no
clearing for most clouds: bin_sort.cu sorts their points, bin_reduce.cu writes each voxel once.

Reductions of features have three strategies (figures: docs/explanation/performance_spatial.md). Bins are the
fastest: a mean of 4 features of 500,000 random points takes 24.4 us, by claims 42.4 us. But bins need a grid and a
cloud that fit their tiles. Claims support any grid and up to 2**31 - 2 points. A tick has its own kernels
(kernels/tick/cloud.cu): their launches must not depend on the number of points, so that one CUDA graph serves every
cloud.
"""

from __future__ import annotations

import torch
from torch import Tensor

from robocache_ros.ops.voxel import segments as voxel_segments
from robocache_ros.ops.voxel.cuda.bin_reduce import reduce_by_bins
from robocache_ros.ops.voxel.cuda.bins import plan_bins
from robocache_ros.ops.voxel.cuda.claims import reduce_by_claims
from robocache_ros.ops.voxel.cuda.clouds import CloudSource
from robocache_ros.ops.voxel.cuda.locate import locate
from robocache_ros.ops.voxel.cuda.place import place_points
from robocache_ros.ops.voxel.grid import Grid, Output, Reduction, Voxelization, Voxels
from robocache_ros.reductions.kind import CellReduction, FeatureReduction


def voxelize(clouds: CloudSource, voxelization: Voxelization, output: Output) -> Voxels:
    """Voxels of clouds on a GPU, from checked arguments."""
    grid, reduction = voxelization.grid, voxelization.reduction
    if output.sparse:
        tally, cell, rows = locate(clouds, grid, reduction)
        return voxel_segments.sparse_voxels(cell, rows, grid, reduction, output, tally)
    out = output.dense(grid, reduction, clouds.device, clouds.batch)
    tally = _fill(clouds, grid, reduction, out if output.batched else out[None])
    return Voxels(out, tally if output.batched else tally[0])


def _fill(clouds: CloudSource, grid: Grid, reduction: Reduction, out: Tensor) -> Tensor:
    """Write the dense grids (B, ...) into `out`; returns the (B, 3) tally."""
    tally = torch.empty((clouds.batch, 3), dtype=torch.int64, device=clouds.device)
    if not clouds.batch:
        return tally
    if isinstance(reduction.kind, CellReduction):
        place_points(clouds, reduction, out, tally)
    elif isinstance(reduction.kind, FeatureReduction) and clouds.count < 2**31 - 1:
        bins = plan_bins(clouds.batch, clouds.count, grid.cells, reduction.features, clouds.device)
        if bins is None:
            reduce_by_claims(clouds, grid, reduction, out, tally)
        else:
            reduce_by_bins(clouds, grid, reduction, out, tally, bins)
    else:
        tally, cell, rows = locate(clouds, grid, reduction)
        voxel_segments.fill(out, cell, rows, grid, reduction)
    return tally
