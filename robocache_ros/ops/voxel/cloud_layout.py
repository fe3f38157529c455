"""The layout of a PointCloud2's bytes, and the check that every point is inside them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from robocache_ros.errors import RoboCacheError
from robocache_ros.ops.checks import checked_list
from robocache_ros.spec.message_types import POINT_DATATYPES

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
