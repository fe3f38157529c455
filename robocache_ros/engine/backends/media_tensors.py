"""Converts the payload of an image or a cloud to the tensor that its stream declares."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robocache_ros.decode import decode_compressed
from robocache_ros.decode.compressed import first_picture
from robocache_ros.decode.payloads import (
    CloudPayload,
    DepthPayload,
    ImagePayload,
    Matrix,
)
from robocache_ros.engine.backends.interface import CPU, TensorFormat
from robocache_ros.ops.image.conversion import ImageOptions
from robocache_ros.ops.image.convert import channels_last_layout, convert_layout
from robocache_ros.ops.image.formats import ImageLayout
from robocache_ros.ops.image.nvjpeg import decode_jpeg
from robocache_ros.ops.voxel.depth import voxelize_depth_layout
from robocache_ros.ops.voxel.depth_layout import DepthImageLayout
from robocache_ros.ops.voxel.grid import Output, Voxelization, checked_voxelization
from robocache_ros.ops.voxel.voxelize import voxelize_layout
from robocache_ros.spec import StreamSpec

Payload: TypeAlias = ImagePayload | CloudPayload | DepthPayload


def converter(stream: StreamSpec, normalized: bool = False, channels_last: bool = False) -> Callable[[Any], Tensor]:
    """The function from payload to tensor for an image or cloud stream; arguments as in `image_tensor`."""
    if stream.kind == "image":
        return lambda payload: image_tensor(payload, stream, normalized, channels_last)
    return lambda payload: voxel_tensor(payload, stream)


def converter_on(
    device: torch.device, stream: StreamSpec, normalized: bool = False, channels_last: bool = False, jpeg: str = "cpu"
) -> Callable[[Any], Tensor]:
    """The function from payload to tensor on the CPU that uploads each payload and converts it on a CUDA device.

    The bits are those of `converter`, except with `jpeg: gpu`: nvJPEG decodes jpeg images.
    """

    def image(payload: ImagePayload) -> Tensor:
        if jpeg == "gpu" and payload.encoding == "jpeg":
            data, layout = decode_on_gpu(payload, device)
        else:
            raw = decode_compressed(payload)
            data, layout = borrow(raw.data).to(device), raw.layout
        tensor = convert_layout(data, layout, image_options(stream, normalized))
        if channels_last and tensor.dtype == torch.uint8:
            return tensor.permute(1, 2, 0).contiguous().cpu().permute(2, 0, 1)
        return tensor.cpu()

    if stream.kind == "image":
        return image
    return lambda payload: voxel_tensor(payload, stream, device).cpu()


def decode_on_gpu(image: ImagePayload, device: torch.device) -> tuple[Tensor, ImageLayout]:
    """The (nbytes,) uint8 pixels of a jpeg on a CUDA device, decoded by nvJPEG; RoboCacheError if it is corrupt."""
    pixels = decode_jpeg(np.frombuffer(first_picture(image), np.uint8), device)
    height, width, channels = pixels.shape
    encoding = "rgb8" if channels == 3 else "mono8"
    return pixels.view(-1), ImageLayout(encoding, width, height, channels * width, False)


def tensor_format(stream: StreamSpec, normalized: bool = False) -> TensorFormat:
    """The format of an image or cloud stream's tensors, as far as its spec declares it."""
    if stream.kind == "image":
        height, width = (stream.image and stream.image.size) or (0, 0)
        return TensorFormat((3, height, width), torch.float32 if normalized else torch.uint8)
    voxelization = voxelization_of(stream)
    reduction = voxelization.reduction
    return TensorFormat(reduction.dense_shape(voxelization.grid), reduction.dense_dtype)


def image_tensor(
    payload: ImagePayload, stream: StreamSpec, normalized: bool = False, channels_last: bool = False
) -> Tensor:
    """(C, H, W): uint8 for 8-bit encodings, not normalised; float32 for depth, in the message's units.

    `normalized`: always float32; uint8 images are normalised as by `ops.normalize_image`.
    `channels_last`: uint8 images in this memory format, without a copy if possible.
    """
    raw = decode_compressed(payload)
    convert = channels_last_layout if channels_last else convert_layout
    return convert(borrow(raw.data), raw.layout, image_options(stream, normalized))


def image_options(stream: StreamSpec, normalized: bool) -> ImageOptions:
    """How the images of a stream are converted to tensors; `normalized` as in `image_tensor`."""
    image = stream.image
    assert image is not None
    normalize, dtype = (image.normalize, torch.float32) if normalized else (None, None)
    return ImageOptions(image.size, image.crop, image.resize, normalize, dtype)


def voxel_tensor(payload: CloudPayload | DepthPayload, stream: StreamSpec, device: torch.device = CPU) -> Tensor:
    """(X, Y, Z) uint8 occupancy or int32 count; (F, X, Y, Z) float32 for reduced features; on the device."""
    data, placed = borrow(payload.data).to(device), payload.layout
    pose, voxelization = sensor_pose(placed.transform, stream), voxelization_of(stream)
    if isinstance(placed.layout, DepthImageLayout):
        color = data if placed.layout.color else None
        return voxelize_depth_layout(data, color, placed.layout, pose, voxelization, Output()).grid
    return voxelize_layout(data, placed.layout, pose, voxelization, Output()).grid


def voxelization_of(stream: StreamSpec) -> Voxelization:
    """The grid and the reduction that a stream's spec declares."""
    grid = stream.voxels
    assert grid is not None
    return checked_voxelization(grid.origin_m, grid.size_m, grid.shape, grid.reduce, grid.features)


def sensor_pose(transform: Matrix | None, stream: StreamSpec) -> Tensor | None:
    """(3, 4) float32 T_grid_sensor: from the spec, or from the sample; None if both frames are the same."""
    grid = stream.voxels
    assert grid is not None
    matrix = grid.extrinsic.matrix if grid.extrinsic else transform
    return None if matrix is None else torch.tensor(matrix)


def borrow(data: NDArray[np.uint8]) -> Tensor:
    """A tensor that shares bytes that are only read, without a copy; torch warns about read-only arrays."""
    if data.flags.writeable:
        return torch.from_numpy(data)
    memory = (ctypes.c_uint8 * data.size).from_address(data.ctypes.data)
    memory.data = data  # type: ignore[attr-defined]  # the memory is kept as long as the tensor
    return torch.from_numpy(np.ctypeslib.as_array(memory))
