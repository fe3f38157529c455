"""Voxelize points, the bytes of clouds, and depth images. The CPU backend is here; `cuda` launches the kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robocache_ros.errors import RoboCacheError
from robocache_ros.ops.checks import checked_integer, checked_sizes
from robocache_ros.ops.image.formats import ImageLayout
from robocache_ros.ops.tensor_checks import check_bytes, check_tensor, described
from robocache_ros.ops.voxel import grid as voxel_segments
from robocache_ros.ops.voxel.grid import (
    FRACTION_BITS,
    Grid,
    Output,
    Reduction,
    Voxelization,
    Voxels,
    checked_grid,
    checked_lengths,
    checked_reduction,
    checked_transform,
    checked_voxelization,
)
from robocache_ros.ops.voxel.layouts import (
    COLORS,
    DEPTHS,
    CloudLayout,
    ColorLayout,
    DepthImageLayout,
    DepthLayout,
    PointField,
    check_cloud,
    check_depth,
    checked_fields,
    column_sources,
)
from robocache_ros.reductions.kind import CellReduction, saturates
from robocache_ros.spec.stream import POINT_DATATYPES

F32 = NDArray[np.float32]


def voxelize_on_cpu(
    columns: Sequence[F32],
    voxelization: Voxelization,
    output: Output,
    batch: int = 1,
    lengths: Tensor | None = None,
) -> Voxels:
    """Voxels of B clouds on the CPU, from checked arguments.

    Args:
        columns: x, y, z in the grid's frame and the features, each (B * N,).
        voxelization: the grid, and what its voxels hold.
        output: the form of the result.
        batch: B.
        lengths: (B,) int64 or None; rows past a cloud's length are not points.
    """
    grid, reduction = voxelization.grid, voxelization.reduction
    cell, counts = place_columns(columns, grid, reduction, batch, lengths)
    tally = torch.from_numpy(counts)
    rows = np.stack(columns, axis=1) if reduction.kind.reads_features else np.zeros((len(cell), 0), np.float32)
    if output.sparse:
        points = (torch.from_numpy(cell), torch.from_numpy(rows))
        return voxel_segments.sparse_voxels(*points, grid, reduction, output, tally)
    out = output.dense(grid, reduction, torch.device("cpu"), batch)
    fill_grid(out if output.batched else out[None], cell, rows, grid, reduction)
    return Voxels(out, tally if output.batched else tally[0])


def cloud_columns(
    data: NDArray[np.uint8], layout: CloudLayout, sources: Sequence[int | PointField], matrix: Any
) -> list[NDArray[np.float32]]:
    """x, y, z in the grid's frame and the features, each (N,) float32."""
    columns: list[NDArray[np.float32]] = []
    for number, source in enumerate(sources):
        if isinstance(source, int):
            columns.append(columns[source])
        else:
            columns.append(_column(data, layout, source))
        if number == 2 and matrix is not None:
            columns = transform_columns(columns, matrix)
    return columns


def _column(data: NDArray[np.uint8], layout: CloudLayout, field: PointField) -> NDArray[np.float32]:
    if not layout.points:
        return np.zeros(0, np.float32)
    kind = np.dtype(POINT_DATATYPES[field.datatype - 1]).newbyteorder(">" if layout.big_endian else "<")
    shape, strides = (layout.height, layout.width), (layout.row_step, layout.point_step)
    raw: NDArray[Any] = np.ndarray(shape, kind, data, field.offset, strides)
    with np.errstate(over="ignore", invalid="ignore"):
        return raw.astype(np.float32).reshape(-1)


def depth_columns(
    data: NDArray[np.uint8], color: NDArray[np.uint8] | None, layout: DepthLayout, matrix: Any
) -> list[NDArray[np.float32]]:
    """x, y, z in the grid's frame and the features, each (height * width,) float32; NaN where there is no depth."""
    name, _, unit = DEPTHS[layout.encoding]
    kind = np.dtype(name).newbyteorder(">" if layout.big_endian else "<")
    shape = (layout.height, layout.width)
    fx, fy, cx, cy = (np.float32(value) for value in layout.camera)
    raw: NDArray[Any] = np.ndarray(shape, kind, data, 0, (layout.step, kind.itemsize))
    u, v = np.arange(layout.width, dtype=np.float32), np.arange(layout.height, dtype=np.float32)[:, None]
    with np.errstate(all="ignore"):
        z = raw.astype(np.float32) / np.float32(unit)
        z = np.where((z > 0) & np.isfinite(z), z, np.float32(np.nan))
        columns = [((u - cx) * z / fx).reshape(-1), ((v - cy) * z / fy).reshape(-1), z.reshape(-1)]
    if matrix is not None:
        columns = transform_columns(columns, matrix)
    for source in layout.sources:
        if source < 3:
            columns.append(columns[source])
        else:
            assert layout.color is not None
            assert color is not None
            strides = (layout.color.step, COLORS[layout.color.encoding][0])
            one: NDArray[np.uint8] = np.ndarray(shape, np.uint8, color, layout.color.at + source - 3, strides)
            columns.append(one.astype(np.float32).reshape(-1))
    return columns


