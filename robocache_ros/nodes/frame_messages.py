"""Frames to messages and back: the fused window, aligned images, occupied voxels."""

from __future__ import annotations

import io
import struct
import sys
from array import array

import numpy as np
import torch
from builtin_interfaces.msg import Time
from numpy.typing import NDArray
from sensor_msgs.msg import CompressedImage, Image, JointState, PointCloud2, PointField
from std_msgs.msg import Float32MultiArray, Header
from torch import Tensor

from robocache_ros.decode import ImagePayload
from robocache_ros.decode.images import decode_compressed
from robocache_ros.ops.voxel.grid import value_names, voxel_points
from robocache_ros.spec import StreamSpec, VoxelSpec
from robocache_ros.spec.layout import Layout
from robocache_ros.units import NS_PER_S

TICK_LABEL = "tick_ns="
JPEG_QUALITY = 95
_ENCODINGS = {(3, torch.uint8): "rgb8", (1, torch.uint8): "mono8", (1, torch.float32): "32FC1"}
_FLOATS = struct.Struct("<III")  # stride, data_offset, data length


def fused_cdr(tick_ns: int, window: NDArray[np.float32]) -> bytes:
    """A std_msgs/Float32MultiArray of an (H, C) window as CDR; the label of its first dimension is the newest tick.

    It is written by hand: filling and serializing the message class takes ten times as long, 50 times a second.
    """
    horizon, columns = window.shape
    label = f"{TICK_LABEL}{tick_ns}".encode() + b"\0"
    parts = (
        struct.pack("<4sII", b"\0\1\0\0", 2, len(label)),
        label + bytes(-len(label) % 4),
        struct.pack("<III8s", horizon, horizon * columns, len("column") + 1, b"column\0\0"),
        struct.pack("<I", columns) + _FLOATS.pack(columns, 0, horizon * columns),
        window.astype("<f4", copy=False).tobytes(),
    )
    return b"".join(parts)


def read_fused(message: Float32MultiArray) -> tuple[int, Tensor]:
    """The newest tick and the (H, C) float32 window of a message; ValueError if it is not from a fusion node."""
    tick, columns = message.layout.dim
    if not tick.label.startswith(TICK_LABEL):
        raise ValueError(f"label {tick.label!r} does not begin with {TICK_LABEL}")
    window = torch.frombuffer(message.data, dtype=torch.float32).reshape(tick.size, columns.size)
    return int(tick.label[len(TICK_LABEL) :]), window


def plot_message(tick_ns: int, row: NDArray[np.float32], layout: Layout) -> JointState:
    """The (C,) row of a tick with a name for each number, for viewers that plot joints; NaN where there is no value."""
    columns = layout.plotted
    values = row[[each.column for each in columns]].astype(np.float64)
    values[[each.valid is not None and not row[each.valid] for each in columns]] = np.nan
    header = Header(stamp=stamp(tick_ns))
    return JointState(header=header, name=[each.name for each in columns], position=array("d", values.tobytes()))


def stamp(time_ns: int) -> Time:
    """A time as a message stamp."""
    seconds, nanoseconds = divmod(time_ns, NS_PER_S)
    return Time(sec=seconds, nanosec=nanoseconds)


def stamp_ns(header: Header) -> int:
    """The stamp of a header in ns."""
    return int(header.stamp.sec) * NS_PER_S + int(header.stamp.nanosec)


def image_message(tick_ns: int, frame_id: str, image: Tensor) -> Image:
    """A (C, H, W) uint8 or float32 image, stamped with its tick."""
    channels, height, width = image.shape
    encoding = _ENCODINGS.get((channels, image.dtype)) or f"{'8U' if image.dtype == torch.uint8 else '32F'}C{channels}"
    data = image.permute(1, 2, 0).contiguous().cpu().numpy()
    message = Image(header=Header(stamp=stamp(tick_ns), frame_id=frame_id), height=height, width=width)
    message.encoding = encoding
    message.is_bigendian = sys.byteorder == "big"
    message.step = width * channels * data.itemsize
    message.data = array("B", data.tobytes())  # rclpy copies an array as a block, and checks other types byte by byte
    return message


