"""Point clouds: sensor_msgs PointCloud2 to a payload that points into the message."""

from __future__ import annotations

from typing import Any

from robocache_ros.decode.cdr import read_count, read_text, truncated
from robocache_ros.decode.decoder import Decoder
from robocache_ros.decode.numeric import OCTETS
from robocache_ros.decode.payloads import Buffer, CloudPayload, DecodeError, PointField, Sample
from robocache_ros.decode.types import Struct
from robocache_ros.decode.values import SCALAR, Items
from robocache_ros.spec import StreamSpec

# Bytes of a value by PointField.datatype: INT8 to FLOAT64.
DATATYPE_BYTES = {1: 1, 2: 1, 3: 2, 4: 2, 5: 4, 6: 4, 7: 4, 8: 8}


def _read_field(data: Buffer, pos: int, end: int, order: str) -> tuple[PointField, int]:
    name, pos = read_text(data, pos, end, order)
    offset, pos = read_count(data, pos, end, order)
    if pos >= end:
        raise truncated(pos + 1, end)
    datatype = data[pos]
    count, pos = read_count(data, pos + 1, end, order)
    return PointField(name, offset, datatype, count), pos


def _pick_field(field: Any) -> PointField:
    return PointField(str(field.name), int(field.offset), int(field.datatype), int(field.count))


class CloudDecoder(Decoder):
    """A sensor_msgs/msg/PointCloud2 of any layout as CloudPayload; it needs x, y and z, and every offset is checked."""

    def __init__(self, stream: StreamSpec, message: Struct) -> None:
        numbers = [((name,), SCALAR) for name in ("height", "width", "is_bigendian", "point_step", "row_step")]
        fields = (("fields",), Items(_read_field, _pick_field))
        super().__init__(stream, message, [*numbers, fields, (("data",), OCTETS)])
        self._checked: tuple[tuple[PointField, ...], int] = ((), 0)

    def _sample(self, stamp_ns: int | None, /, *values: Any) -> Sample:
        height, width, big_endian, point_step, row_step, fields, data = values
        if self._checked != (fields, point_step):
            _check_fields(fields, point_step)
            self._checked = (fields, point_step)
        row = width * point_step
        if height > 1 and row_step < row:  # drivers of unorganised clouds, which have one row, leave it at anything
            raise DecodeError("cloud_size", f"row_step: {row_step} for {width} points of {point_step} bytes")
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
            raise DecodeError("bad_fields", f"fields: {axis} is {problem} among {', '.join(names) or 'none'}")
    for field in fields:
        size = DATATYPE_BYTES.get(field.datatype)
        if size is None:
            raise DecodeError(
                "bad_fields", f"fields: {field.name} has datatype {field.datatype}; 1 (INT8) to 8 (FLOAT64) exist"
            )
        if (
            field.offset < 0 or field.offset + size * max(field.count, 1) > point_step
        ):  # some drivers leave count 0 and mean 1
            raise DecodeError(
                "bad_fields", f"fields: {field.name} at {field.offset} reaches past point_step {point_step}"
            )
