"""What becomes of an image or a cloud: the tensor that a stream's spec asks for."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robocache_ros import ops
from robocache_ros.decode import decode_compressed
from robocache_ros.decode.payloads import CloudPayload, DepthPayload, ImagePayload
from robocache_ros.engine.backend import Form
from robocache_ros.spec import StreamSpec

IMAGE_LAYOUT = ("encoding", "width", "height", "step", "big_endian")
CLOUD_LAYOUT = ("width", "height", "point_step", "row_step", "fields", "big_endian", "transform")
DEPTH_LAYOUT = (
    "encoding", "width", "height", "step", "big_endian", "camera", "color_encoding", "color_step", "color_at",
    "transform",
)  # fmt: skip
Payload: TypeAlias = ImagePayload | CloudPayload | DepthPayload


def converter(stream: StreamSpec, normalized: bool = False) -> Callable[[Any], Tensor]:
    """Payload -> tensor, for an image or cloud stream."""
    if stream.kind == "image":
        return lambda payload: image_tensor(payload, stream, normalized)
    return lambda payload: voxel_tensor(payload, stream)


def form_of(stream: StreamSpec, normalized: bool = False) -> Form:
    """The form of an image or cloud stream's tensors, as far as its spec tells."""
    if stream.kind == "image":
        height, width = (stream.image and stream.image.size) or (0, 0)
        return Form((3, height, width), torch.float32 if normalized else torch.uint8)
    grid = stream.voxels
    assert grid is not None
    if grid.features:
        return Form((len(grid.features), *grid.shape), torch.float32)
    return Form(grid.shape, torch.uint8 if grid.reduce == "occupancy" else torch.int32)


def image_tensor(payload: ImagePayload, stream: StreamSpec, normalized: bool = False) -> Tensor:
    """(C, H, W): uint8 of 8-bit encodings, not yet normalised; float32 of depth, in the message's units.

    `normalized`: float32 of all, as `ops.normalize_image` makes it of the uint8 ones.
    """
    raw = decode_compressed(payload)
    return ops.convert_image(borrow(raw.data), **image_arguments(layout_of(raw), stream, normalized))


def voxel_tensor(payload: CloudPayload | DepthPayload, stream: StreamSpec) -> Tensor:
    """(X, Y, Z) uint8 occupancy or int32 count; (F, X, Y, Z) float32 of mean and max."""
    data, layout = borrow(payload.data), layout_of(payload)
    if isinstance(payload, DepthPayload):
        arguments = depth_arguments(layout, stream)
        at = arguments.pop("color_at")
        grid = ops.voxelize_depth(data, color=data[at:] if payload.color_encoding else None, **arguments).grid
    else:
        grid = ops.voxelize_cloud_bytes(data, **voxel_arguments(layout, stream)).grid
    assert grid is not None
    return grid


def layout_of(payload: Payload) -> tuple[Any, ...]:
    """How a payload's bytes are laid out; hashable."""
    names = (
        IMAGE_LAYOUT
        if isinstance(payload, ImagePayload)
        else CLOUD_LAYOUT
        if isinstance(payload, CloudPayload)
        else DEPTH_LAYOUT
    )
    return tuple([getattr(payload, name) for name in names])


def image_arguments(layout: Sequence[Any], stream: StreamSpec, normalized: bool) -> dict[str, Any]:
    """What `convert_image` is told beside the bytes."""
    image = stream.image
    assert image is not None
    return {
        **dict(zip(IMAGE_LAYOUT, layout, strict=True)),
        "size": image.size,
        "crop": image.crop,
        "resize": image.resize,
        "normalize": image.normalize if normalized else None,
        "dtype": torch.float32 if normalized else None,
    }


def voxel_arguments(layout: Sequence[Any], stream: StreamSpec) -> dict[str, Any]:
    """What `voxelize_cloud_bytes` is told beside the bytes."""
    return _with_grid(dict(zip(CLOUD_LAYOUT, layout, strict=True)), stream)


def depth_arguments(layout: Sequence[Any], stream: StreamSpec) -> dict[str, Any]:
    """What `voxelize_depth` is told beside the bytes, and `color_at`, where in them the colours begin."""
    return _with_grid(dict(zip(DEPTH_LAYOUT, layout, strict=True)), stream)


def _with_grid(arguments: dict[str, Any], stream: StreamSpec) -> dict[str, Any]:
    grid = stream.voxels
    assert grid is not None
    matrix = grid.extrinsic.matrix if grid.extrinsic else arguments["transform"]
    return {
        **arguments,
        "transform": None if matrix is None else torch.tensor(matrix),
        "grid_min": grid.origin_m,
        "voxel_size": grid.size_m,
        "grid_size": grid.shape,
        "mode": grid.reduce,
        "features": grid.features,
    }


def borrow(data: NDArray[np.uint8]) -> Tensor:
    """A tensor over bytes that are only read; torch warns of read-only arrays, and a copy of each frame is dear."""
    if data.flags.writeable:
        return torch.from_numpy(data)
    memory = (ctypes.c_uint8 * data.size).from_address(data.ctypes.data)
    return torch.from_numpy(np.ctypeslib.as_array(memory))
