"""Transforms: tf2_msgs TFMessage to frames and poses."""

from __future__ import annotations

import struct
from typing import NamedTuple

from robocache_ros.decode.cdr import PADDING, START, byte_order, read_count, read_text, truncated
from robocache_ros.decode.payloads import MAX_TRANSFORMS, Buffer, DecodeError
from robocache_ros.units import NS_PER_S

_STAMP = {order: struct.Struct(f"{order}iI") for order in "<>"}
_POSE = {order: struct.Struct(f"{order}7d") for order in "<>"}


class Transform(NamedTuple):
    """One transform, T_parent_child: the pose of the child frame in the parent frame.

    stamp_ns: stamp of its header; 0 if it is not set or not valid.
    """

    parent: str
    child: str
    translation_m: tuple[float, float, float]
    rotation_xyzw: tuple[float, float, float, float]
    stamp_ns: int = 0


def read_transforms(data: Buffer) -> list[Transform]:
    """The transforms of a serialized tf2_msgs/msg/TFMessage; DecodeError if it is truncated or of another type."""
    order, end = byte_order(data), len(data)
    count, pos = read_count(data, START, end, order)
    if count > MAX_TRANSFORMS:
        raise DecodeError("bad_length", f"message: {count} transforms; {MAX_TRANSFORMS} are allowed")
    transforms = []
    for _ in range(count):
        pos += PADDING[4][pos & 7]
        if pos + _STAMP[order].size > end:
            raise truncated(pos + _STAMP[order].size, end)
        seconds, nanoseconds = _STAMP[order].unpack_from(data, pos)
        stamp_ns = seconds * NS_PER_S + nanoseconds if seconds >= 0 and nanoseconds < NS_PER_S else 0
        parent, pos = read_text(data, pos + _STAMP[order].size, end, order)
        child, pos = read_text(data, pos, end, order)
        pos += PADDING[8][pos & 7]
        stop = pos + _POSE[order].size
        if stop > end:
            raise truncated(stop, end)
        x, y, z, qx, qy, qz, qw = _POSE[order].unpack_from(data, pos)
        pos = stop
        # tf2 removes a leading slash, which ROS 1 wrote, from a frame's name.
        transforms.append(Transform(parent.lstrip("/"), child.lstrip("/"), (x, y, z), (qx, qy, qz, qw), stamp_ns))
    return transforms
