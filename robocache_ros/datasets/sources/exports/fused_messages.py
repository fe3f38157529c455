"""The messages of exported recordings as arrays: the inverse of `formats.mcap.schema`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from robocache_ros.datasets.sources.exports.array_rows import MAX_BYTES
from robocache_ros.decode.cdr.definitions import message_type
from robocache_ros.decode.cdr.whole_message import read_message
from robocache_ros.engine.backends.media_tensors import tensor_format
from robocache_ros.export.formats.mcap.plot_messages import message_dtype
from robocache_ros.spec import StreamSpec
from robocache_ros.units import NS_PER_S

_LITTLE_ENDIAN = b"\0\1\0\0"
_DEPTH = {"32FC": "<f4", "16UC": "<u2", "8UC": "<u1", "32SC": "<i4", "64FC": "<f8"}


class Rows(NamedTuple):
    """A stream at T ticks."""

    stamps_ns: NDArray[np.int64]  # (T,)
    valid: NDArray[np.uint8]  # (T,)
    values: NDArray[np.float32]  # (T, K) in the order of the fields; NaN where there is none


def stream_rows(messages: Sequence[bytes | memoryview], columns: int) -> Rows:
    """Return the messages of the values, or of the status, of a stream.

    Errors:
        ValueError: a message has another size or byte order.
    """
    kind = message_dtype(columns)
    for message in messages:
        if len(message) != kind.itemsize or bytes(message[:4]) != _LITTLE_ENDIAN:
            raise ValueError(f"a message of {len(message):,} bytes, not of {kind.itemsize:,}")
    rows = np.frombuffer(b"".join(messages), kind)
    stamps = rows["sec"].astype(np.int64) * NS_PER_S + rows["nanosec"]
    return Rows(stamps, rows["valid"].copy(), rows["values"])


def window_values(values: NDArray[np.float32], rows: int, dim: int) -> NDArray[np.float32]:
    """Return the (T, rows, dim) values of a window, from its ages and the values of each component; 0 for padding."""
    by_sample: NDArray[np.float32] = values[:, rows:].reshape(len(values), dim, rows).transpose(0, 2, 1).copy()
    by_sample[values[:, :rows] < 0] = 0
    return by_sample


def read_text(message: bytes | memoryview) -> str:
    """Return the text of a std_msgs/String."""
    return str(_read("std_msgs/msg/String", message).data)


def read_number(message: bytes | memoryview) -> float:
    """Return the number of a std_msgs/Float32."""
    return float(_read("std_msgs/msg/Float32", message).data)


def read_compressed(message: bytes | memoryview) -> bytes:
    """Return the file in a sensor_msgs/CompressedImage."""
    return bytes(_read("sensor_msgs/msg/CompressedImage", message).data)


def read_image(message: bytes | memoryview) -> NDArray[Any]:
    """Return the (H, W, C) pixels of a sensor_msgs/Image."""
    image = _read("sensor_msgs/msg/Image", message)
    name = image.encoding.rstrip("0123456789")
    dtype, channels = np.dtype(_DEPTH[name]), int(image.encoding[len(name) :])
    return np.frombuffer(bytes(image.data), dtype).reshape(image.height, image.width, channels)


def read_voxels(message: bytes | memoryview, stream: StreamSpec) -> NDArray[Any]:
    """Return the grid, (X, Y, Z) or (F, X, Y, Z), whose occupied voxels are a sensor_msgs/PointCloud2.

    Errors:
        ValueError: a point is outside of the grid.
    """
    cloud = _read("sensor_msgs/msg/PointCloud2", message)
    grid, form = stream.voxels, tensor_format(stream)
    assert grid is not None
    points = np.frombuffer(bytes(cloud.data), "<f4").reshape(cloud.width, -1)
    cells = np.rint((points[:, :3].astype(np.float64) - grid.origin_m) / grid.size_m - 0.5).astype(np.int64)
    if not ((cells >= 0) & (cells < grid.shape)).all():
        raise ValueError("a voxel is outside of the grid")
    shape, dtype = tuple(form.shape), np.dtype(str(form.dtype).removeprefix("torch."))
    if math.prod(shape) * dtype.itemsize > MAX_BYTES:
        raise ValueError(f"a grid of {shape}")
    found = np.zeros(shape if len(shape) == 4 else (1, *shape), dtype)
    x, y, z = cells.T
    found[:, x, y, z] = points[:, 3:].T if points.shape[1] > 3 else 1
    return found.reshape(shape)


@cache
def _type(name: str) -> Any:
    return message_type(name)


def _read(name: str, message: bytes | memoryview) -> Any:
    return read_message(_type(name), message)
