"""Messages of every kind a decoder takes, built alike as rosbags and as rclpy objects, with the values they hold."""

from __future__ import annotations

import io
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import numpy as np
import pytest
from rosbags.typesys import Stores, get_typestore

from robocache_ros.decode import CloudPayload, Decoder, ImagePayload, PointField, Sample, make_decoder
from robocache_ros.spec import StreamSpec

STORE = get_typestore(Stores.ROS2_KILTED)
STAMP = {"sec": 1_760_000_000, "nanosec": 123_456_789}
STAMP_NS = 1_760_000_000_123_456_789
HEADER = {"stamp": STAMP, "frame_id": "base"}  # 5 bytes with its NUL: what follows needs padding
GRID = {"origin_m": (0.0, 0.0, 0.0), "size_m": (0.1, 0.1, 0.1), "shape": (8, 8, 8)}


@dataclass(frozen=True)
class Case:
    """A message (its values by field, the rest default), the stream that takes it and what it decodes to."""

    name: str
    type: str
    values: dict[str, Any]
    expected: Any
    keys: dict[str, Any] = field(default_factory=dict)
    unmatched: tuple[str, ...] = ()

    @property
    def stream(self) -> StreamSpec:
        return make_stream(self.type, **self.keys)

    @property
    def decoder(self) -> Decoder:
        return make_decoder(self.stream)

    @property
    def stamp_ns(self) -> int | None:
        return STAMP_NS if "header" in self.values else None

    def rosbags(self) -> Any:
        return build_rosbags(self.type, self.values)

    def ros(self) -> Any:
        return build_ros(self.type, self.values)

    def cdr(self, little_endian: bool = True) -> bytes:
        return serialize(self.type, self.values, little_endian)


def make_stream(type_: str, **keys: Any) -> StreamSpec:
    from robocache_ros.spec import load_spec

    if type_.endswith("PointCloud2"):
        keys.setdefault("voxels", GRID)
    return load_spec({"robocache": 1, "streams": {"s": {"topic": "/t", "type": type_, **keys}}}).stream("s")


def build_rosbags(type_: str, values: dict[str, Any]) -> Any:
    fields = {name: _rosbags_value(node, values.get(name)) for name, node in STORE.fielddefs[type_][1]}
    assert set(values) <= set(fields), f"{type_} has no {set(values) - set(fields)}"
    return STORE.types[type_](**fields)


def _rosbags_value(node: Any, value: Any) -> Any:
    kind, detail = node[0].name, node[1]
    if kind == "NAME":
        return build_rosbags(detail, value or {})
    if kind == "BASE":
        return value if value is not None else "" if detail[0] == "string" else False if detail[0] == "bool" else 0
    (inner_kind, inner), length = (detail[0][0].name, detail[0][1]), detail[1]
    if inner_kind == "NAME":
        return [build_rosbags(inner, item) for item in value or []]
    if inner[0] == "string":
        return list(value or [])
    dtype = {"octet": "uint8", "byte": "uint8", "char": "uint8"}.get(inner[0], inner[0])
    if isinstance(value, bytes):
        return np.frombuffer(value, np.uint8)
    return np.array(value if value is not None else [0] * (length if kind == "ARRAY" else 0), dtype)


def build_ros(type_: str, values: dict[str, Any]) -> Any:
    package, _, name = type_.split("/")
    return _fill(getattr(import_module(f"{package}.msg"), name)(), values)


def _fill(message: Any, values: dict[str, Any]) -> Any:
    for name, value in values.items():
        if isinstance(value, dict):
            _fill(getattr(message, name), value)
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            package, inner = message.get_fields_and_field_types()[name][len("sequence<") : -1].split("/")
            setattr(message, name, [_fill(getattr(import_module(f"{package}.msg"), inner)(), item) for item in value])
        else:
            setattr(message, name, value)
    return message


def serialize(type_: str, values: dict[str, Any], little_endian: bool = True) -> bytes:
    return bytes(STORE.serialize_cdr(build_rosbags(type_, values), type_, little_endian=little_endian))


def assert_same(one: Sample, other: Sample) -> None:
    """Every field of two samples is equal, NaN to NaN and bit to bit."""
    assert one.stamp_ns == other.stamp_ns
    assert one.unmatched == other.unmatched
    a, b = one.value, other.value
    assert type(a) is type(b)
    if isinstance(a, np.ndarray):
        assert isinstance(b, np.ndarray)
        assert a.dtype == b.dtype == np.float32
        np.testing.assert_array_equal(a, b)
        return
    slots = a.__slots__
    assert [getattr(a, s) for s in slots if s != "data"] == [getattr(b, s) for s in slots if s != "data"]
    assert a.data.dtype == np.uint8
    assert a.data.tobytes() == b.data.tobytes()


