"""What is declared of one stream: its topic, its stamps and its alignment."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from robocache_ros import declare
from robocache_ros.declare import choice, integer, key, many, nested, number, text
from robocache_ros.errors import RoboCacheError
from robocache_ros.media_spec import ImageSpec, VoxelSpec

NS_PER_MS = 1_000_000

VECTOR_ALIGNMENTS = ("linear", "slerp", "angle", "hold", "nearest")
SAMPLE_ALIGNMENTS = ("hold", "nearest")  # an image or a cloud is taken whole: between two of them lies neither
IMAGE_TYPES = ("sensor_msgs/msg/Image", "sensor_msgs/msg/CompressedImage")
CLOUD_TYPE = "sensor_msgs/msg/PointCloud2"
CAMERA_INFO_TYPE = "sensor_msgs/msg/CameraInfo"
JOINT_TYPE = "sensor_msgs/msg/JointState"
TF_STATIC = "/tf_static"

_XYZ, _XYZW = ("x", "y", "z"), ("x", "y", "z", "w")
# Components of the fields whose width the message type fixes, by the last part of the field's path.
FIELD_COMPONENTS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("orientation", "rotation"), _XYZW),
    **dict.fromkeys(("position", "translation", "linear", "angular", "force", "torque", "vector", "point"), _XYZ),
    **dict.fromkeys(("linear_acceleration", "angular_velocity"), _XYZ),
    **{axis: (axis,) for axis in _XYZW},
}

_TOPIC = r"^/[A-Za-z_][A-Za-z0-9_]*(/[A-Za-z_][A-Za-z0-9_]*)*$"
_TYPE = r"^[a-z][a-z0-9_]*/msg/[A-Z][A-Za-z0-9]*$"
_FIELD = r"^[a-z][a-z0-9_]*(\[\d+\])?(\.[a-z][a-z0-9_]*(\[\d+\])?)*$"


def pattern(wanted: str, expression: str) -> declare.Kind:
    """A string that a regular expression takes; `wanted` says which, in words."""
    return text(wanted, lambda raw: re.match(expression, raw) is not None, expression)


_topic = pattern("an absolute topic name such as /panda/joint_states", _TOPIC)
_type = pattern("a message type such as sensor_msgs/msg/JointState", _TYPE)
_field = pattern("a field's path such as pose.orientation", _FIELD)


@dataclass(frozen=True)
class QosSpec:
    """Quality of service of a subscription; the default is ROS 2's sensor-data profile with room for a burst."""

    reliability: str = key(choice("best_effort", "reliable"), "delivery asked of the publisher", default="best_effort")
    durability: str = key(choice("volatile", "transient_local"), "whether the last sample is kept", default="volatile")
    depth: int = key(integer(1, 10_000), "samples kept in the middleware until they are taken", default=10)


@dataclass(frozen=True)
class StreamSpec:
    """One stream: a field of a topic's messages, how it is stamped and how it is aligned."""

    name: str
    topic: str = key(_topic, "the topic it comes from")
    type: str = key(_type, "the topic's message type")
    field: str = key(_field, "path of the numeric field; known for joint states and arrays", default="")
    names: tuple[str, ...] = key(
        many(text("a joint's name"), unique=True), "joints to take, by name and in this order", default=()
    )
    dim: int = key(integer(1, 65536), "values a sample holds; known for joints, poses and the like", default=0)
    align: str = key(
        choice(*VECTOR_ALIGNMENTS), "how a value at the tick is made; linear for vectors, else hold", default=""
    )
    max_gap_ms: float = key(number(0, 1e7, above=True), "widest gap interpolated over", default=100.0, unit="ms")
    max_age_ms: float = key(number(0, 1e7), "oldest sample still held", default=100.0, unit="ms")
    latency_ms: float = key(
        number(-1e5, 1e5), "sensor latency, as calibrated; taken off every stamp", default=0.0, unit="ms"
    )
    stamp: str = key(choice("header", "receive"), "whose time counts; receive where a type has no header", default="")
    max_skew_ms: float = key(
        number(0, 1e13, above=True), "a stamp further than this from its arrival is refused", default=5000.0, unit="ms"
    )
    rate_hz: float = key(
        number(0, 1e5, above=True), "declared rate; memory is sized by it and the diagnostics hold the topic to it",
        default=0.0, unit="Hz",
    )  # fmt: skip
    role: str = key(choice("observation", "action"), "what it is to a policy", default="observation")
    unit: str = key(text("a unit such as rad"), "unit of the values, carried in the layout", default="")
    qos: QosSpec = key(nested(QosSpec), "quality of service of the subscription", default=QosSpec())
    image: ImageSpec | None = key(nested(ImageSpec), "crop, size and normalisation of an image", default=None)
    voxels: VoxelSpec | None = key(nested(VoxelSpec), "the grid that a cloud is placed in", default=None)
    camera_info: str = key(
        _topic, "the intrinsics of a depth image, which makes it a cloud; the image is rectified", default=""
    )
    color: str = key(_topic, "the image registered to a depth image, of its size", default="")
    pair_ms: float = key(
        number(0, 1e4),
        "a depth image takes the nearest colour image within it",
        default=20.0,
        unit="ms",
    )

    def __post_init__(self) -> None:
        resolve = _Resolver(self)
        for name in ("field", "dim", "align", "stamp", "image"):
            object.__setattr__(self, name, getattr(resolve, name)())
        resolve.check()

    @property
    def kind(self) -> str:
        """`vector`, `image` or `cloud`: what a sample is."""
        if self.type == CLOUD_TYPE or self.camera_info:
            return "cloud"
        return "image" if self.type in IMAGE_TYPES else "vector"

    @cached_property
    def companions(self) -> tuple[StreamSpec, ...]:
        """The topics that complete a depth image, as `<name>/camera_info` and `<name>/color`; of other streams none."""
        if not self.camera_info:
            return ()
        info = StreamSpec(
            f"{self.name}/camera_info", self.camera_info, CAMERA_INFO_TYPE, field="k", dim=9, align="hold", qos=self.qos
        )
        color = StreamSpec(f"{self.name}/color", self.color, IMAGE_TYPES[0], qos=self.qos) if self.color else None
        return (info, color) if color else (info,)

    @property
    def width(self) -> int:
        """Columns in the fused tensor: `dim` of a vector, 0 of an image or a cloud."""
        return self.dim if self.kind == "vector" else 0

    @property
    def components(self) -> tuple[str, ...]:
        """A label for each value: joint names, axes, or the index."""
        known = FIELD_COMPONENTS.get(self.field.rpartition(".")[2], ())
        if self.names:
            return self.names
        return known if len(known) == self.dim else tuple(str(i) for i in range(self.width))

    @property
    def max_gap_ns(self) -> int:
        """`max_gap_ms` in nanoseconds."""
        return round(self.max_gap_ms * NS_PER_MS)

    @property
    def max_age_ns(self) -> int:
        """`max_age_ms` in nanoseconds."""
        return round(self.max_age_ms * NS_PER_MS)

    @property
    def latency_ns(self) -> int:
        """`latency_ms` in nanoseconds."""
        return round(self.latency_ms * NS_PER_MS)

    @property
    def max_skew_ns(self) -> int:
        """`max_skew_ms` in nanoseconds."""
        return round(self.max_skew_ms * NS_PER_MS)

    @property
    def pair_ns(self) -> int:
        """`pair_ms` in nanoseconds."""
        return round(self.pair_ms * NS_PER_MS)


