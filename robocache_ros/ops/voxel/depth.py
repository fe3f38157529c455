"""Depth images to voxel grids in one pass: pixels are projected as they are read, then placed like a cloud's points.

A pinhole camera looks along z, x to the right and y down (REP 103's optical frame). Each operation is rounded to
float32: z = depth / unit, x = (u - cx) * z / fx, y = (v - cy) * z / fy. The image must be rectified.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from robocache_ros.errors import RoboCacheError
from robocache_ros.ops.checks import checked_integer, checked_sizes
from robocache_ros.ops.image.formats import ImageLayout
from robocache_ros.ops.tensor_checks import check_bytes
from robocache_ros.ops.voxel import cpu
from robocache_ros.ops.voxel.depth_layout import ColorLayout, DepthImageLayout, check_depth
from robocache_ros.ops.voxel.grid import (
    FRACTION_BITS,
    Output,
    Voxelization,
    Voxels,
    checked_transform,
    checked_voxelization,
)


# More than 50 lines for its signature and docstring; its steps are functions of their own.
def voxelize_depth(
    data: Tensor,
    *,
    encoding: str,
    width: int,
    height: int,
    step: int,
    big_endian: bool = False,
    camera: Sequence[float],
    color: Tensor | None = None,
    color_encoding: str = "rgb8",
    color_step: int = 0,
    transform: Tensor | None = None,
    grid_min: Sequence[float],
    voxel_size: float | Sequence[float],
    grid_size: Sequence[int],
    mode: str = "occupancy",
    features: Sequence[str] = (),
    sparse: bool = False,
    max_points: int | None = None,
    fraction_bits: int = FRACTION_BITS,
    out: Tensor | None = None,
) -> Voxels:
    """Voxelize a depth image from its bytes: project, transform, crop and place its pixels, without a cloud in between.

    A pixel without a depth (0, NaN, infinite or negative) is counted in `nonfinite` and not placed.

    Args:
        data: (nbytes,) uint8, contiguous, on the CPU or a CUDA device, at any alignment.
        encoding: 16UC1 or mono16, millimetres; 32FC1, metres.
        width: pixels in a row.
        height: rows.
        step: bytes from a row to the next.
        big_endian: byte order of the depths.
        camera: fx, fy, cx, cy of the rectified image in pixels, rounded to float32.
        color: (nbytes,) uint8 of an image of the same size, registered to the depth, on the same device; for features
            r, g and b, which are 0..255.
        color_encoding: rgb8, bgr8, rgba8, bgra8 or mono8.
        color_step: bytes from a row of the colour image to the next; 0: rows without padding.
        transform: T_grid_camera (optical frame), as in `voxelize_cloud_bytes`, like the following arguments.
        grid_min: corner of the grid with the smallest coordinates.
        voxel_size: edge of a voxel.
        grid_size: voxels along x, y and z.
        mode: what a voxel holds.
        features: of x, y, z (in the grid's frame), r, g, b.
        sparse: return the occupied voxels only.
        max_points: K of `first`.
        fraction_bits: resolution of `mean`.
        out: the dense grid to write.

    Returns:
        Voxels.

    Raises:
        RoboCacheError: too few bytes for the layout; an encoding, feature or camera that is not supported; and as in
            `voxelize_cloud_bytes`.
    """
    voxelization = checked_voxelization(grid_min, voxel_size, grid_size, mode, features, max_points, fraction_bits)
    width, height, step = checked_sizes(width=width, height=height, step=step)
    color_step = checked_integer("color_step", color_step)
    over = None if color is None else ColorLayout(color_encoding, color_step, 0)
    layout = DepthImageLayout(ImageLayout(encoding, width, height, step, big_endian), camera, over)
    return voxelize_depth_layout(data, color, layout, transform, voxelization, Output(sparse=sparse, out=out))


def voxelize_depth_layout(
    data: Tensor,
    color: Tensor | None,
    image: DepthImageLayout,
    transform: Tensor | None,
    voxelization: Voxelization,
    output: Output,
) -> Voxels:
    """`voxelize_depth` of bytes whose layout is an object; `color` begins at the colour image's first byte."""
    check_bytes("data", data)
    if color is not None:
        check_bytes("color", color)
        if color.device != data.device:
            raise RoboCacheError(f"color: on {color.device}, but data on {data.device}; put both on one device")
    layout = check_depth(data.numel(), 0 if color is None else color.numel(), image, voxelization.features)
    matrix = checked_transform(transform)
    if data.is_cuda:
        from robocache_ros.ops.voxel.cuda.clouds import of_depth
        from robocache_ros.ops.voxel.cuda.voxelize import voxelize

        distance = 0 if color is None else color.data_ptr() - data.data_ptr()
        return voxelize(of_depth(data, layout, distance, matrix, voxelization), voxelization, output)
    columns = cpu.depth_columns(data.numpy(), None if color is None else color.numpy(), layout, matrix)
    return cpu.voxelize(columns, voxelization, output)
