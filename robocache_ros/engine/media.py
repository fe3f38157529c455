"""What becomes of an image or a cloud: the tensor that a stream's spec asks for."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robocache_ros import ops
from robocache_ros.decode import decode_compressed
from robocache_ros.decode.payloads import CloudPayload, ImagePayload
from robocache_ros.spec import StreamSpec


def converter(stream: StreamSpec) -> tuple[Callable[[Any], Tensor], Tensor]:
    """For an image or cloud stream: payload -> tensor, and the zeros that stand where there is none."""
    if stream.kind == "image":
        height, width = (stream.image and stream.image.size) or (0, 0)
        return lambda payload: image_tensor(payload, stream), torch.zeros(3, height, width, dtype=torch.uint8)
    return lambda payload: voxel_tensor(payload, stream), _empty_grid(stream)


def image_tensor(payload: ImagePayload, stream: StreamSpec) -> Tensor:
    """(C, H, W): uint8 of 8-bit encodings, not yet normalised; float32 of depth, in the message's units."""
    image = stream.image
    assert image is not None
    raw = decode_compressed(payload)
    return ops.convert_image(
        _borrow(raw.data),
        encoding=raw.encoding,
        width=raw.width,
        height=raw.height,
        step=raw.step,
        big_endian=raw.big_endian,
        size=image.size,
        crop=image.crop,
        resize=image.resize,
    )


def voxel_tensor(payload: CloudPayload, stream: StreamSpec) -> Tensor:
    """(X, Y, Z) uint8 occupancy or int32 count; (F, X, Y, Z) float32 of mean and max."""
    grid = stream.voxels
    assert grid is not None
    return ops.voxelize_cloud_bytes(
        _borrow(payload.data),
        width=payload.width,
        height=payload.height,
        point_step=payload.point_step,
        row_step=payload.row_step,
        fields=payload.fields,
        big_endian=payload.big_endian,
        transform=torch.tensor(grid.extrinsic.matrix) if grid.extrinsic else None,
        grid_min=grid.origin_m,
        voxel_size=grid.size_m,
        grid_size=grid.shape,
        mode=grid.reduce,
        features=grid.features,
    ).grid


def _borrow(data: NDArray[np.uint8]) -> Tensor:
    """A tensor over bytes that are only read; torch warns of read-only arrays, and a copy of each frame is dear."""
    if data.flags.writeable:
        return torch.from_numpy(data)
    memory = (ctypes.c_uint8 * data.size).from_address(data.ctypes.data)
    return torch.from_numpy(np.ctypeslib.as_array(memory))


def _empty_grid(stream: StreamSpec) -> Tensor:
    grid = stream.voxels
    assert grid is not None
    if grid.features:
        return torch.zeros(len(grid.features), *grid.shape)
    return torch.zeros(grid.shape, dtype=torch.uint8 if grid.reduce == "occupancy" else torch.int32)
