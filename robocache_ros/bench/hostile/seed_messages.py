"""Valid messages of every supported kind, to be damaged, each with the stream that uses it."""

from __future__ import annotations

import io
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from robocache_ros.decode.cdr.definitions import message_type
from robocache_ros.decode.cdr.types import Array, Primitive, Sequence, Struct, Text, Type
from robocache_ros.extras import need
from robocache_ros.spec import StreamSpec, load_spec

GRID = {"origin_m": [-1, -1, -1], "size_m": 0.5, "shape": [4, 4, 4]}
JOINTS = ("a", "b", "c")


@dataclass(frozen=True)
class Seed:
    """A stream, and a valid message of it in both byte orders."""

    stream: StreamSpec
    messages: tuple[bytes, ...]


def serialize(name: str, values: Mapping[str, Any] | None = None, order: str = "<") -> bytes:
    """CDR bytes of a message; what `values` leaves out is 0, empty or, in sequences, absent."""
    out = bytearray(b"\0\1\0\0" if order == "<" else b"\0\0\0\0")
    _write(message_type(name), values or {}, out, order)
    return bytes(out)


def _write(t: Type, value: Any, out: bytearray, order: str) -> None:
    if isinstance(t, Struct):
        for name, field in t.fields:
            _write(field, value.get(name) if isinstance(value, Mapping) else None, out, order)
    elif isinstance(t, Primitive):
        out += bytes(-(len(out) - 4) % t.size) + struct.pack(order + t.code, value or 0)
    elif isinstance(t, Text):
        raw = (value or "").encode() + b"\0"
        _write_count(len(raw), out, order)
        out += raw
    elif isinstance(t, Array):
        for item in value or [None] * t.length:
            _write(t.element, item, out, order)
    elif isinstance(t, Sequence):
        _write_count(len(value or ()), out, order)
        if isinstance(value, bytes):
            out += value
        else:
            for item in value or ():
                _write(t.element, item, out, order)


def _write_count(count: int, out: bytearray, order: str) -> None:
    out += bytes(-(len(out) - 4) % 4) + struct.pack(f"{order}I", count)


def seeds() -> list[Seed]:
    """Every way in which a message becomes a sample."""
    header = {"stamp": {"sec": 1_760_000_000, "nanosec": 5}, "frame_id": "base"}
    joints = {"header": header, "name": [*JOINTS, "d"], "position": [0.1, 0.2, 0.3, 0.4]}
    point = {"positions": [1.0, 2.0], "velocities": [3.0, 4.0]}
    camera = {"header": header, "height": 8, "width": 12, "k": [9.0, 0, 6, 0, 9, 4, 0, 0, 1]}
    turned = {"header": header, "pose": {"orientation": {"w": 1.0}}}
    every = [
        _seed("sensor_msgs/msg/JointState", joints, names=JOINTS),
        _seed("std_msgs/msg/Float64MultiArray", {"data": [1.0, 2.0, 3.0]}, dim=3),
        _seed("std_msgs/msg/Bool", {"data": 1}),
        _seed("geometry_msgs/msg/PoseStamped", turned, field="pose.orientation", align="slerp"),
        _seed("sensor_msgs/msg/Imu", {"header": header}, field="angular_velocity"),
        _seed("nav_msgs/msg/Odometry", {"header": header}, field="pose", dim=43),
        _seed("sensor_msgs/msg/CameraInfo", camera, field="k", dim=9),
        _seed(
            "trajectory_msgs/msg/JointTrajectory",
            {"header": header, "joint_names": JOINTS, "points": [point, point]},
            field="points[1].positions",
            dim=2,
        ),
        _seed(
            "geometry_msgs/msg/PolygonStamped",
            {"header": header, "polygon": {"points": [{}, {}]}},
            field="polygon.points",
            dim=6,
        ),
        *_images(header),
        *_clouds(header),
    ]
    depth = {"topic": "/d", "type": "sensor_msgs/msg/Image", "camera_info": "/i", "voxels": GRID}
    (info,) = load_spec({"robocache": 1, "streams": {"d": depth}}).stream("d").companions
    return [*every, Seed(info, tuple(serialize(info.type, camera, order) for order in "<>"))]


def transforms() -> bytes:
    """A message of /tf_static."""
    one = {"header": {"frame_id": "base"}, "child_frame_id": "sensor", "transform": {"rotation": {"w": 1.0}}}
    return serialize("tf2_msgs/msg/TFMessage", {"transforms": [one, one]})


def _seed(kind: str, values: Mapping[str, Any], **keys: Any) -> Seed:
    if "header" not in values:
        keys["stamp"] = "receive"
    keys = {name: list(value) if isinstance(value, tuple) else value for name, value in keys.items()}
    stream = load_spec({"robocache": 1, "streams": {"s": {"topic": "/t", "type": kind, **keys}}}).stream("s")
    return Seed(stream, tuple(serialize(kind, values, order) for order in "<>"))


def _images(header: Any) -> list[Seed]:
    shape = {"header": header, "height": 8, "width": 12}
    raw = [
        _seed(
            "sensor_msgs/msg/Image",
            {**shape, "encoding": encoding, "step": step, "data": bytes(range(256)) * 3},
            image={"size": [4, 6]},
        )
        for encoding, step in (("rgb8", 36), ("mono16", 24), ("32FC1", 48), ("nv12", 12), ("bayer_rggb8", 12))
    ]
    files = [
        _seed("sensor_msgs/msg/CompressedImage", {"header": header, "format": text, "data": data})
        for text, data in _files()
    ]
    return [*raw, *files]


def _files() -> list[tuple[str, bytes]]:
    pillow = need("PIL.Image", "bags")
    grey = np.arange(96, dtype=np.uint8).reshape(8, 12)

    def file(pixels: Any, kind: str, **options: Any) -> bytes:
        out = io.BytesIO()
        pillow.fromarray(pixels).save(out, kind, **options)
        return out.getvalue()

    deep = file(grey.astype(np.uint16) * 100, "png")
    progressive = file(np.stack([grey] * 3, -1), "jpeg", progressive=True)
    scan = progressive[progressive.rindex(b"\xff\xda") : -2]
    large = file(np.zeros((2000, 3000), np.uint8), "png")
    return [
        ("jpeg", file(np.stack([grey, grey.T.reshape(8, 12), grey], -1), "jpeg")),
        ("rgb8; jpeg compressed bgr8", progressive),
        ("jpeg", progressive[:-2] + scan * 500 + b"\xff\xd9"),
        ("png", file(grey, "png")),
        ("png", large[:16] + struct.pack(">II", 60_000, 60_000) + large[24:]),
        ("16UC1; png compressed", deep),
        ("16UC1; compressedDepth png", bytes(12) + deep),
        ("32FC1; compressedDepth png", struct.pack("<iff", 0, 20.0, 0.5) + deep),
    ]


def _clouds(header: Any) -> list[Seed]:
    fields = [{"name": name, "offset": 4 * i, "datatype": 7, "count": 1} for i, name in enumerate("xyz")]
    data = np.linspace(-1, 1, 40, dtype=np.float32).tobytes()
    cloud = {"header": header, "height": 2, "width": 5, "fields": fields, "point_step": 16, "row_step": 80}
    kind = "sensor_msgs/msg/PointCloud2"
    return [
        _seed(kind, {**cloud, "data": data}, voxels=GRID),
        _seed(kind, {**cloud, "data": data}, voxels={**GRID, "reduce": "mean", "features": ["x"]}),
    ]
