"""Where the bytes of clouds and depth images have their values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from robocache_ros.errors import RoboCacheError
from robocache_ros.ops.checks import check_choice, checked_floats, checked_list
from robocache_ros.ops.image.formats import FORMATS, PACKED, ImageLayout
from robocache_ros.spec.stream import POINT_DATATYPES

MAX_FEATURES = 16  # limit of a kernel's parameters


@dataclass(frozen=True, slots=True)
class PointField:
    """One field of a point, as in sensor_msgs/msg/PointField."""

    name: str
    offset: int  # bytes from the point's first byte
    datatype: int  # 1..8
    count: int


@dataclass(frozen=True, slots=True)
class CloudLayout:
    """The layout of a point cloud's bytes; hashable. `check_cloud` returns a checked one."""

    width: int  # points in a row
    height: int  # rows
    point_step: int  # bytes from a point to the next
    row_step: int  # bytes from a row to the next
    fields: tuple[PointField, ...]
    big_endian: bool

    @property
    def points(self) -> int:
        """Number of points."""
        return self.width * self.height


def check_cloud(nbytes: int, layout: CloudLayout) -> CloudLayout:
    """The layout with its scalar fields only; raises RoboCacheError if a point or a field is outside the bytes."""
    width, height, point_step, row_step = layout.width, layout.height, layout.point_step, layout.row_step
    if width < 0 or height < 0 or point_step < 1 or row_step < 0:
        raise RoboCacheError(
            f"cloud: width {width}, height {height}, point_step {point_step}, row_step {row_step}; use sizes >= 0"
        )
    known: dict[str, PointField] = {}
    for field in layout.fields:
        if not 1 <= field.datatype <= len(POINT_DATATYPES) or field.count > 1:
            continue  # not a scalar: an error only if it is requested
        size = np.dtype(POINT_DATATYPES[field.datatype - 1]).itemsize
        if field.offset < 0 or field.offset + size > point_step:
            end = field.offset + size
            raise RoboCacheError(
                f"fields.{field.name}: bytes {field.offset}..{end} are outside a point of {point_step}; correct it"
            )
        known[field.name] = field
    if width and height:
        if height > 1 and row_step < width * point_step:
            raise RoboCacheError(
                f"row_step: {row_step} bytes is less than a row of {width} points of {point_step}; correct it"
            )
        needed = (height - 1) * row_step + width * point_step
        if needed > nbytes:
            raise RoboCacheError(
                f"data: {nbytes} bytes, but {height} rows of {width} points need {needed}; the message is truncated"
            )
    return replace(layout, fields=tuple(known.values()))


def checked_fields(fields: Any) -> tuple[PointField, ...]:
    """The fields; raises RoboCacheError for an object without the attributes of a PointField."""
    listed = checked_list("fields", fields)
    for field in listed:
        if not all(hasattr(field, name) for name in ("name", "offset", "datatype", "count")):
            raise RoboCacheError(f"fields: {field!r} has no name, offset, datatype and count, as a PointField has")
    return tuple([PointField(field.name, field.offset, field.datatype, field.count) for field in listed])


def column_sources(layout: CloudLayout, features: Sequence[str]) -> list[int | PointField]:
    """The source of x, y, z and each feature: a field, or 0..2 for a feature that is a transformed coordinate."""
    if len(features) > MAX_FEATURES:
        raise RoboCacheError(f"features: got {len(features)}; at most {MAX_FEATURES} are supported")
    axes = {"x": 0, "y": 1, "z": 2}
    fields = {field.name: field for field in layout.fields}
    sources: list[int | PointField] = []
    for number, name in enumerate((*axes, *features)):
        if name not in fields:
            role = "coordinates" if number < 3 else "features"
            raise RoboCacheError(f"{role}: the cloud has no scalar field {name!r}; it has {', '.join(fields)}")
        sources.append(axes[name] if number >= 3 and name in axes else fields[name])
    return sources


AXES, RGB = ("x", "y", "z"), ("r", "g", "b")
MAX_BYTES = 2**31 - 1

# Encoding: NumPy's type, PointField's datatype, units of depth in a metre (REP 118).
DEPTHS = {"16UC1": ("u2", 4, 1000.0), "mono16": ("u2", 4, 1000.0), "32FC1": ("f4", 7, 1.0)}
# Encoding: bytes of a pixel, and where red, green and blue are in it.
COLORS = {
    f.name: (f.pixel_bytes, f.offsets if len(f.offsets) == 3 else 3 * f.offsets)
    for f in FORMATS.values()
    if f.family == PACKED and not f.alias_of
}


