"""Messages from their values: as rosbags objects, as rclpy objects and as CDR."""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import numpy as np
from rosbags.typesys import Stores, get_typestore

from robocache_ros.decode import Decoder, Sample, make_decoder
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
