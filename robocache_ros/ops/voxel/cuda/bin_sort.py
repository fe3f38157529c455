"""The launch of kernels/voxel/bin_sort.cu: points sorted by bins of voxels."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from robocache_ros.ops.cuda.dependent_launch import launch_dependent
from robocache_ros.ops.cuda.loader import kernel
from robocache_ros.ops.cuda.structures import packer
from robocache_ros.ops.voxel.cuda.arguments import SortArguments
from robocache_ros.ops.voxel.cuda.bins import SORTERS, Bins, bin_defines
from robocache_ros.ops.voxel.cuda.clouds import CloudSource
from robocache_ros.ops.voxel.grid import Reduction


class Sorted(NamedTuple):
    """Points sorted by bins, in scratch memory."""

    scratch: Tensor
    pointers: list[int]  # of rows, words, runs, refused
    sizes: tuple[int, int, int]  # tiles, tile, bits


def sort_points(clouds: CloudSource, reduction: Reduction, bins: Bins) -> Sorted:
    """Sort the points of clouds by bins of voxels."""
    scale, limit = 2.0**reduction.fraction_bits, reduction.limit
    parts = [clouds.batch * words for words in bins.scratch(reduction.features)]
    scratch = torch.empty(sum(parts), dtype=torch.int32, device=clouds.device)
    pointers = [scratch.data_ptr() + 4 * sum(parts[:n]) for n in range(len(parts))]
    sizes = (bins.tiles, bins.tile, bins.bits)
    defines = (*bin_defines(reduction), *clouds.defines, f"POINTS={bins.points}")
    device = clouds.device.index
    launchable = kernel("voxel/bin_sort.cu", "sort_points", packer(SortArguments), device, defines, bins.limit)
    arguments = (*clouds.numbers, *pointers, *sizes, scale, limit, 1 / scale)
    launch_dependent(launchable, (bins.tiles, clouds.batch, 1), SORTERS, bins.sort_bytes, *arguments)
    return Sorted(scratch, pointers, sizes)
