"""Decodes sensor_msgs PointCloud2 to a payload that points into the message, and LaserScan to points."""

from __future__ import annotations

from typing import Any

import numpy as np

from robocache_ros.decode.cdr import numbers, octets, read_count, read_text, remembered, scalar, truncated
from robocache_ros.decode.decoder import Decoder
from robocache_ros.decode.definitions import Struct
from robocache_ros.decode.payloads import MAX_POINTS, Buffer, CloudPayload, DecodeError, Sample
from robocache_ros.errors import printable
from robocache_ros.ops.voxel.layouts import PointField
from robocache_ros.spec import StreamSpec
from robocache_ros.spec.stream import POINT_DATATYPES

_FLOAT32 = POINT_DATATYPES.index("f4") + 1
# Size of a value in bytes by PointField.datatype, which starts at 1.
_DATATYPE_BYTES = {number: int(name[1]) for number, name in enumerate(POINT_DATATYPES, 1)}


def _read_field(data: Buffer, pos: int, end: int, order: str) -> tuple[PointField, int]:
    name, pos = read_text(data, pos, end, order)
    offset, pos = read_count(data, pos, end, order)
    if pos >= end:
        raise truncated(pos + 1, end)
    datatype = data[pos]
    count, pos = read_count(data, pos + 1, end, order)
    return PointField(name, offset, datatype, count), pos


class CloudDecoder(Decoder):
    """A sensor_msgs/msg/PointCloud2 of any layout as CloudPayload; it needs x, y and z, and every offset is checked."""

    def __init__(self, stream: StreamSpec, message: Struct) -> None:
        scalars = [((name,), scalar) for name in ("height", "width", "is_bigendian", "point_step", "row_step")]
        fields = (("fields",), remembered(_read_field))
        super().__init__(stream, message, [*scalars, fields, (("data",), octets)])
        self._checked: tuple[tuple[PointField, ...], int] = ((), 0)

    def _sample(self, stamp_ns: int | None, /, *values: Any) -> Sample:
        height, width, big_endian, point_step, row_step, fields, data = values
        if self._checked != (fields, point_step):
            _check_fields(fields, point_step)
            self._checked = (fields, point_step)
        row = width * point_step
        if height > 1 and row_step < row:  # drivers set any row_step for unorganised clouds, which have one row
            raise DecodeError("cloud_size", f"row_step: {row_step} for {width} points of {point_step} bytes")
        if width * height > MAX_POINTS:
            raise DecodeError("cloud_size", f"width, height: {width}x{height} points; {MAX_POINTS} are allowed")
        needed = (height - 1) * row_step + row if height else 0
        if needed > len(data):
            raise DecodeError("cloud_size", f"data: {len(data)} bytes for {height}x{width} points, which need {needed}")
        cloud = CloudPayload(data[:needed], width, height, point_step, row_step, fields, bool(big_endian))
        return Sample(stamp_ns, cloud)


class ScanDecoder(Decoder):
    """A sensor_msgs/msg/LaserScan as CloudPayload: x, y, z = 0 in the scanner's frame, and intensity if it has any.

    A range outside [range_min, range_max] is not a measurement: its point is NaN. The points are computed in float64
    and rounded once, so that all backends use the same points.
    """

    def __init__(self, stream: StreamSpec, message: Struct) -> None:
        scalars = [((name,), scalar) for name in ("angle_min", "angle_increment", "range_min", "range_max")]
        super().__init__(stream, message, [*scalars, (("ranges",), numbers), (("intensities",), numbers)])
        self._rays: tuple[tuple[float, float, int], Any] = ((0.0, 0.0, 0), np.zeros((0, 2)))

    def _sample(self, stamp_ns: int | None, /, *values: Any) -> Sample:
        start, increment, nearest, farthest, ranges, intensities = values
        count = len(ranges)
        if count > MAX_POINTS:
            raise DecodeError("cloud_size", f"ranges: {count}; {MAX_POINTS} are allowed")
        if not np.isfinite([start, increment]).all():
            raise DecodeError("bad_fields", f"angle_min, angle_increment: {start}, {increment} are not finite")
        key = (start, increment, count)
        if self._rays[0] != key:
            angles = start + increment * np.arange(count, dtype=np.float64)
            self._rays = key, np.stack([np.cos(angles), np.sin(angles)], axis=1)
        measured = ranges.astype(np.float64)
        with np.errstate(invalid="ignore"):
            measured[~((measured >= nearest) & (measured <= farthest))] = np.nan
        names = ("x", "y", "z", "intensity") if count and len(intensities) == count else ("x", "y", "z")
        points = np.zeros((count, len(names)), np.float32)
        points[:, :2] = self._rays[1] * measured[:, None]
        if len(names) > len("xyz"):
            points[:, 3] = intensities
        fields = tuple(PointField(name, 4 * place, _FLOAT32, 1) for place, name in enumerate(names))
        step = 4 * len(names)
        data = points.reshape(-1).view(np.uint8)
        return Sample(stamp_ns, CloudPayload(data, count, 1, step, step * count, fields, not np.little_endian))


def _check_fields(fields: tuple[PointField, ...], point_step: int) -> None:
    names = [field.name for field in fields]
    for axis in ("x", "y", "z"):
        if names.count(axis) != 1:
            problem = "duplicated" if axis in names else "missing"
            listed = printable(", ".join(names), 70) or "none"
            raise DecodeError("bad_fields", f"fields: {axis} is {problem} among {listed}")
    for field in fields:
        name = printable(field.name, 40)
        size = _DATATYPE_BYTES.get(field.datatype)
        if size is None:
            raise DecodeError(
                "bad_fields", f"fields: {name} has datatype {field.datatype}; 1 (INT8) to 8 (FLOAT64) exist"
            )
        if (
            field.offset < 0 or field.offset + size * max(field.count, 1) > point_step
        ):  # some drivers write count 0 for 1
            raise DecodeError("bad_fields", f"fields: {name} at {field.offset} reaches past point_step {point_step}")