@dataclass(frozen=True, slots=True)
class ColorLayout:
    """The layout of the colour image that is registered to a depth image of the same size; hashable."""

    encoding: str
    step: int  # bytes from a row to the next; 0, not checked: rows without padding
    at: int  # bytes from the depth image's first byte to its own


@dataclass(frozen=True, slots=True)
class DepthImageLayout:
    """The layout of a depth image and its colours, and the camera's model, not checked; hashable."""

    depth: ImageLayout
    camera: Sequence[float]  # fx, fy, cx, cy in pixels
    color: ColorLayout | None = None


@dataclass(frozen=True)
class DepthLayout:
    """A checked layout: the depth, and the colour, of every pixel is inside the bytes."""

    encoding: str
    width: int
    height: int
    step: int
    big_endian: bool
    camera: tuple[float, float, float, float]  # fx, fy, cx, cy; float32 values
    color: ColorLayout | None
    # For each feature: 0..2 for x, y, z in the grid's frame; 3 + the byte of a pixel's colour.
    sources: tuple[int, ...]


def check_depth(nbytes: int, color_nbytes: int, image: DepthImageLayout, features: Sequence[str]) -> DepthLayout:
    """The checked layout of a depth image; raises RoboCacheError if a pixel is outside the bytes.

    nbytes: size of the memory that begins with the depth image. color_nbytes: size of the memory that has the colour
    image `color.at` bytes from its first byte.
    """
    depth, camera, encoding = image.depth, image.camera, image.depth.encoding
    width, height = depth.width, depth.height
    color = image.color and _checked_color(color_nbytes, image.color, width, height)
    if not isinstance(encoding, str) or encoding not in DEPTHS:
        raise RoboCacheError(f"encoding: {encoding!r} is not a depth encoding; use one of {', '.join(DEPTHS)}")
    step = _checked_step("data", nbytes, width, height, depth.step, np.dtype(DEPTHS[encoding][0]).itemsize)
    with np.errstate(over="ignore"):
        rounded = [float(np.float32(value)) for value in checked_floats("camera", camera, ("fx", "fy", "cx", "cy"))]
    if not all(map(math.isfinite, rounded)) or min(rounded[:2]) <= 0:
        raise RoboCacheError(
            f"camera: {tuple(camera)} is not fx, fy, cx, cy; give finite numbers, the first two above 0"
        )
    if len(features) > MAX_FEATURES:
        raise RoboCacheError(f"features: got {len(features)}; at most {MAX_FEATURES} are supported")
    known = (*AXES, *RGB) if color else AXES
    unknown = [name for name in features if name not in known]
    if unknown:
        why = "" if color or unknown[0] not in RGB else "; pass the colour image"
        raise RoboCacheError(f"features: {unknown[0]!r} is not one of {', '.join(known)}{why}")
    bytes_of = dict(zip(RGB, COLORS[color.encoding][1], strict=True)) if color else {}
    sources = tuple([AXES.index(name) if name in AXES else 3 + bytes_of[name] for name in features])
    fx, fy, cx, cy = rounded
    return DepthLayout(encoding, width, height, step, depth.big_endian, (fx, fy, cx, cy), color, sources)


def _checked_color(nbytes: int, color: ColorLayout, width: int, height: int) -> ColorLayout:
    check_choice("color_encoding", color.encoding, COLORS)
    pixel = COLORS[color.encoding][0]
    step = _checked_step("color", nbytes - color.at, width, height, color.step or width * pixel, pixel)
    return ColorLayout(color.encoding, step, color.at)


def _checked_step(name: str, nbytes: int, width: int, height: int, step: int, pixel: int) -> int:
    """The step, or the row's bytes for a single row; raises RoboCacheError if a pixel is outside the bytes."""
    if width < 1 or height < 1 or step < width * pixel:
        raise RoboCacheError(
            f"{name}: {height} rows of {width} pixels of {pixel} bytes do not fit a step of {step}; correct it"
        )
    needed = (height - 1) * step + width * pixel
    if needed > nbytes:
        raise RoboCacheError(
            f"{name}: {nbytes} bytes, but {height} rows of {width} pixels need {needed}; the image is truncated"
        )
    if nbytes > MAX_BYTES:
        raise RoboCacheError(f"{name}: {nbytes} bytes; at most {MAX_BYTES} are supported")
    return step if height > 1 else width * pixel