def transform_columns(columns: Sequence[F32], matrix: F32) -> list[F32]:
    """Rows of `matrix` (3, 4) times (x, y, z, 1): ((a x + b y) + c z) + t, each operation rounded to float32."""
    x, y, z = columns
    with np.errstate(invalid="ignore", over="ignore"):
        return [((row[0] * x + row[1] * y) + row[2] * z) + row[3] for row in matrix]


def place_columns(
    columns: Sequence[F32], grid: Grid, reduction: Reduction, batch: int, lengths: Tensor | None
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The cell of each of B * N points, -1 for one not placed, and the (B, 3) tally of Voxels.

    Args:
        columns: x, y, z and the features, each (B * N,).
        grid: the grid.
        reduction: what its voxels hold.
        batch: B.
        lengths: (B,) int64 or None; rows past a cloud's length are not points.
    """
    inside: Any = True
    indices = []
    with np.errstate(invalid="ignore", over="ignore"):
        for values, low, size, count in zip(columns, grid.minimum, grid.size, grid.shape, strict=False):
            position = (values - np.float32(low)) / np.float32(size)
            inside = inside & (position >= 0) & (position < count)
            indices.append(position)
    number = len(columns[0])
    real = True if lengths is None else np.arange(number // max(batch, 1)) < lengths.numpy()[:, None]
    real = np.broadcast_to(real, (batch, number // max(batch, 1))).reshape(-1)
    read = columns if reduction.kind.reads_features else columns[:3]
    doubtful = real & ~inside
    finite: Any = True
    if doubtful.any() or len(read) > 3:
        for values in read:
            finite = finite & np.isfinite(values)
    kept = real & inside & finite
    tally = np.zeros((batch, 3), np.int64)
    tally[:, 0] = _per_cloud(real & ~np.asarray(finite), batch)
    tally[:, 1] = _per_cloud(doubtful & finite, batch)
    if reduction.kind.saturates:
        for values in columns[3:]:
            clamped = saturates(torch.from_numpy(values), reduction.fraction_bits).numpy()
            tally[:, 2] += _per_cloud(kept & clamped, batch)
    x, y, z = (np.where(kept, position, 0).astype(np.int64) for position in indices)
    cell = (x * grid.shape[1] + y) * grid.shape[2] + z
    if batch > 1:
        cell += np.repeat(np.arange(batch, dtype=np.int64) * grid.cells, number // batch)
    return np.where(kept, cell, -1), tally


def _per_cloud(flags: NDArray[np.bool_], batch: int) -> NDArray[np.int64]:
    return np.asarray(np.count_nonzero(flags.reshape(batch, -1), axis=1)) if batch else np.zeros(0, np.int64)


def fill_grid(out: Tensor, cell: NDArray[np.int64], rows: F32, grid: Grid, reduction: Reduction) -> None:
    """Write the dense grids of B clouds into `out`, (B, ...) of the reduction's shape."""
    if isinstance(reduction.kind, CellReduction):
        reduction.kind.fill(out.numpy(), cell[cell >= 0], grid.shape)
    else:
        voxel_segments.fill(out, torch.from_numpy(cell), torch.from_numpy(rows), grid, reduction)


# More than 50 lines for its signature and docstring; its steps are functions of their own.
def voxelize_pointcloud(
    points: Tensor,
    grid_min: Sequence[float],
    voxel_size: float | Sequence[float],
    grid_size: Sequence[int],
    mode: str = "occupancy",
    *,
    lengths: Tensor | None = None,
    sparse: bool = False,
    max_points: int | None = None,
    fraction_bits: int = FRACTION_BITS,
    out: Tensor | None = None,
) -> Voxels:
    """Place points into voxels floor((p - grid_min) / voxel_size), each operation rounded to float32.

    Points with a NaN or infinite value that the mode reads, and points outside, are counted in `tally` and not placed.

    Args:
        points: (N, 3 + F) or (B, N, 3 + F) float32, x, y, z in metres and F features; the last dimension contiguous,
            the others with any stride.
        grid_min: corner of the grid with the smallest coordinates.
        voxel_size: edge of a voxel; one value, or one per axis.
        grid_size: voxels along x, y and z.
        mode: what a voxel holds; a dense grid is zero where no point is (`robocache_ros.reductions`).

            - occupancy: uint8 (X, Y, Z), 1 where a point is.
            - occupancy_bits: int32 (X, Y, ceil(Z / 32)); bit z % 32 of word z // 32.
            - count: int32 (X, Y, Z).
            - mean, max and other reductions of features: float32 (F, X, Y, Z). A mean is summed in fixed point (see
              `fraction_bits`), with one rounding to float32 at the end. All are the same in any order of the points;
              -0 is less than +0.
            - first: float32 (X, Y, Z, K, 3 + F), the K = `max_points` points of lowest index, zero-padded: the pillar
              (VoxelNet) form, usually wanted sparse.
        lengths: (B,) int64 points of each cloud; later rows are ignored. On a GPU they are not checked but clamped to
            0..N.
        sparse: return `coordinates`, `num_points` and `features` of the occupied voxels, sorted, instead of the grid.
            Their number must be known to allocate them, so on a GPU this synchronises.
        max_points: K of `first`.
        fraction_bits: a feature is summed in multiples of 2**-fraction_bits and saturates at 2**(40 - fraction_bits):
            by default steps of 1e-6 and values to 1,048,576, exact for 8 million of the largest in one voxel.
        out: the dense grid to write, contiguous, of the shape and type above.

    Returns:
        Voxels; shapes have a leading B where `points` has.

    Raises:
        RoboCacheError: a wrong shape, dtype, stride, grid, mode or `out`.
    """
    grid = checked_grid(grid_min, voxel_size, grid_size)
    check_tensor("points", points)
    if points.dtype != torch.float32 or points.ndim not in (2, 3) or points.shape[-1] < 3:
        raise RoboCacheError(
            f"points: expected (N, 3 + F) or (B, N, 3 + F) float32, got {tuple(points.shape)} {points.dtype}"
        )
    if points.numel() and points.stride(-1) != 1:
        raise RoboCacheError(f"points: strides {points.stride()}; a point's columns must be contiguous")
    batched = points.ndim == 3
    if lengths is not None and not batched:
        raise RoboCacheError("lengths: given for a single cloud (N, 3 + F); give points (B, N, 3 + F)")
    clouds = points if batched else points[None]
    batch, count, columns = clouds.shape
    voxelization = Voxelization(grid, checked_reduction(mode, columns - 3, max_points, fraction_bits), ())
    lengths = checked_lengths(lengths, batch, count, points.device)
    _check_total(batch, count, grid)
    output = Output(batched, sparse, out)
    if points.is_cuda:
        from robocache_ros.ops.voxel.cuda import cloud_of_tensor, voxelize

        return voxelize(cloud_of_tensor(clouds, lengths, voxelization), voxelization, output)
    rows = clouds.detach().reshape(batch * count, columns).numpy()
    return voxelize_on_cpu(list(rows.T), voxelization, output, batch, lengths)


# More than 50 lines for its signature and docstring; its steps are functions of their own.
def voxelize_cloud_bytes(
    data: Tensor,
    *,
    width: int,
    height: int,
    point_step: int,
    row_step: int,
    fields: Sequence[Any],
    big_endian: bool = False,
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
    """Voxelize a PointCloud2 from its bytes: unpack, transform, crop and place its points in one pass.

    Args:
        data: (nbytes,) uint8, contiguous, on the CPU or a CUDA device, at any alignment.
        width: points in a row.
        height: rows.
        point_step: bytes from a point to the next.
        row_step: bytes from a row to the next.
        fields: with name, offset, datatype (PointField's numbers) and count; x, y and z are needed. Values of any type
            are rounded to float32 first.
        big_endian: byte order of the fields.
        transform: (3, 4) or (4, 4) float32 on the CPU, T_grid_sensor: grid <- sensor.
        grid_min: as in `voxelize_pointcloud`, in the grid's frame.
        voxel_size: edge of a voxel.
        grid_size: voxels along x, y and z; points outside are counted and not placed.
        mode: as in `voxelize_pointcloud`.
        features: fields to reduce; x, y and z mean the transformed coordinates.
        sparse: as in `voxelize_pointcloud`, like the following arguments.
        max_points: K of `first`.
        fraction_bits: resolution of `mean`.
        out: the dense grid to write.

    Returns:
        Voxels.

    Raises:
        RoboCacheError: too few bytes for the layout; a field that is missing or outside its point; and as in
            `voxelize_pointcloud`.
    """
    voxelization = checked_voxelization(grid_min, voxel_size, grid_size, mode, features, max_points, fraction_bits)
    width, height, point_step, row_step = checked_sizes(
        width=width, height=height, point_step=point_step, row_step=row_step
    )
    layout = CloudLayout(width, height, point_step, row_step, checked_fields(fields), big_endian)
    return voxelize_layout(data, layout, transform, voxelization, Output(sparse=sparse, out=out))


def voxelize_layout(
    data: Tensor, layout: CloudLayout, transform: Tensor | None, voxelization: Voxelization, output: Output
) -> Voxels:
    """`voxelize_cloud_bytes` of bytes whose layout is an object."""
    check_bytes("data", data)
    layout = check_cloud(data.numel(), layout)
    sources = column_sources(layout, voxelization.features)
    matrix = checked_transform(transform)
    if data.is_cuda:
        from robocache_ros.ops.voxel.cuda import cloud_of_bytes, voxelize

        return voxelize(cloud_of_bytes(data, layout, sources, matrix, voxelization), voxelization, output)
    return voxelize_on_cpu(cloud_columns(data.numpy(), layout, sources, matrix), voxelization, output)


def _check_total(batch: int, count: int, grid: Grid) -> None:
    if batch * max(count, grid.cells) >= 2**62:
        raise RoboCacheError(
            f"points: {batch} clouds of {count} points in {grid.cells} voxels are too many; use smaller batches"
        )


# Depth images to voxel grids in one pass: pixels are projected as they are read, then placed like a cloud's points.
#
# A pinhole camera looks along z, x to the right and y down (REP 103's optical frame). Each operation is rounded to
# float32: z = depth / unit, x = (u - cx) * z / fx, y = (v - cy) * z / fy. The image must be rectified.


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
        from robocache_ros.ops.voxel.cuda import cloud_of_depth, voxelize

        distance = 0 if color is None else color.data_ptr() - data.data_ptr()
        return voxelize(cloud_of_depth(data, layout, distance, matrix, voxelization), voxelization, output)
    columns = depth_columns(data.numpy(), None if color is None else color.numpy(), layout, matrix)
    return voxelize_on_cpu(columns, voxelization, output)


class FixedSizeCloud(NamedTuple):
    """N points of F features, in the order of their voxels; later rows are zero."""

    points: Tensor  # (..., N, F) float32
    num_points: Tensor  # (...) int64, the number of points, at most N


def fixed_size_cloud(grid: Tensor, count: Any) -> FixedSizeCloud:
    """Return the features of the voxels that are not empty, as a cloud of a fixed number of points.

    With the features x, y, z and the reduction mean, these are the points of the cloud, averaged in each voxel. Of more
    than N voxels, those number floor(i * voxels / N) are used, i = 0 ... N - 1, in the order of x, y, z. It copies
    values: CPU and CUDA give the same bits. On CUDA it does not synchronise.

    Args:
        grid: (..., F, X, Y, Z) float32; a voxel is empty if all bits of its features are zero.
        count: N, from 1.

    Raises:
        RoboCacheError: a wrong shape, dtype or count.
    """
    count = checked_integer("count", count)
    if count < 1:
        raise RoboCacheError(f"count: {count} is below 1; give the number of points of a cloud")
    check_tensor("grid", grid)
    if grid.dtype != torch.float32 or grid.ndim < 4 or not grid.numel():
        raise RoboCacheError(f"grid: expected (..., F, X, Y, Z) float32 and not empty, got {described(grid)}")
    cells = grid.contiguous().flatten(-3)
    until = (cells.view(torch.int32) != 0).any(-2).cumsum(-1)  # occupied voxels up to and including each one
    total = until[..., -1:]
    numbers = torch.arange(count, device=grid.device).expand(*total.shape[:-1], count)
    ranks = torch.where(total > count, numbers * total // count, numbers)
    places = torch.searchsorted(until, ranks + 1).clamp(max=cells.shape[-1] - 1)
    points = cells.gather(-1, places[..., None, :].expand(*cells.shape[:-1], count)).transpose(-1, -2)
    points = torch.where((numbers < total)[..., None], points, 0.0)
    return FixedSizeCloud(points.contiguous(), total.squeeze(-1).clamp(max=count))
