"""What decoders return, and the limits of one message."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.ops.image.formats import ImageLayout
from robocache_ros.ops.voxel.layouts import CloudLayout, ColorLayout, DepthImageLayout, PointField

# Limits on the cost of one message; a message that exceeds one is refused and counted as a bad message.
#
# Each is several times what real sensors send, and small enough that the worst message costs a fraction of a second.

MAX_NAMES = 1024  # joint names or point fields of a message; a humanoid with hands has 100 joints
# A joint name, field name, frame, encoding or format; a spec allows names of 256 characters.
MAX_TEXT_BYTES = 1024
MAX_ELEMENTS = 65_536  # elements of a sequence that are read one by one, such as strings
MAX_TRANSFORMS = 4096  # in a message of /tf or /tf_static
MAX_POINTS = 2**23  # in a cloud; the largest known sensor is a structured-light scanner of 5 megapixels
MAX_CACHED_NAMES = 8  # lists of names that a decoder caches

MAX_DEFINITION_BYTES = 2**20  # a message definition with all the types that it needs
MAX_TYPES = 1024  # in one definition
MAX_DEPTH = 32  # messages nested in messages
MAX_LEAVES = 16_384  # numbers and strings of a type; an array counts once
MAX_FIXED_BYTES = 2**30  # a type's arrays of fixed length


@dataclass(frozen=True)
class ImageLimits:
    """Limits of an image. The defaults cover 8K video (7680x4320), the largest cameras of robots.

    pixels: in a colour or grey image. depth_pixels: in a compressedDepth image; the largest depth cameras have 5
    million. scans: in a jpeg; encoders of progressive jpegs write about 10. segments: in a jpeg before its first scan.
    chunks: in a png; encoders write one for every 8 KiB or more.
    """

    pixels: int = 2**25
    depth_pixels: int = 2**24
    scans: int = 16
    segments: int = 1024
    chunks: int = 32_768


IMAGE_LIMITS = ImageLimits()

Buffer: TypeAlias = "bytes | memoryview"
ByteArray: TypeAlias = npt.NDArray[np.uint8]
Vector: TypeAlias = npt.NDArray[np.float32]
Matrix: TypeAlias = tuple[tuple[float, ...], ...]  # three rows of [R | t], hashable


class DecodeError(RoboCacheError):
    """A message that cannot be used; `cause` is a short stable key for counters.

    The text is one line of at most 180 characters, whatever the message contains.
    """

    def __init__(self, cause: str, message: str) -> None:
        super().__init__(printable(message, 180))
        self.cause = cause

    def __reduce__(self) -> tuple[type[DecodeError], tuple[str, str]]:
        return DecodeError, (self.cause, str(self))


@dataclass(frozen=True, slots=True)
class PlacedLayout:
    """The layout of the bytes of a cloud or a depth image, and the pose of its sensor; hashable."""

    layout: CloudLayout | DepthImageLayout
    transform: Matrix | None


@dataclass(frozen=True, slots=True)
class ImagePayload:
    """An image, still in the message's memory.

    data: (nbytes,) uint8, a view of the message (read-only if that is bytes). Raw: `height` rows, `step` bytes apart
    (nv12: 1.5 times as many). Compressed: the bytes of the file; encoding is jpeg, png or compressedDepth, the
    sizes are 0, and `source` is the encoding that was compressed, if the message states it.
    """

    data: ByteArray
    encoding: str
    width: int = 0
    height: int = 0
    step: int = 0
    big_endian: bool = False
    source: str = ""

    @property
    def layout(self) -> ImageLayout:
        """The layout of a raw image's bytes."""
        return ImageLayout(self.encoding, self.width, self.height, self.step, self.big_endian)


@dataclass(frozen=True, slots=True)
class CloudPayload:
    """A point cloud, still in the message's memory.

    data: (nbytes,) uint8, a view of the message up to the last point. Rows are `row_step` bytes apart, points
    `point_step` bytes. transform: T_grid_sensor, if it comes with the sample.
    """

    data: ByteArray
    width: int
    height: int
    point_step: int
    row_step: int
    fields: tuple[PointField, ...]
    big_endian: bool = False
    transform: Matrix | None = None

    @property
    def layout(self) -> PlacedLayout:
        """The layout of the bytes."""
        size = (self.width, self.height, self.point_step, self.row_step)
        return PlacedLayout(CloudLayout(*size, self.fields, self.big_endian), self.transform)


@dataclass(frozen=True, slots=True)
class DepthPayload:
    """A depth image, with the camera that converts it to points.

    data: (nbytes,) uint8, the bytes of the depth image, and from `color_at` those of a colour image registered to it.
    encoding, step, big_endian: of the depth image. camera: fx, fy, cx, cy in pixels. color_encoding: empty if there is
    no colour image. transform: T_grid_camera, if it comes with the sample.
    """

    data: ByteArray
    encoding: str
    width: int
    height: int
    step: int
    big_endian: bool
    camera: tuple[float, ...]
    color_encoding: str = ""
    color_step: int = 0
    color_at: int = 0
    transform: Matrix | None = None

    @property
    def layout(self) -> PlacedLayout:
        """The layout of the bytes."""
        depth = ImageLayout(self.encoding, self.width, self.height, self.step, self.big_endian)
        color = ColorLayout(self.color_encoding, self.color_step, self.color_at) if self.color_encoding else None
        return PlacedLayout(DepthImageLayout(depth, self.camera, color), self.transform)


@dataclass(frozen=True, slots=True)
class CameraPayload:
    """The camera of rectified images of width x height pixels; 0 if camera_info does not state the size."""

    width: int
    height: int
    intrinsics: tuple[float, float, float, float]  # fx, fy, cx, cy in pixels


class Sample(NamedTuple):
    """A decoded message.

    stamp_ns: the header's stamp, None if the type has no header. value: (D,) float32, or a payload.
    unmatched: joints of the message that the stream does not use. frame_id: the header's frame, if the stream's grid
    has a frame of its own.
    """

    stamp_ns: int | None
    value: Vector | ImagePayload | CloudPayload | DepthPayload | CameraPayload
    unmatched: tuple[str, ...] = ()
    frame_id: str = ""
