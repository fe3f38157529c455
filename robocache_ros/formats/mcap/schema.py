"""Topics and messages of exported recordings: CDR with a field per value for plots, images and voxels.

The messages are packed here, because ROS is not needed for an export, and general serializers take many times as long.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from robocache_ros.engine.frames import status_columns
from robocache_ros.ops.voxel.grid import voxel_points
from robocache_ros.spec import StreamSpec, VoxelSpec
from robocache_ros.units import NS_PER_S

PREFIX = "/robocache"  # and the name of a stream
TASK, LAYOUT, REWARD = (f"{PREFIX}/episode/{name}" for name in ("task", "layout", "reward"))
IMAGE_TYPE, COMPRESSED_TYPE = "sensor_msgs/msg/Image", "sensor_msgs/msg/CompressedImage"
CLOUD_TYPE, STRING_TYPE, NUMBER_TYPE = "sensor_msgs/msg/PointCloud2", "std_msgs/msg/String", "std_msgs/msg/Float32"
EPISODE_TYPES = {LAYOUT: STRING_TYPE, TASK: STRING_TYPE, REWARD: NUMBER_TYPE}
LITTLE_ENDIAN = b"\0\1\0\0"
# Of images that are not 8-bit RGB: dtype -> encoding, less the number of channels.
ENCODINGS = {"float32": "32FC", "uint16": "16UC", "uint8": "8UC", "int32": "32SC", "float64": "64FC"}
_FLOAT32 = 7  # a sensor_msgs/PointField datatype
_STATUS = ("stamp", "valid", "age_ms", "sample_age_ms")  # fields before the values


def episode_folder(number: int) -> str:
    """Return the name of the folder of a recording, and of its file without .mcap."""
    return f"episode_{number:06d}"


def values_topic(stream: StreamSpec) -> str:
    """Return the topic with a message per tick: the values of a vector, or the status of images or voxels."""
    return f"{PREFIX}/{stream.name}{'' if stream.kind == 'vector' else '/status'}"


def values_of(stream: StreamSpec) -> int:
    """Return the number of values after `age_ms` in a message of `values_topic`."""
    if stream.kind != "vector":
        return 0
    return stream.rows + stream.rows * stream.dim if stream.rows else stream.dim


def field_names(labels: Sequence[str]) -> tuple[str, ...]:
    """Return a distinct ROS field name for each label: `panda_joint1`, `position_x` for `position.x`, `v0` for `0`."""
    names: list[str] = []
    for index, label in enumerate(labels):
        name = re.sub(r"[^a-z0-9]+", "_", label.lower()).strip("_") or "v"
        name = name if name[0].isalpha() else f"v{name}"
        names.append(f"{name}_{index}" if name in (*_STATUS, *names) else name)
    return tuple(names)


def definition(stream: StreamSpec) -> str:
    """Return the definition of the messages of a vector stream, or of the status of an image or voxel stream."""
    lines = ["builtin_interfaces/Time stamp", "uint8 valid", "float32 age_ms"]
    size = f"[{stream.rows}]" if stream.rows else ""
    if stream.rows:
        lines.append(f"float32{size} sample_age_ms")
    if stream.kind == "vector":
        lines += [f"float32{size} {name}" for name in field_names(stream.components)]
    return "\n".join(lines) + "\n"


def message_dtype(values: int) -> np.dtype[Any]:
    """Return the layout of a message as defined by `definition`, given the number of values after `age_ms`."""
    fields = [
        ("encapsulation", "S4"),
        ("sec", "<i4"),
        ("nanosec", "<u4"),
        ("valid", "u1"),
        ("padding", "V3"),
        ("age_ms", "<f4"),
        ("values", "<f4", (values,)),
    ]
    return np.dtype(fields)


def stream_messages(
    stamps_ns: NDArray[np.int64], valid: NDArray[np.uint8], age_ns: NDArray[np.int64], values: NDArray[np.float32]
) -> NDArray[Any]:
    """Return the (T,) messages as defined by `definition`, as NumPy's raw bytes.

    Args:
        stamps_ns: (T,) stamps of the samples.
        valid: (T,) 0 none, 1 aligned, 2 held.
        age_ns: (T,) ages of the samples.
        values: (T, K) values in the order of the fields; NaN where there is none, which plots leave out.
    """
    messages = np.zeros(len(valid), message_dtype(values.shape[1]))
    messages["encapsulation"] = LITTLE_ENDIAN
    messages["sec"], messages["nanosec"] = np.divmod(stamps_ns, NS_PER_S)
    messages["valid"] = valid
    messages["age_ms"] = status_columns(valid[:, None], age_ns[:, None], None)[:, 1]
    messages["values"] = values
    return messages


class StreamRows(NamedTuple):
    """What the messages of `values_topic` contain, one per tick."""

    stamps_ns: NDArray[np.int64]  # (T,) 0 where there is no value
    valid: NDArray[np.uint8]  # (T,)
    age_ms: NDArray[np.float32]  # (T,)
    values: NDArray[np.float32]  # (T, K) in the order of the fields; NaN where there is none


def stream_rows(messages: Sequence[bytes | memoryview], values: int) -> StreamRows:
    """Return what messages contain, the inverse of `stream_messages`, given the number of values in each.

    Errors:
        ValueError: a message has another size or byte order.
    """
    kind = message_dtype(values)
    wrong = [row for row, m in enumerate(messages) if len(m) != kind.itemsize or bytes(m[:4]) != LITTLE_ENDIAN]
    if wrong:
        text = f"{len(wrong)} messages have not {kind.itemsize} bytes in little endian, the first is row {wrong[0]}"
        raise ValueError(text)
    rows = np.frombuffer(b"".join(messages), kind)
    stamps = rows["sec"].astype(np.int64) * NS_PER_S + rows["nanosec"]
    return StreamRows(stamps, rows["valid"].copy(), rows["age_ms"], rows["values"])


def text_message(text: str) -> bytes:
    """Return a std_msgs/String."""
    return _Cdr().text(text).done()


def number_message(number: float) -> bytes:
    """Return a std_msgs/Float32."""
    return _Cdr().numbers("f", number).done()


def compressed_message(stamp_ns: int, frame_id: str, encoding: str, data: bytes) -> bytes:
    """Return a sensor_msgs/CompressedImage; the encoding is jpeg or png."""
    return _Cdr().header(stamp_ns, frame_id).text(encoding).data(data).done()


def image_message(stamp_ns: int, frame_id: str, image: NDArray[Any]) -> bytes:
    """Return a sensor_msgs/Image of a (C, H, W) array."""
    channels, height, width = image.shape
    pixels = np.ascontiguousarray(image.transpose(1, 2, 0), image.dtype.newbyteorder("<"))
    cdr = _Cdr().header(stamp_ns, frame_id).numbers("II", height, width)
    cdr = cdr.text(f"{ENCODINGS[image.dtype.name]}{channels}").numbers("B", 0)
    return cdr.numbers("I", width * channels * image.itemsize).data(pixels.tobytes()).done()


def voxel_message(stamp_ns: int, frame_id: str, voxels: NDArray[Any], grid: VoxelSpec) -> bytes:
    """Return a sensor_msgs/PointCloud2 of the occupied voxels, with the points that the live node publishes."""
    names, points = voxel_points(voxels, grid)
    cdr = _Cdr().header(stamp_ns, frame_id).numbers("III", 1, len(points), len(names))
    for index, name in enumerate(names):
        cdr.text(name).numbers("I", 4 * index).numbers("B", _FLOAT32).numbers("I", 1)
    step = 4 * len(names)
    cdr.numbers("B", 0).numbers("II", step, step * len(points))
    return cdr.data(points.astype("<f4", copy=False).tobytes()).numbers("B", 0).done()


class _Cdr:
    """A message in the making. Numbers are aligned to their size, which is at most 4 bytes."""

    def __init__(self) -> None:
        self._message = bytearray(LITTLE_ENDIAN)

    def numbers(self, kinds: str, *values: float) -> _Cdr:
        """Add numbers of one size, by their codes in `struct`."""
        self._message += bytes(-len(self._message) % struct.calcsize(kinds[0]))
        self._message += struct.pack(f"<{kinds}", *values)
        return self

    def text(self, text: str) -> _Cdr:
        """Add a string."""
        return self.data(text.encode() + b"\0")

    def data(self, data: bytes) -> _Cdr:
        """Add a sequence of bytes."""
        self.numbers("I", len(data))
        self._message += data
        return self

    def header(self, stamp_ns: int, frame_id: str) -> _Cdr:
        """Add a std_msgs/Header."""
        return self.numbers("iI", *divmod(stamp_ns, NS_PER_S)).text(frame_id)

    def done(self) -> bytes:
        """Return the message."""
        return bytes(self._message)
