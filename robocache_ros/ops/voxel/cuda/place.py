"""Reductions that read no features, by atomics: launches of kernels/voxel/place.cu."""

from __future__ import annotations

from torch import Tensor

from robocache_ros.ops.cuda.dependent_launch import launch_dependent
from robocache_ros.ops.cuda.loader import kernel
from robocache_ros.ops.cuda.structures import packer
from robocache_ros.ops.voxel.cuda.arguments import PlaceArguments
from robocache_ros.ops.voxel.cuda.bins import reduction_define
from robocache_ros.ops.voxel.cuda.clouds import CloudSource
from robocache_ros.ops.voxel.cuda.locate import THREADS, blocks_of, clear
from robocache_ros.ops.voxel.grid import Reduction


def place_points(clouds: CloudSource, reduction: Reduction, out: Tensor, tally: Tensor) -> None:
    """Fill the dense grids `out` (B, ...) and the tally (B, 3)."""
    clear(out, tally, clouds.device)
    if not clouds.count:
        return
    defines = (*clouds.defines, *place_defines(reduction.mode))
    launchable = kernel("voxel/place.cu", "place_points", packer(PlaceArguments), clouds.device.index, defines)
    each = out.numel() // clouds.batch
    words = int(out.data_ptr() % 4 == 0 and out.numel() % 4 == 0)
    arguments = (out.data_ptr(), tally.data_ptr(), clouds.batch, each, words)
    launch_dependent(launchable, blocks_of(clouds), THREADS, 0, *clouds.numbers, *arguments)


def place_defines(mode: str) -> tuple[str, ...]:
    """The constants that place.cu is compiled with, for clouds of any layout."""
    return (reduction_define(mode), f"THREADS={THREADS}")
