"""Point clouds: sensor_msgs PointCloud2 to a payload that points into the message."""

from __future__ import annotations

from typing import Any

from robocache_ros.decode.cdr.numbers import octets
from robocache_ros.decode.cdr.types import Struct
from robocache_ros.decode.cdr.values import remembered, scalar
from robocache_ros.decode.cdr.wire import read_count, read_text, truncated
from robocache_ros.decode.decoder import Decoder
from robocache_ros.decode.limits import MAX_POINTS
from robocache_ros.decode.payloads import Buffer, CloudPayload, DecodeError, Sample
from robocache_ros.errors import printable
from robocache_ros.ops.voxel.cloud_layout import PointField
from robocache_ros.spec import StreamSpec
from robocache_ros.spec.message_types import POINT_DATATYPES

# Bytes of a value by PointField.datatype, which counts from 1.
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
        numbers = [((name,), scalar) for name in ("height", "width", "is_bigendian", "point_step", "row_step")]
        fields = (("fields",), remembered(_read_field))
        super().__init__(stream, message, [*numbers, fields, (("data",), octets)])
        self._checked: tuple[tuple[PointField, ...], int] = ((), 0)

    def _sample(self, stamp_ns: int | None, /, *values: Any) -> Sample:
        height, width, big_endian, point_step, row_step, fields, data = values
        if self._checked != (fields, point_step):
            _check_fields(fields, point_step)
            self._checked = (fields, point_step)
        row = width * point_step
        if height > 1 and row_step < row:  # drivers of unorganised clouds, which have one row, leave it at anything
            raise DecodeError("cloud_size", f"row_step: {row_step} for {width} points of {point_step} bytes")
        if width * height > MAX_POINTS:
            raise DecodeError("cloud_size", f"width, height: {width}x{height} points; {MAX_POINTS} are allowed")
        needed = (height - 1) * row_step + row if height else 0
        if needed > len(data):
            raise DecodeError("cloud_size", f"data: {len(data)} bytes for {height}x{width} points, which need {needed}")
        cloud = CloudPayload(data[:needed], width, height, point_step, row_step, fields, bool(big_endian))
        return Sample(stamp_ns, cloud)


def _check_fields(fields: tuple[PointField, ...], point_step: int) -> None:
    names = [field.name for field in fields]
    for axis in ("x", "y", "z"):
        if names.count(axis) != 1:
            problem = "twice or more" if axis in names else "not there"
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
        ):  # some drivers leave count 0 and mean 1
            raise DecodeError("bad_fields", f"fields: {name} at {field.offset} reaches past point_step {point_step}")
