"""The launches of kernels/voxel/claims.cu, where each point claims its voxel, for clouds that bins do not support."""

from __future__ import annotations

import torch
from torch import Tensor

from robocache_ros.ops.cuda.dependent_launch import launch_dependent
from robocache_ros.ops.cuda.loader import kernel
from robocache_ros.ops.cuda.structures import packer
from robocache_ros.ops.voxel.cuda.arguments import ClaimArguments, WriteArguments
from robocache_ros.ops.voxel.cuda.bins import reduction_defines
from robocache_ros.ops.voxel.cuda.clouds import CloudSource
from robocache_ros.ops.voxel.cuda.locate import THREADS, blocks_of, clear
from robocache_ros.ops.voxel.grid import Grid, Reduction
from robocache_ros.reductions.kind import FeatureReduction

_POINTS, _CELLS = 4, 2  # that a thread of claim_voxels claims for; that a thread of write_voxels writes


def reduce_by_claims(clouds: CloudSource, grid: Grid, reduction: Reduction, out: Tensor, tally: Tensor) -> None:
    """Let each point claim its voxel; fills `out` (B, F, X, Y, Z) and the tally."""
    defines = claim_defines(reduction) + clouds.defines
    device = clouds.device.index
    scale, limit = 2.0**reduction.fraction_bits, reduction.limit
    # A row for each point, which other points of its voxel may join: the features' terms and the number of points.
    row_bytes = (reduction.features + 1) * _term_bytes(reduction)
    rows = torch.empty(clouds.batch * clouds.count * row_bytes, dtype=torch.uint8, device=clouds.device)
    pointers, sizes = (out.data_ptr(), rows.data_ptr()), (clouds.batch, grid.cells, scale, limit)
    clear(out[:, 0], tally, clouds.device)
    if clouds.count:
        claim = kernel("voxel/claims.cu", "claim_voxels", packer(ClaimArguments), device, defines)
        arguments = (*pointers, tally.data_ptr(), *sizes)
        launch_dependent(claim, blocks_of(clouds, _POINTS), THREADS, 0, *clouds.numbers, *arguments)
    aligned = int(grid.cells % _CELLS == 0 and out.data_ptr() % (4 * _CELLS) == 0)
    blocks = (-(-grid.cells // (_CELLS * THREADS)), min(clouds.batch, 65535), 1)
    write = kernel("voxel/claims.cu", "write_voxels", packer(WriteArguments), device, defines)
    launch_dependent(write, blocks, THREADS, 0, *clouds.numbers, *pointers, *sizes, 1 / scale, aligned)


def claim_defines(reduction: Reduction) -> tuple[str, ...]:
    """The constants that claims.cu is compiled with, for clouds of any layout."""
    return (
        *reduction_defines(reduction),
        f"TERM_BYTES={_term_bytes(reduction)}",
        f"THREADS={THREADS}",
        f"POINTS={_POINTS}",
        f"CELLS={_CELLS}",
    )


def _term_bytes(reduction: Reduction) -> int:
    assert isinstance(reduction.kind, FeatureReduction)
    return reduction.kind.term_bytes
