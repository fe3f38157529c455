"""How a PointCloud2 lies in its bytes, and the checks that no read leaves them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robocache_ros.errors import RoboCacheError
from robocache_ros.ops import voxel_cpu
from robocache_ros.ops.checks import checked_list

MAX_FEATURES = 16  # as many as a kernel's parameters have places for
# PointField's datatypes: 1 to 8.
DATATYPES = ("i1", "u1", "i2", "u2", "i4", "u4", "f4", "f8")


@dataclass(frozen=True)
class CloudField:
    """One scalar of a point."""

    offset: int
    datatype: int  # 1..8


@dataclass(frozen=True)
class CloudLayout:
    """A checked layout: every scalar of every point lies inside the bytes."""

    width: int
    height: int
    point_step: int
    row_step: int
    big_endian: bool
    fields: dict[str, CloudField]

    @property
    def points(self) -> int:
        """Number of points."""
        return self.width * self.height


def check_cloud(
    nbytes: int, width: int, height: int, point_step: int, row_step: int, fields: Sequence[Any], big_endian: bool
) -> CloudLayout:
    """The layout of a cloud of `nbytes` bytes; raises RoboCacheError where a point or field would lie outside them."""
    if width < 0 or height < 0 or point_step < 1 or row_step < 0:
        raise RoboCacheError(
            f"cloud: width {width}, height {height}, point_step {point_step}, row_step {row_step}; none can be negative"
        )
    known: dict[str, CloudField] = {}
    for field in fields:
        if not 1 <= field.datatype <= len(DATATYPES) or field.count > 1:
            continue  # not a scalar: an error only for one who asks for it
        size = np.dtype(DATATYPES[field.datatype - 1]).itemsize
        if field.offset < 0 or field.offset + size > point_step:
            raise RoboCacheError(
                f"fields.{field.name}: bytes {field.offset}..{field.offset + size} leave a point of {point_step} bytes"
            )
        known[field.name] = CloudField(field.offset, field.datatype)
    if width and height:
        if height > 1 and row_step < width * point_step:
            raise RoboCacheError(f"row_step: {row_step} bytes is less than a row of {width} points of {point_step}")
        needed = (height - 1) * row_step + width * point_step
        if needed > nbytes:
            raise RoboCacheError(
                f"data: {nbytes} bytes, but {height} rows of {width} points need {needed}; it is cut short"
            )
    return CloudLayout(width, height, point_step, row_step, big_endian, known)


def checked_fields(fields: Any) -> list[Any]:
    """The fields, each of which says what a PointField does."""
    listed = checked_list("fields", fields)
    for field in listed:
        if not all(hasattr(field, name) for name in ("name", "offset", "datatype", "count")):
            raise RoboCacheError(f"fields: {field!r} has no name, offset, datatype and count, as a PointField has")
    return listed


def column_sources(layout: CloudLayout, features: Sequence[str]) -> list[int | CloudField]:
    """Where x, y, z and each feature come from: a field, or 0..2 for a feature that is a transformed coordinate."""
    if len(features) > MAX_FEATURES:
        raise RoboCacheError(f"features: {len(features)} are given; at most {MAX_FEATURES} can be")
    axes = {"x": 0, "y": 1, "z": 2}
    sources: list[int | CloudField] = []
    for number, name in enumerate((*axes, *features)):
        if name not in layout.fields:
            role = "coordinates" if number < 3 else "features"
            raise RoboCacheError(f"{role}: the cloud has no scalar field {name!r}; it has {', '.join(layout.fields)}")
        sources.append(axes[name] if number >= 3 and name in axes else layout.fields[name])
    return sources


def cloud_columns(
    data: NDArray[np.uint8], layout: CloudLayout, sources: Sequence[int | CloudField], matrix: Any
) -> list[NDArray[np.float32]]:
    """x, y, z in the grid's frame and the features, each (N,) float32."""
    columns: list[NDArray[np.float32]] = []
    for number, source in enumerate(sources):
        if isinstance(source, int):
            columns.append(columns[source])
        else:
            columns.append(_column(data, layout, source))
        if number == 2 and matrix is not None:
            columns = voxel_cpu.transform(columns, matrix)
    return columns


def _column(data: NDArray[np.uint8], layout: CloudLayout, field: CloudField) -> NDArray[np.float32]:
    if not layout.points:
        return np.zeros(0, np.float32)
    kind = np.dtype(DATATYPES[field.datatype - 1]).newbyteorder(">" if layout.big_endian else "<")
    shape, strides = (layout.height, layout.width), (layout.row_step, layout.point_step)
    raw: NDArray[Any] = np.ndarray(shape, kind, data, field.offset, strides)
    with np.errstate(over="ignore", invalid="ignore"):
        return raw.astype(np.float32).reshape(-1)