def floats(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def _cases() -> list[Case]:
    quaternion = dict(zip("xyzw", (0.1, -0.2, 0.3, 0.927), strict=True))
    xyz = dict(zip("xyz", (1.5, -2.25, 0.1), strict=True))
    other = dict(zip("xyz", (7.0, 8.0, 9.0), strict=True))
    q, v = floats(0.1, -0.2, 0.3, 0.927), floats(1.5, -2.25, 0.1)
    joints = {"header": HEADER, "name": ["c", "a", "extra", "b"], "position": [3.0, 1.0, 9.0, 2.0]}
    abc = {"names": ["a", "b", "c"]}
    points = np.arange(3 * 2 * 20, dtype=np.uint8)
    layout = [("x", 0, 7, 1), ("y", 4, 7, 1), ("z", 8, 7, 1), ("rgb", 16, 6, 1)]
    fields = [dict(zip(("name", "offset", "datatype", "count"), one, strict=True)) for one in layout]
    cloud = {"header": HEADER, "height": 2, "width": 2, "fields": fields, "is_bigendian": False, "is_dense": True}
    cloud |= {"point_step": 20, "row_step": 60, "data": points.tobytes()}
    image = {"header": HEADER, "height": 2, "width": 3, "encoding": "bgr8", "step": 10, "data": bytes(range(20))}
    jpeg, png = b"\xff\xd8\xff\xe0 and so on \xff\xd9", b"\x89PNG\r\n\x1a\n and so on"
    depth = b"\0\0\0\0" + np.array([10.0, 0.5], "<f4").tobytes() + png
    pose = {"position": xyz, "orientation": quaternion}
    point = {"positions": [1.0, 2.0], "velocities": [3.0, 4.0], "time_from_start": {"sec": 1, "nanosec": 5}}
    geometry, sensor = "geometry_msgs/msg/", "sensor_msgs/msg/"
    arrays = [
        Case(
            f"{kind}MultiArray",
            f"std_msgs/msg/{kind}MultiArray",
            {"layout": {"dim": [{"label": "joint", "size": 3, "stride": 3}], "data_offset": 0}, "data": [1, 0, 7]},
            floats(1, 0, 7),
            {"dim": 3},
        )
        for kind in ("Float32", "Float64", *(f"{u}Int{bits}" for u in ("", "U") for bits in (8, 16, 32, 64)))
    ]
    return [
        Case("JointState.position", f"{sensor}JointState", joints, floats(1, 2, 3), abc, ("extra",)),
        Case(
            "JointState.effort",
            f"{sensor}JointState",
            {"header": HEADER, "name": ["a", "b"], "effort": [0.5, 0.25]},
            floats(0.25, 0.5),
            {"names": ["b", "a"], "field": "effort"},
        ),
        *arrays,
        Case("Float64", "std_msgs/msg/Float64", {"data": 0.1}, floats(0.1)),
        Case("Bool", "std_msgs/msg/Bool", {"data": True}, floats(1)),
        Case(
            "PoseStamped.orientation",
            f"{geometry}PoseStamped",
            {"header": HEADER, "pose": pose},
            q,
            {"field": "pose.orientation", "align": "slerp"},
        ),
        Case(
            "PoseStamped.pose",
            f"{geometry}PoseStamped",
            {"header": HEADER, "pose": pose},
            np.concatenate([v, q]),
            {"field": "pose", "dim": 7},
        ),
        Case(
            "PoseStamped.y",
            f"{geometry}PoseStamped",
            {"header": HEADER, "pose": pose},
            floats(-2.25),
            {"field": "pose.position.y"},
        ),
        Case(
            "TransformStamped",
            f"{geometry}TransformStamped",
            {"header": HEADER, "child_frame_id": "tool0", "transform": {"translation": other, "rotation": quaternion}},
            q,
            {"field": "transform.rotation"},
        ),
        Case(
            "TwistStamped",
            f"{geometry}TwistStamped",
            {"header": HEADER, "twist": {"linear": xyz, "angular": other}},
            np.concatenate([v, floats(7, 8, 9)]),
            {"field": "twist", "dim": 6},
        ),
        Case(
            "WrenchStamped",
            f"{geometry}WrenchStamped",
            {"header": HEADER, "wrench": {"force": other, "torque": xyz}},
            v,
            {"field": "wrench.torque"},
        ),
        Case(
            "Imu",
            f"{sensor}Imu",
            {"header": HEADER, "orientation": quaternion, "angular_velocity": other, "linear_acceleration": xyz},
            v,
            {"field": "linear_acceleration"},
        ),
        Case(
            "Imu.covariance",
            f"{sensor}Imu",
            {"header": HEADER, "orientation_covariance": [float(i) for i in range(9)]},
            floats(*range(9)),
            {"field": "orientation_covariance", "dim": 9},
        ),
        Case(
            "Odometry.twist",
            "nav_msgs/msg/Odometry",
            {"header": HEADER, "child_frame_id": "base_link", "twist": {"twist": {"linear": xyz}}},
            v,
            {"field": "twist.twist.linear"},
        ),
        Case(
            "Odometry.pose",
            "nav_msgs/msg/Odometry",
            {"header": HEADER, "child_frame_id": "b", "pose": {"pose": pose, "covariance": [2.0] * 36}},
            np.concatenate([v, q, np.full(36, 2, np.float32)]),
            {"field": "pose", "dim": 43},
        ),
        Case(
            "JointTrajectoryPoint",
            "trajectory_msgs/msg/JointTrajectoryPoint",
            point,
            floats(3, 4),
            {"field": "velocities", "dim": 2, "stamp": "receive"},
        ),
        Case(
            "JointTrajectory",
            "trajectory_msgs/msg/JointTrajectory",
            {"header": HEADER, "joint_names": ["a", "b"], "points": [{"positions": [9.0]}, point]},
            floats(1, 2),
            {"field": "points[1].positions", "dim": 2},
        ),
        Case(
            "PolygonStamped",
            f"{geometry}PolygonStamped",
            {"header": HEADER, "polygon": {"points": [xyz, other]}},
            np.concatenate([v, floats(7, 8, 9)]),
            {"field": "polygon.points", "dim": 6},
        ),
        Case(
            "CameraInfo.roi",
            f"{sensor}CameraInfo",
            {"header": HEADER, "distortion_model": "plumb_bob", "roi": {"x_offset": 4, "width": 6, "do_rectify": True}},
            floats(4, 0, 0, 6, 1),
            {"field": "roi", "dim": 5},
        ),
        Case(
            "Image",
            f"{sensor}Image",
            image,
            ImagePayload(np.arange(20, dtype=np.uint8), "bgr8", 3, 2, 10, False),
        ),
        Case(
            "CompressedImage.jpeg",
            f"{sensor}CompressedImage",
            {"header": HEADER, "format": "rgb8; jpeg compressed bgr8", "data": jpeg},
            ImagePayload(np.frombuffer(jpeg, np.uint8), "jpeg", source="rgb8"),
        ),
        Case(
            "CompressedImage.png",
            f"{sensor}CompressedImage",
            {"header": HEADER, "format": "png", "data": png},
            ImagePayload(np.frombuffer(png, np.uint8), "png"),
        ),
        Case(
            "CompressedImage.depth",
            f"{sensor}CompressedImage",
            {"header": HEADER, "format": "32FC1; compressedDepth png", "data": depth},
            ImagePayload(np.frombuffer(depth, np.uint8), "compressedDepth", source="32FC1"),
        ),
        Case(
            "PointCloud2",
            f"{sensor}PointCloud2",
            cloud,
            CloudPayload(points[:100], 2, 2, 20, 60, tuple(PointField(*one) for one in layout)),
        ),
    ]


CASES = {case.name: case for case in _cases()}


@pytest.fixture(scope="session", params=CASES.values(), ids=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    """Each kind of message in turn."""
    one = request.param
    assert isinstance(one, Case)
    return one


@pytest.fixture(scope="session")
def cases() -> dict[str, Case]:
    """Every kind of message by name."""
    return CASES


@pytest.fixture(scope="session")
def stream_of() -> Callable[..., StreamSpec]:
    """Make a stream of a message type."""
    return make_stream


@pytest.fixture(scope="session")
def cdr() -> Callable[..., bytes]:
    """Serialize a message from its type and values."""
    return serialize


@pytest.fixture(scope="session")
def same() -> Callable[[Sample, Sample], None]:
    """Assert that two samples are equal in every field."""
    return assert_same


def _file(pixels: np.ndarray, kind: str, **options: Any) -> bytes:
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind, **options)
    return file.getvalue()


def _payload(data: bytes, encoding: str, source: str = "") -> ImagePayload:
    return ImagePayload(np.frombuffer(data, np.uint8), encoding, source=source)


@pytest.fixture(scope="session")
def pixels() -> dict[str, np.ndarray]:
    """What the pictures were made of: (16, 24[, 3]) ramps that a jpeg keeps well."""
    y, x = np.mgrid[0:16, 0:24]
    deep = (1000 * y + 7 * x).astype(np.uint16)
    deep[3, 4] = 0
    grey = (10 * x + y).astype(np.uint8)
    return {"grey": grey, "rgb": np.stack([grey, grey[::-1], grey[:, ::-1]], -1), "deep": deep}


@pytest.fixture(scope="session")
def pictures(pixels: dict[str, np.ndarray]) -> dict[str, ImagePayload]:
    """The pictures, compressed; metres.depth is quantised inverse depth with a 20 and b 0.5."""
    deep = _file(pixels["deep"], "png")
    return {
        "rgb.jpeg": _payload(_file(pixels["rgb"], "jpeg", quality=95, subsampling=0), "jpeg"),
        "grey.jpeg": _payload(_file(pixels["grey"], "jpeg", quality=95), "jpeg"),
        "grey.png": _payload(_file(pixels["grey"], "png"), "png"),
        "rgb.png": _payload(_file(pixels["rgb"], "png"), "png"),
        "deep.png": _payload(deep, "png"),
        "metres.depth": _payload(struct.pack("<iff", 0, 20.0, 0.5) + deep, "compressedDepth", "32FC1"),
        "millimetres.depth": _payload(struct.pack("<iff", 0, 0.0, 0.0) + deep, "compressedDepth", "16UC1"),
    }
