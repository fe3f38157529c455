"""Occupancy and counts by atomics, and the cells of points: launches of kernels/voxel/place.cu."""

from __future__ import annotations

import torch
from torch import Tensor

from robocache_ros.ops.cuda.dependent_launch import launch_dependent
from robocache_ros.ops.cuda.loader import kernel
from robocache_ros.ops.cuda.structures import packer
from robocache_ros.ops.voxel.cuda.arguments import ClearArguments, LocateArguments, PlaceArguments
from robocache_ros.ops.voxel.cuda.clouds import CloudSource
from robocache_ros.ops.voxel.grid import Grid, Reduction

THREADS = 256  # of a block
_CLEAR_BLOCKS = 8  # to a multiprocessor
_KERNELS = {"occupancy": "occupy", "occupancy_bits": "occupy_bits", "count": "count_points"}


def place_points(clouds: CloudSource, reduction: Reduction, out: Tensor, tally: Tensor) -> None:
    """Fill the dense grids `out` (B, ...) of occupancy or counts, and the tally (B, 3)."""
    clear(out, tally, clouds.device)
    if not clouds.count:
        return
    name = _KERNELS[reduction.mode]
    launchable = kernel("voxel/place.cu", name, packer(PlaceArguments), clouds.device.index, clouds.defines)
    each = out.numel() // clouds.batch
    words = int(out.data_ptr() % 4 == 0 and out.numel() % 4 == 0)
    arguments = (out.data_ptr(), tally.data_ptr(), clouds.batch, each, words)
    launch_dependent(launchable, blocks_of(clouds), THREADS, 0, *clouds.numbers, *arguments)


def locate(clouds: CloudSource, grid: Grid, reduction: Reduction) -> tuple[Tensor, Tensor, Tensor]:
    """The (B, 3) tally, each point's cell (B * N,) int64 or -1, and the rows (B * N, 3 + F) if the mode reads them."""
    tally = torch.zeros((clouds.batch, 3), dtype=torch.int64, device=clouds.device)
    total = clouds.batch * clouds.count
    cell = torch.empty(total, dtype=torch.int64, device=clouds.device)
    width = 3 + reduction.features if reduction.reads_features else 0
    rows = torch.empty((total, width), dtype=torch.float32, device=clouds.device)
    if total:
        limit = reduction.limit if reduction.mode == "mean" else 0.0
        arguments = (
            cell.data_ptr(),
            tally.data_ptr(),
            clouds.batch,
            grid.cells,
            rows.data_ptr() if width else 0,
            limit,
        )
        launchable = kernel(
            "voxel/place.cu", "locate_points", packer(LocateArguments), clouds.device.index, clouds.defines
        )
        launchable.launch(blocks_of(clouds), THREADS, 0, *clouds.numbers, *arguments)
    return tally, cell, rows


def clear(out: Tensor, tally: Tensor, device: torch.device) -> None:
    """Zero both; `out` (B, ...) is contiguous within each batch. The next launch may be a dependent one."""
    pieces, apart = (1, 0) if out.is_contiguous() else (len(out), out.stride(0) * out.element_size())
    size = out.numel() * out.element_size() // pieces
    processors = torch.cuda.get_device_properties(device).multi_processor_count
    blocks = max(1, min(processors * _CLEAR_BLOCKS, (size + 16 * THREADS - 1) // (16 * THREADS)))
    arguments = (out.data_ptr(), size, pieces, apart, tally.data_ptr(), tally.numel())
    launchable = kernel("voxel/place.cu", "clear", packer(ClearArguments), device.index)
    launch_dependent(launchable, (blocks, 1, 1), THREADS, 0, *arguments)


def blocks_of(clouds: CloudSource, each: int = 1) -> tuple[int, int, int]:
    """Blocks of a launch whose threads read `each` points."""
    return -(-clouds.count // (each * THREADS)), min(clouds.batch, 65535), 1
