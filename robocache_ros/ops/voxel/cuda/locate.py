"""The cells of points, and cleared memory: launches of kernels/voxel/locate.cu."""

from __future__ import annotations

import torch
from torch import Tensor

from robocache_ros.ops.cuda.dependent_launch import launch_dependent
from robocache_ros.ops.cuda.loader import kernel
from robocache_ros.ops.cuda.structures import packer
from robocache_ros.ops.voxel.cuda.arguments import ClearArguments, LocateArguments
from robocache_ros.ops.voxel.cuda.clouds import CloudSource
from robocache_ros.ops.voxel.grid import Grid, Reduction

THREADS = 256  # of a block; also those of place.cu and claims.cu
_DEFINES = (f"THREADS={THREADS}",)
_CLEAR_BLOCKS = 8  # to a multiprocessor


def locate(clouds: CloudSource, grid: Grid, reduction: Reduction) -> tuple[Tensor, Tensor, Tensor]:
    """The (B, 3) tally; the (B * N,) int64 cell of each point, or -1; and its (B * N, 3 + F) row if it is read."""
    tally = torch.zeros((clouds.batch, 3), dtype=torch.int64, device=clouds.device)
    total = clouds.batch * clouds.count
    cell = torch.empty(total, dtype=torch.int64, device=clouds.device)
    width = 3 + reduction.features if reduction.kind.reads_features else 0
    rows = torch.empty((total, width), dtype=torch.float32, device=clouds.device)
    if total:
        limit = reduction.limit if reduction.kind.saturates else 0.0
        arguments = (
            cell.data_ptr(),
            tally.data_ptr(),
            clouds.batch,
            grid.cells,
            rows.data_ptr() if width else 0,
            limit,
        )
        defines = (*clouds.defines, *_DEFINES)
        launchable = kernel("voxel/locate.cu", "locate_points", packer(LocateArguments), clouds.device.index, defines)
        launchable.launch(blocks_of(clouds), THREADS, 0, *clouds.numbers, *arguments)
    return tally, cell, rows


def clear(out: Tensor, tally: Tensor, device: torch.device) -> None:
    """Clear both; `out` (B, ...) is contiguous within each batch. The next launch may be a dependent one."""
    pieces, apart = (1, 0) if out.is_contiguous() else (len(out), out.stride(0) * out.element_size())
    size = out.numel() * out.element_size() // pieces
    processors = torch.cuda.get_device_properties(device).multi_processor_count
    blocks = max(1, min(processors * _CLEAR_BLOCKS, (size + 16 * THREADS - 1) // (16 * THREADS)))
    arguments = (out.data_ptr(), size, pieces, apart, tally.data_ptr(), tally.numel())
    launchable = kernel("voxel/locate.cu", "clear", packer(ClearArguments), device.index, _DEFINES)
    launch_dependent(launchable, (blocks, 1, 1), THREADS, 0, *arguments)


def blocks_of(clouds: CloudSource, each: int = 1) -> tuple[int, int, int]:
    """Blocks of a launch whose threads read `each` points."""
    return -(-clouds.count // (each * THREADS)), min(clouds.batch, 65535), 1
