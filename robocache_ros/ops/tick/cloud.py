"""The launches of kernels/tick/cloud.cu, prepared with the checks of `voxelize_cloud_bytes` and `voxelize_depth`."""

from __future__ import annotations

import torch
from torch import Tensor

from robocache_ros.ops.cuda.loader import kernel
from robocache_ros.ops.cuda.structures import packer
from robocache_ros.ops.tick.prepared import NO_TARGET, CloudVariant, Prepared, nowhere
from robocache_ros.ops.tick.tasks import CloudTask, TaskArguments
from robocache_ros.ops.voxel.cloud_layout import CloudLayout, check_cloud, column_sources
from robocache_ros.ops.voxel.cuda.bins import reduction_define
from robocache_ros.ops.voxel.cuda.clouds import CloudSource, of_bytes, of_depth
from robocache_ros.ops.voxel.depth_layout import DepthImageLayout, check_depth
from robocache_ros.ops.voxel.grid import Voxelization, checked_transform

THREADS = 256  # of a block


def prepare_cloud(
    nbytes: int, layout: CloudLayout, transform: Tensor | None, voxelization: Voxelization, sums: Tensor | None
) -> Prepared:
    """Prepare the launches for a cloud of `nbytes` bytes, whose address is a multiple of 16.

    Arguments and errors are those of `voxelize_cloud_bytes`. sums: (features + 1, cells) int64 scratch memory where
    features are reduced.
    """
    layout = check_cloud(nbytes, layout)
    sources = column_sources(layout, voxelization.features)
    matrix = checked_transform(transform)
    clouds = of_bytes(nowhere(nbytes), layout, sources, matrix, voxelization)
    return _prepared(clouds, voxelization, sums, 0)


def prepare_depth(
    nbytes: int, image: DepthImageLayout, transform: Tensor | None, voxelization: Voxelization, sums: Tensor | None
) -> Prepared:
    """Prepare the launches for a depth image and its colours, `nbytes` bytes in all; `sums` as in `prepare_cloud`.

    Errors are those of `voxelize_depth`.
    """
    layout = check_depth(nbytes, nbytes, image, voxelization.features)
    matrix = checked_transform(transform)
    clouds = of_depth(nowhere(nbytes), layout, 0, matrix, voxelization)
    return _prepared(clouds, voxelization, sums, 1)


def _prepared(clouds: CloudSource, voxelization: Voxelization, sums: Tensor | None, is_depth: int) -> Prepared:
    grid, reduction = voxelization.grid, voxelization.reduction
    scale = 2.0**reduction.fraction_bits
    tail = (sums.data_ptr() if sums is not None else 0, grid.cells, scale, reduction.limit, 1 / scale)
    variant = CloudVariant(reduction.mode, len(voxelization.features), grid.cells, is_depth)
    task = packer(CloudTask).pack(*NO_TARGET, *clouds.numbers, *tail)
    return Prepared(reduction.dense_shape(grid), reduction.dense_dtype, variant, task)


def cloud_defines(mode: str, features: int, is_depth: int) -> tuple[str, ...]:
    """The constants that tick/cloud.cu is compiled with."""
    return (reduction_define(mode), f"FEATURES={features}", f"DEPTH={is_depth}", f"THREADS={THREADS}")


def launch_cloud(device: int, task: int, variant: CloudVariant) -> None:
    """Compute one voxel grid; `task` is the address of its CloudTask."""
    mode, features, cells, is_depth = variant
    defines = cloud_defines(mode, features, is_depth)
    processors = torch.cuda.get_device_properties(device).multi_processor_count
    wide = min(-(-cells // 1024), 8 * processors)
    steps = (("begin_cloud", wide), ("place_points", 4 * processors), ("end_cloud", wide))
    for name, blocks in steps[: 3 if features else 2]:
        launchable = kernel("tick/cloud.cu", name, packer(TaskArguments), device, defines)
        launchable.launch((blocks, 1, 1), THREADS, 0, task)
