"""Messages of every kind a decoder reads, with the values they hold."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any

import numpy as np
import pytest

from robocache_ros.decode import CloudPayload, ImagePayload, PointField, make_decoder
from robocache_ros.spec import load_spec
from test.fuzz.messages import serialize

STAMP = {"sec": 1_760_000_000, "nanosec": 123_456_789}
STAMP_NS = 1_760_000_000_123_456_789
HEADER = {"stamp": STAMP, "frame_id": "base"}  # 5 bytes with its NUL: what follows needs padding
GRID = {"origin_m": (0.0, 0.0, 0.0), "size_m": (0.1, 0.1, 0.1), "shape": (8, 8, 8)}


@dataclass(frozen=True)
class Case:
    """A message (its values by field, the rest default), the stream that takes it and what it decodes to."""

    type: str
    values: dict[str, Any]
    expected: Any
    keys: dict[str, Any] = field(default_factory=dict)
    unmatched: tuple[str, ...] = ()

    @property
    def decoder(self):
        return make_decoder(make_stream(self.type, **self.keys))

    @property
    def stamp_ns(self):
        return STAMP_NS if "header" in self.values else None

    def cdr(self, order="<"):
        return serialize(self.type, self.values, order)


def make_stream(type_, **keys):
    if type_.endswith("PointCloud2"):
        keys.setdefault("voxels", GRID)
    return load_spec({"robocache": 1, "streams": {"s": {"topic": "/t", "type": type_, **keys}}}).stream("s")


def build_ros(type_, values):
    package, _, name = type_.split("/")
    return _fill(getattr(import_module(f"{package}.msg"), name)(), values)


def _fill(message, values):
    for name, value in values.items():
        if isinstance(value, dict):
            _fill(getattr(message, name), value)
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            package, inner = message.get_fields_and_field_types()[name][len("sequence<") : -1].split("/")
            setattr(message, name, [_fill(getattr(import_module(f"{package}.msg"), inner)(), item) for item in value])
        else:
            setattr(message, name, value)
    return message


def decoded(type_, values, **keys):
    """The sample that a stream makes of a message."""
    return make_decoder(make_stream(type_, **keys)).decode_cdr(serialize(type_, values))


def assert_same(one, other):
    """Every field of two samples is equal, NaN to NaN and bit to bit."""
    assert one.stamp_ns == other.stamp_ns
    assert one.unmatched == other.unmatched
    a, b = one.value, other.value
    if isinstance(b, np.ndarray):
        assert a.dtype == b.dtype == np.float32
        np.testing.assert_array_equal(a, b)
    else:
        assert replace(a, data=None) == replace(b, data=None)
        assert a.data.dtype == np.uint8
        assert a.data.tobytes() == b.data.tobytes()


def floats(*values):
    return np.array(values, np.float32)


def compressed(data, encoding, source=""):
    return ImagePayload(np.frombuffer(data, np.uint8), encoding, source=source)


def _cases():
    """(type, values, what they decode to, keys of the stream[, joints not named]); all but some have a header."""
    quaternion = dict(zip("xyzw", (0.1, -0.2, 0.3, 0.9273618495495703), strict=True))
    xyz = dict(zip("xyz", (1.5, -2.25, 0.1), strict=True))
    other = dict(zip("xyz", (7.0, 8.0, 9.0), strict=True))
    q, v = floats(0.1, -0.2, 0.3, 0.9273618495495703), floats(1.5, -2.25, 0.1)
    joints = {"name": ["c", "a", "extra", "b"], "position": [3.0, 1.0, 9.0, 2.0]}
    points = np.arange(3 * 2 * 20, dtype=np.uint8)
    layout = [("x", 0, 7, 1), ("y", 4, 7, 1), ("z", 8, 7, 1), ("rgb", 16, 6, 1)]
    fields = [dict(zip(("name", "offset", "datatype", "count"), one, strict=True)) for one in layout]
    cloud = {"height": 2, "width": 2, "fields": fields, "is_bigendian": False, "is_dense": True}
    cloud |= {"point_step": 20, "row_step": 60, "data": points.tobytes()}
    image = {"height": 2, "width": 3, "encoding": "bgr8", "step": 10, "data": bytes(range(20))}
    jpeg, png = b"\xff\xd8\xff\xe0 and so on \xff\xd9", b"\x89PNG\r\n\x1a\n and so on"
    depth = b"\0\0\0\0" + np.array([10.0, 0.5], "<f4").tobytes() + png
    pose = {"position": xyz, "orientation": quaternion}
    transform = {"translation": other, "rotation": quaternion}
    imu = {"orientation": quaternion, "angular_velocity": other, "linear_acceleration": xyz}
    point = {"positions": [1.0, 2.0], "velocities": [3.0, 4.0], "time_from_start": {"sec": 1, "nanosec": 5}}
    roi = {"x_offset": 4, "width": 6, "do_rectify": True}
    covered = {"pose": pose, "covariance": [2.0] * 36}
    array = {"layout": {"dim": [{"label": "joint", "size": 3, "stride": 3}], "data_offset": 0}, "data": [1, 0, 7]}
    kinds = ("Float32", "Float64", *(f"{u}Int{bits}" for u in ("", "U") for bits in (8, 16, 32, 64)))
    without_header = [
        *((f"std_msgs/msg/{kind}MultiArray", array, floats(1, 0, 7), {"dim": 3}) for kind in kinds),
        ("std_msgs/msg/Float64", {"data": 0.1}, floats(0.1)),
        ("std_msgs/msg/Bool", {"data": True}, floats(1)),
        ("trajectory_msgs/msg/JointTrajectoryPoint", point, floats(3, 4),
         {"field": "velocities", "dim": 2, "stamp": "receive"}),
    ]  # fmt: skip
    geometry, sensor, v_other = "geometry_msgs/msg/", "sensor_msgs/msg/", np.concatenate([v, floats(7, 8, 9)])
    kind = f"{sensor}CompressedImage"
    stamped = [
        (f"{sensor}JointState", joints, floats(1, 2, 3), {"names": ["a", "b", "c"]}, ("extra",)),
        (f"{sensor}JointState", {"name": ["a", "b"], "effort": [0.5, 0.25]}, floats(0.25, 0.5),
         {"names": ["b", "a"], "field": "effort"}),
        (f"{geometry}PoseStamped", {"pose": pose}, q, {"field": "pose.orientation", "align": "slerp"}),
        (f"{geometry}PoseStamped", {"pose": pose}, np.concatenate([v, q]), {"field": "pose", "dim": 7}),
        (f"{geometry}PoseStamped", {"pose": pose}, floats(-2.25), {"field": "pose.position.y"}),
        (f"{geometry}TransformStamped", {"child_frame_id": "tool0", "transform": transform}, q,
         {"field": "transform.rotation"}),
        (f"{geometry}TwistStamped", {"twist": {"linear": xyz, "angular": other}}, v_other,
         {"field": "twist", "dim": 6}),
        (f"{geometry}WrenchStamped", {"wrench": {"force": other, "torque": xyz}}, v, {"field": "wrench.torque"}),
        (f"{sensor}Imu", imu, v, {"field": "linear_acceleration"}),
        (f"{sensor}Imu", {"orientation_covariance": [float(i) for i in range(9)]}, floats(*range(9)),
         {"field": "orientation_covariance", "dim": 9}),
        ("nav_msgs/msg/Odometry", {"child_frame_id": "base_link", "twist": {"twist": {"linear": xyz}}}, v,
         {"field": "twist.twist.linear"}),
        ("nav_msgs/msg/Odometry", {"child_frame_id": "b", "pose": covered},
         np.concatenate([v, q, np.full(36, 2, np.float32)]), {"field": "pose", "dim": 43}),
        ("trajectory_msgs/msg/JointTrajectory", {"joint_names": ["a", "b"], "points": [{"positions": [9.0]}, point]},
         floats(1, 2), {"field": "points[1].positions", "dim": 2}),
        (f"{geometry}PolygonStamped", {"polygon": {"points": [xyz, other]}}, v_other,
         {"field": "polygon.points", "dim": 6}),
        (f"{sensor}CameraInfo", {"distortion_model": "plumb_bob", "roi": roi}, floats(4, 0, 0, 6, 1),
         {"field": "roi", "dim": 5}),
        (f"{sensor}Image", image, ImagePayload(np.arange(20, dtype=np.uint8), "bgr8", 3, 2, 10, False)),
        (kind, {"format": "rgb8; jpeg compressed bgr8", "data": jpeg}, compressed(jpeg, "jpeg", "rgb8")),
        (kind, {"format": "png", "data": png}, compressed(png, "png")),
        (kind, {"format": "32FC1; compressedDepth png", "data": depth},
         compressed(depth, "compressedDepth", "32FC1")),
        (f"{sensor}PointCloud2", cloud,
         CloudPayload(points[:100], 2, 2, 20, 60, tuple(PointField(*one) for one in layout))),
    ]  # fmt: skip
    return [Case(*row) for row in without_header] + [
        Case(kind, {"header": HEADER, **values}, *rest) for kind, values, *rest in stamped
    ]


CASES = _cases()


@pytest.fixture(
    scope="session", params=CASES, ids=lambda case: f"{case.type.rpartition('/')[2]}{case.keys.get('field', '')}"
)
def case(request):
    """Each kind of message in turn."""
    return request.param