class _Resolver:
    """Fills what a stream's type implies, and checks the keys against each other."""

    def __init__(self, stream: StreamSpec) -> None:
        self.s = stream
        self.is_vector = stream.kind == "vector"
        self.is_array = stream.type.startswith("std_msgs/msg/")

    def field(self) -> str:
        if self.s.field or not self.is_vector:
            return self.s.field
        known = "position" if self.s.type == JOINT_TYPE else "data" if self.is_array else ""
        if not known:
            raise RoboCacheError(f"field: missing; name the numeric field of {self.s.type}, such as pose.orientation")
        return known

    def dim(self) -> int:
        if not self.is_vector:
            return self.s.dim
        scalar = self.is_array and not self.s.type.endswith("MultiArray")
        known = len(self.s.names) or len(FIELD_COMPONENTS.get(self.s.field.rpartition(".")[2], ())) or int(scalar)
        if self.s.type == JOINT_TYPE and not self.s.names:
            raise RoboCacheError("names: missing; joint states are taken by joint name, list the joints in your order")
        if not (self.s.dim or known):
            raise RoboCacheError(f"dim: missing; say how many values {self.s.field} of {self.s.type} holds")
        if self.s.names and self.s.dim not in (0, known):
            raise RoboCacheError(f"dim: {self.s.dim} where names lists {known}; leave dim out")
        return self.s.dim or known

    def align(self) -> str:
        return self.s.align or ("linear" if self.is_vector else "hold")

    def stamp(self) -> str:
        return self.s.stamp or ("receive" if self.is_array else "header")

    def image(self) -> ImageSpec | None:
        return self.s.image or (ImageSpec() if self.s.kind == "image" else None)

    def check(self) -> None:
        s = self.s
        allowed = VECTOR_ALIGNMENTS if self.is_vector else SAMPLE_ALIGNMENTS
        if s.align not in allowed:
            raise RoboCacheError(f"align: {s.align!r} is for vectors; {s.type} takes {' or '.join(allowed)}")
        if s.align == "slerp" and s.dim != 4:
            raise RoboCacheError(f"align: 'slerp' is for quaternions (4 values), {s.field} has {s.dim}; use linear")
        if s.names and s.type != JOINT_TYPE:
            raise RoboCacheError(f"names: only {JOINT_TYPE} has joint names, not {s.type}; use field and dim")
        if self.is_array and s.stamp == "header":
            raise RoboCacheError(f"stamp: 'header', but {s.type} has no header; use receive")
        if s.image and s.kind != "image":
            raise RoboCacheError(f"image: {s.type} is no image; leave it out")
        if s.kind == "cloud" and s.voxels is None:
            raise RoboCacheError("voxels: missing; a cloud needs a grid (origin_m, size_m, shape)")
        if s.voxels and s.kind != "cloud":
            wanted = "a depth image needs camera_info" if s.kind == "image" else "leave it out"
            raise RoboCacheError(f"voxels: {s.type} is no cloud; {wanted}")
        if s.camera_info:
            self.check_depth()
        elif s.color:
            raise RoboCacheError("color: goes with a depth image; give its camera_info, or leave it out")
        if not self.is_vector and (s.field or s.dim):
            raise RoboCacheError(f"{'field' if s.field else 'dim'}: {s.type} is taken whole; leave it out")

    def check_depth(self) -> None:
        s = self.s
        if s.type not in IMAGE_TYPES:
            allowed = " or ".join(IMAGE_TYPES)
            raise RoboCacheError(f"camera_info: goes with depth images ({allowed}), not {s.type}; leave it out")
        known = ("x", "y", "z", *(("r", "g", "b") if s.color else ()))
        unknown = [name for name in (s.voxels.features if s.voxels else ()) if name not in known]
        if unknown:
            raise RoboCacheError(f"voxels.features: {unknown[0]!r} is not one of {', '.join(known)}")