def read_image(message: Image) -> Tensor:
    """The (C, H, W) tensor of an aligned image, uint8 or float32."""
    floats = message.encoding.startswith("32F")
    flat = np.frombuffer(message.data, np.float32 if floats else np.uint8)
    pixels = flat.reshape(message.height, message.width, -1)
    return torch.from_numpy(pixels.transpose(2, 0, 1).copy())  # by NumPy: torch would wake its other threads


def compressed_message(tick_ns: int, frame_id: str, image: Tensor) -> CompressedImage | None:
    """A (1 or 3, H, W) uint8 image as jpeg; None if it has other channels or values."""
    if (image.shape[0], image.dtype) not in ((1, torch.uint8), (3, torch.uint8)):
        return None
    from PIL import Image as Picture

    pixels = image.permute(1, 2, 0).contiguous().cpu().numpy()
    file = io.BytesIO()
    # Without subsampling of the colours, which would halve their resolution.
    Picture.fromarray(pixels[..., 0] if len(image) == 1 else pixels).save(
        file, "jpeg", quality=JPEG_QUALITY, subsampling=0
    )
    header = Header(stamp=stamp(tick_ns), frame_id=frame_id)
    return CompressedImage(header=header, format="jpeg", data=array("B", file.getvalue()))


def read_compressed(message: CompressedImage) -> Tensor:
    """The (C, H, W) uint8 tensor of a compressed image."""
    raw = decode_compressed(ImagePayload(np.frombuffer(message.data, np.uint8), message.format))
    pixels = raw.data.reshape(raw.height, raw.width, -1)
    return torch.from_numpy(pixels.transpose(2, 0, 1).copy())


def voxel_message(tick_ns: int, frame_id: str, voxels: Tensor, grid: VoxelSpec) -> PointCloud2:
    """The occupied voxels of an (X, Y, Z) or (F, X, Y, Z) grid, as points at their centres."""
    names, points = voxel_points(voxels.cpu().numpy(), grid)
    return cloud_message(Header(stamp=stamp(tick_ns), frame_id=frame_id), names, points)


def read_voxels(message: PointCloud2, grid: VoxelSpec) -> Tensor:
    """The grid that a voxel cloud was made from: (X, Y, Z) uint8 or int32, (F, X, Y, Z) float32."""
    count = message.width * message.height
    points = np.frombuffer(message.data, np.float32).reshape(count, 3 + len(value_names(grid)))
    cells = np.rint((points[:, :3] - np.array(grid.origin_m)) / np.array(grid.size_m) - 0.5).astype(np.int64)
    if ((cells < 0) | (cells >= np.array(grid.shape))).any():
        raise ValueError("a voxel is outside of the grid")
    values = points[:, 3:].T if value_names(grid) else np.ones((1, count), np.float32)
    dense = np.zeros((len(values), *grid.shape), np.float32)
    dense[:, cells[:, 0], cells[:, 1], cells[:, 2]] = values
    return torch.from_numpy((dense if grid.features else dense[0]).astype(grid.reduction.dtype, copy=False))


def cloud_message(header: Header, names: tuple[str, ...], points: NDArray[np.float32]) -> PointCloud2:
    """An (N, F) float32 array as a cloud of N points: the bytes of create_cloud of sensor_msgs_py, not on PyPI."""
    fields = [
        PointField(name=name, offset=4 * index, datatype=PointField.FLOAT32, count=1)
        for index, name in enumerate(names)
    ]
    message = PointCloud2(header=header, height=1, width=len(points), fields=fields)
    message.is_dense = False
    message.is_bigendian = sys.byteorder == "big"
    message.point_step = 4 * len(fields)
    message.row_step = message.point_step * len(points)
    message.data = array("B", points.tobytes())
    return message


def blank(stream: StreamSpec) -> Tensor | None:
    """Zeros for an invalid image or grid of a stream; None if its size is not declared."""
    if stream.voxels:
        grid = stream.voxels
        shape = grid.reduction.dense_shape(grid.shape, len(grid.features), 0)
        return torch.zeros(shape, dtype=getattr(torch, grid.reduction.dtype))
    if stream.image and stream.image.size:
        return torch.zeros(3, *stream.image.size, dtype=torch.uint8)
    return None
