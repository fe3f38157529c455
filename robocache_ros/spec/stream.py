"""A stream of the fusion spec: its message types, alignment, quality, image and voxels, and the rules among them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from robocache_ros.alignments import alignment, default_alignment, in_unit, spec_alignments, units_of
from robocache_ros.reductions import SPEC_REDUCTIONS, ReductionKind
from robocache_ros.spec.keys import (
    TOPIC,
    Problem,
    SpecError,
    choice,
    converted,
    either,
    integer,
    key,
    many,
    nested,
    number,
    one_or_many,
    pattern,
    refusal,
    show_value,
    text,
)
from robocache_ros.units import NS_PER_MS

IMAGE_TYPES = ("sensor_msgs/msg/Image", "sensor_msgs/msg/CompressedImage")
# Each message has one picture of a video in H.264 or H.265. Only recordings of them are read.
VIDEO_TYPES = ("foxglove_msgs/msg/CompressedVideo", "ffmpeg_image_transport_msgs/msg/FFMPEGPacket")
PICTURE_TYPES = (*IMAGE_TYPES, *VIDEO_TYPES)
CLOUD_TYPE = "sensor_msgs/msg/PointCloud2"
LASER_TYPE = "sensor_msgs/msg/LaserScan"
CAMERA_INFO_TYPE = "sensor_msgs/msg/CameraInfo"
JOINT_TYPE = "sensor_msgs/msg/JointState"
TF_TYPE = "tf2_msgs/msg/TFMessage"
TF, TF_STATIC = "/tf", "/tf_static"
TRANSFORM_ALIGNMENTS = ("linear", "hold", "nearest")  # linear: linear position, spherical orientation
POSE_COMPONENTS = ("px", "py", "pz", "qx", "qy", "qz", "qw")
WINDOW = "window"  # `align` of a stream whose ticks use all samples since the last tick
REDUCTIONS = ("mean", "rms", "max", "min")  # reductions of a window to one row
MAX_WIDTH = 65536  # maximum number of values of a sample, and of a window
# NumPy types by PointField.datatype, which starts at 1.
POINT_DATATYPES = ("i1", "u1", "i2", "u2", "i4", "u4", "f4", "f8")

_TYPE = r"^[A-Za-z][A-Za-z0-9_]*/msg/[A-Za-z][A-Za-z0-9_]*$"
# ROS 2 fields are always lower case; ROS 1 and IDL fields may not be.
_FIELD = r"^[A-Za-z][A-Za-z0-9_]*(\[[0-9]{1,6}\])?(\.[A-Za-z][A-Za-z0-9_]*(\[[0-9]{1,6}\])?)*$"

_XYZ, _XYZW = ("x", "y", "z"), ("x", "y", "z", "w")
# Components of fields with a width fixed by the message type, by the last part of the field path.
FIELD_COMPONENTS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("orientation", "rotation"), _XYZW),
    **dict.fromkeys(("position", "translation", "linear", "angular", "force", "torque", "vector", "point"), _XYZ),
    **dict.fromkeys(("linear_acceleration", "angular_velocity"), _XYZ),
    **{axis: (axis,) for axis in _XYZW},
}

# Fields that the message of a missing one names, by type.
_EXAMPLES = {
    "geometry_msgs/msg/Pose": "orientation",
    "geometry_msgs/msg/Twist": "[linear, angular]",
    "geometry_msgs/msg/TwistStamped": "[twist.linear, twist.angular]",
    "nav_msgs/msg/Odometry": "pose.pose.position",
    "sensor_msgs/msg/Imu": "angular_velocity",
}

ROUNDED = ("latitude", "longitude")  # float32 has a resolution of about a meter for these; they require an offset


def components_of(paths: Sequence[str]) -> tuple[str, ...] | None:
    """Return labels of the values of fields, by name; one per unknown field. None for a single unknown field."""
    known = [FIELD_COMPONENTS.get(path.rpartition(".")[2], ()) for path in paths]
    if len(paths) == 1:
        return known[0] or None
    labels = ((path, part) for path, parts in zip(paths, known, strict=True) for part in parts or ("",))
    return tuple(f"{path}.{part}" if part and part != path.rpartition(".")[2] else path for path, part in labels)


def full_type_hint(name: str) -> str:
    """Return a hint for a type that does not have the form package/msg/Name."""
    package, _, rest = name.partition("/")
    return f"write {package}/msg/{rest}" if re.fullmatch(r"[A-Za-z]\w*/[A-Za-z]\w*", name) else "change it"


topic_in_namespace = pattern(
    "a topic such as /panda/joint_states, or joint_states in the namespace", TOPIC.replace("^/", "^/?")
)
message_type = pattern("a message type such as sensor_msgs/msg/JointState", _TYPE, full_type_hint)
field_path = pattern("a field's path such as pose.orientation", _FIELD)


@dataclass(frozen=True)
class StreamQuality:
    """Limits for one stream; without a value there is no limit."""

    max_invalid: float | None = key(number(0, 1), "largest share of ticks without a value", default=None)
    max_held: float | None = key(number(0, 1), "largest share of ticks with a held value", default=None)
    max_gap_ms: float | None = key(
        number(0, 1e7, above=True), "longest time without a message on the topic", default=None, unit="ms"
    )
    min_rate_hz: float | None = key(
        number(0, 1e5, above=True), "lowest rate of the topic's messages", default=None, unit="Hz"
    )


@dataclass(frozen=True)
class SpecQuality(StreamQuality):
    """Limits for every observation and action without a `quality` of its own, and for the recording."""

    min_frames: int | None = key(integer(1, 10**9), "fewest ticks in the episodes of a recording", default=None)


# Mean and standard deviation of the ImageNet RGB channels in 0..1, as used to train torchvision models.
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))

_triple = many(number(-1e6, 1e6), length=3)
_pixels = integer(1, 16384)


@dataclass(frozen=True)
class Normalize:
    """Per-channel normalisation `(x / 255 - mean) / std` of RGB values."""

    mean: tuple[float, ...] = key(many(number(-10, 10)), "mean of each channel in 0..1")
    std: tuple[float, ...] = key(many(number(0, 10, above=True)), "standard deviation of each channel in 0..1")

    def __post_init__(self) -> None:
        if len(self.mean) != len(self.std):
            raise refusal("std", f"has {len(self.std)} values, but mean has {len(self.mean)}; give one per channel")


_named = {"imagenet": Normalize(*IMAGENET)}


@dataclass(frozen=True)
class ImageSpec:
    """How an image is processed: cropped, resized, then normalised for the policy."""

    size: tuple[int, int] | None = key(
        many(_pixels, length=2), "height and width of the result", default=None, unit="px"
    )
    crop: tuple[int, int, int, int] | None = key(
        many(integer(0, 16384), length=4), "top, left, height, width cut out before resizing", default=None, unit="px"
    )
    resize: str = key(choice("bilinear", "nearest", "area"), "how pixels are resampled", default="bilinear")
    normalize: Normalize | None = key(
        either(
            converted(choice(*_named), lambda name: _named[name]),
            nested(Normalize),
        ),
        "imagenet, or mean and std, applied where the image becomes a tensor",
        default=None,
    )

    def __post_init__(self) -> None:
        if self.crop and not (self.crop[2] and self.crop[3]):
            raise refusal("crop", f"{list(self.crop)} is empty; the order is top, left, height, width")


@dataclass(frozen=True)
class Extrinsic:
    """Pose of the sensor in the grid's frame, `T_base_sensor` (base <- sensor)."""

    translation_m: tuple[float, float, float] = key(_triple, "position of the sensor", unit="m")
    rotation_xyzw: tuple[float, ...] = key(
        many(number(-1, 1), length=4), "orientation of the sensor", unit="quaternion"
    )

    def __post_init__(self) -> None:
        if abs(self._norm - 1) > 1e-3:
            raise refusal("rotation_xyzw", f"its norm is {self._norm:.4f}, not 1; give a unit quaternion")

    @property
    def _norm(self) -> float:
        x, y, z, w = self.rotation_xyzw
        return math.sqrt(x * x + y * y + z * z + w * w)  # sum() rounds differently since Python 3.12

    @cached_property
    def matrix(self) -> tuple[tuple[float, ...], ...]:
        """The rows of the 3x4 matrix [R | t]."""
        scale = 1 / self._norm
        x, y, z, w = (q * scale for q in self.rotation_xyzw)
        rotation = (
            (1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)),
            (2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)),
            (2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)),
        )
        return tuple((*row, t) for row, t in zip(rotation, self.translation_m, strict=True))


_MEANINGS = ", ".join(f"{kind.summary} ({name})" for name, kind in SPEC_REDUCTIONS.items())
_OF_FEATURES = ", ".join(name for name, kind in SPEC_REDUCTIONS.items() if kind.needs_features)


@dataclass(frozen=True)
class VoxelSpec:
    """The dense voxel grid that a point cloud is reduced to."""

    origin_m: tuple[float, float, float] = key(_triple, "corner of the grid with the smallest coordinates", unit="m")
    size_m: tuple[float, float, float] = key(
        converted(
            either(number(0, 1e4, above=True), many(number(0, 1e4, above=True), length=3)),
            lambda size: size if isinstance(size, tuple) else (size,) * 3,
        ),
        "edge of a voxel; one value, or one per axis",
        unit="m",
    )
    shape: tuple[int, int, int] = key(many(integer(1, 4096), length=3), "voxels along x, y and z")
    reduce: str = key(choice(*SPEC_REDUCTIONS), f"what a voxel holds: {_MEANINGS}", default="occupancy")
    features: tuple[str, ...] = key(
        many(text("a field of the cloud"), unique=True),
        f"fields of the cloud to reduce ({_OF_FEATURES}); of a depth image x, y, z, r, g, b",
        default=(),
    )
    extrinsic: Extrinsic | None = key(nested(Extrinsic), "pose of the sensor in the grid's frame", default=None)
    frame: str = key(
        text("a frame such as base_link"),
        "the grid's frame; the sensor's pose in it comes from /tf_static and /tf",
        default="",
    )

    def __post_init__(self) -> None:
        if self.frame and self.extrinsic:
            raise refusal("frame", "given together with extrinsic; give one of the two")
        if math.prod(self.shape) > 2**30:
            raise refusal("shape", f"{list(self.shape)} has {math.prod(self.shape)} voxels; use at most 2**30")
        if self.reduction.needs_features != bool(self.features):
            hint = "has features; leave them out" if self.features else "needs features; list fields of the cloud"
            raise refusal("reduce", f"{self.reduce!r} {hint}")

    @property
    def reduction(self) -> ReductionKind:
        """The reduction selected by `reduce`."""
        return SPEC_REDUCTIONS[self.reduce]


class _StreamRules:
    """Fills in values implied by the type of a stream, and checks the combination of keys."""

    def __init__(self, stream: StreamSpec) -> None:
        self.s = stream
        self.type = show_value(stream.type).strip("'")
        self.is_vector = stream.kind == "vector"
        self.is_array = stream.type.startswith("std_msgs/msg/")
        self.problems: list[Problem] = []

    def refuse(self, key: str, text: str) -> None:
        self.problems.append(Problem(tuple(key.split(".")), text))

    def field(self) -> str | tuple[str, ...]:
        """The numeric field: set in the spec, or implied by the type."""
        if self.s.field or not self.is_vector or self.s.is_transform:
            return self.s.field
        known = "position" if self.s.type == JOINT_TYPE else "data" if self.is_array else ""
        if not known:
            example = _EXAMPLES.get(self.type, "pose.orientation")
            self.refuse("field", f"missing; name the numeric field of {self.type}, such as {example}")
        return known

    def dim(self) -> int:
        """Number of values per sample: set in the spec, or implied by names, field or type."""
        if not self.is_vector or self.s.is_transform:
            return self.s.dim or self.s.is_transform * len(POSE_COMPONENTS)
        scalar = self.is_array and not self.s.type.endswith("MultiArray")
        known = len(self.s.names) or len(components_of(self.s.paths) or ()) or int(scalar)
        if self.s.type == JOINT_TYPE and not self.s.names:
            self.refuse("names", "missing; joint states are read by joint name, list the joints in your order")
        elif not (self.s.dim or known) and self.s.field:
            self.refuse("dim", f"missing; give the number of values in {show_value(self.s.field)} of {self.type}")
        if self.s.names and self.s.dim not in (0, known):
            self.refuse("dim", f"{self.s.dim}, but names lists {known}; leave dim out")
        return self.s.dim or known

    def align(self) -> str:
        """The alignment: set in the spec, or the default of the type."""
        return self.s.align or default_alignment(self.s.kind)

    def stamp(self) -> str:
        """The source of sample times: set in the spec, or implied by the type."""
        return self.s.stamp or ("receive" if self.is_array else "header")

    def image(self) -> ImageSpec | None:
        """The processing of an image stream: set in the spec, or the default."""
        return self.s.image or (ImageSpec() if self.s.kind == "image" else None)

    def check(self) -> None:
        s = self.s
        if s.is_transform or s.frames:
            self.check_transform()
        self.check_align()
        if s.names and s.type != JOINT_TYPE:
            self.refuse("names", f"only {JOINT_TYPE} has joint names, not {self.type}; use field and dim")
        if self.is_array and s.stamp != "receive":
            self.refuse("stamp", f"{s.stamp!r}, but {self.type} has no header; use receive")
        if s.image and s.kind != "image":
            self.refuse("image", f"{self.type} is not an image; leave it out")
        if s.kind == "cloud" and s.voxels is None:
            self.refuse("voxels", "missing; give the grid of the point cloud (origin_m, size_m, shape)")
        if s.voxels and s.kind != "cloud":
            hint = "add camera_info for a depth image" if s.kind == "image" else "leave it out"
            self.refuse("voxels", f"{self.type} is not a point cloud; {hint}")
        if s.camera_info:
            self.check_depth()
        elif s.color:
            self.refuse("color", "needs a depth image; add its camera_info, or leave color out")
        if self.is_vector:
            self.check_numbers()
        self.check_role()
        for name in ("field", "dim", "offset", "fill") if not self.is_vector else ():
            if getattr(s, name):
                self.refuse(name, f"does not apply to {self.type}; leave it out")

    def check_role(self) -> None:
        s = self.s
        if s.is_outcome and (s.width != 1 or s.rows):
            self.refuse("role", f"{s.role} is one number per tick; give a stream of one value, or another role")
        for name in ("label", "delta_from"):
            if getattr(s, name) and s.role != "action":
                self.refuse(name, "is for actions; add role: action, or leave it out")
        if s.delta_from and s.label == "absolute":
            self.refuse("delta_from", "is for deltas; use label: delta, or leave it out")
        if s.label == "delta" and (s.is_rotation or not self.is_vector):
            self.refuse("label", "deltas are for numbers and angles, not rotations or images; use absolute")
        if s.idle is not None and (not self.is_vector or s.rows):
            self.refuse("idle", "is for vectors of one value per tick; leave it out")

    def check_numbers(self) -> None:
        s = self.s
        rounded = [path for path in s.paths if path.rpartition(".")[2] in ROUNDED]
        if s.names and len(s.paths) > 1:
            self.refuse("field", "a list, but names reads one field by joint name; give one field")
        if s.offset and len(s.offset) != s.dim:
            self.refuse("offset", f"{len(s.offset)} values, but the stream has {s.dim}; give one for each")
        elif rounded and not s.offset:
            self.refuse("offset", f"missing; float32 rounds {rounded[0]} to about a metre; give a place nearby")
        if s.fill and (s.is_transform or s.computes):
            self.refuse("fill", f"{s.reduce or s.align!r} would blend it with measured values; use hold or nearest")
        elif s.fill and len(s.fill) not in (1, s.dim):
            self.refuse("fill", f"{len(s.fill)} values, but the stream has {s.dim}; give one, or one for each")

    def check_transform(self) -> None:
        s = self.s
        if not s.is_transform:
            self.refuse("frames", f"needs {TF_TYPE} and no field; leave it out")
        elif len({frame.lstrip("/") for frame in s.frames} - {""}) != 2:
            self.refuse("frames", "expected two frames; name them, as in [base_link, tool0]")
        elif s.dim != len(POSE_COMPONENTS):
            self.refuse("dim", f"{s.dim}, but a pose has {len(POSE_COMPONENTS)} values; leave dim out")
        elif s.align not in TRANSFORM_ALIGNMENTS:
            self.refuse("align", f"{s.align!r} is for other vectors; use {', '.join(TRANSFORM_ALIGNMENTS)}")
        if s.topic == TF_STATIC:
            self.refuse("topic", f"{TF_STATIC} is read with /tf; give the topic of the moving frames, /tf")

    def check_align(self) -> None:
        s = self.s
        if s.align == WINDOW:
            self.check_window()
            return
        for name in ("samples", "reduce"):
            if getattr(s, name):
                self.refuse(name, f"needs a window; add `align: {WINDOW}`, or leave it out")
        align = alignment(s.align)
        if align.blends and not self.is_vector:
            self.refuse_for_media()
        elif align.group > 1 and s.dim != align.group:
            self.refuse("align", f"{s.align!r} is for {align.values} ({align.group} values), not {s.dim}; use linear")
        elif (units := units_of(s.align)) and s.unit not in ("", *units):
            known = " or ".join(units)
            self.refuse("unit", f"{show_value(s.unit)}, but {s.align!r} is for {align.values} in {known}; use linear")

    def check_window(self) -> None:
        s = self.s
        if not self.is_vector:
            self.refuse_for_media()
        elif not s.samples:
            self.refuse("samples", "missing; give the number of samples that a tick uses at most")
        elif s.dim * s.samples > MAX_WIDTH:
            self.refuse("samples", f"{s.samples} of {s.dim} values each; at most {MAX_WIDTH} values fit a tick")
        elif s.role == "action" and not s.reduce:
            self.refuse("role", "an action has one row per tick; add reduce, or use another alignment")
        elif s.on_invalid == "hold":
            self.refuse("on_invalid", "'hold' is not possible for a window; use split, mask or fail")

    def refuse_for_media(self) -> None:
        """Record the problem that the alignment supports only vectors."""
        *others, last = (name for name in spec_alignments() if not alignment(name).blends)
        self.refuse("align", f"{self.s.align!r} is for vectors; use {', '.join(others)} or {last} for {self.type}")

    def check_depth(self) -> None:
        s = self.s
        if s.type not in IMAGE_TYPES:
            self.refuse("camera_info", f"is for depth images, not {self.type}; leave it out")
        known = ("x", "y", "z", *(("r", "g", "b") if s.color else ()))
        unknown = [name for name in (s.voxels.features if s.voxels else ()) if name not in known]
        if unknown:
            self.refuse("voxels.features", f"{show_value(unknown[0])} is not one of {', '.join(known)}; change it")


OUTCOMES = ("reward", "success", "intervention")  # roles of streams that say how an episode went


@dataclass(frozen=True)
class QosSpec:
    """Quality of service of a subscription; the default is ROS 2's sensor-data profile with a queue for a burst."""

    reliability: str = key(
        choice("auto", "best_effort", "reliable"),
        "requested delivery; auto: reliable for images and clouds whose publishers all offer it, else best effort",
        default="auto",
    )
    durability: str = key(
        choice("volatile", "transient_local"),
        "transient_local: the last sample is kept for late subscribers",
        default="volatile",
    )
    depth: int = key(integer(1, 10_000), "samples that the middleware queues", default=10)


DEFAULT_QOS = QosSpec()  # compared by identity: explicit equal values in a spec are not the default
TRANSFORM_QOS = QosSpec(reliability="reliable", depth=100)  # tf2's profile for /tf


@dataclass(frozen=True)
class StreamSpec:
    """One stream: a field of a topic's messages, how it is stamped and how it is aligned."""

    name: str
    topic: str = key(
        topic_in_namespace, "the topic to subscribe to; a name without a leading / is in the namespace of the node"
    )
    type: str = key(message_type, "the topic's message type")
    field: str | tuple[str, ...] = key(
        either(field_path, many(field_path, unique=True)),
        "path of the numeric field, or a list of several; known for joint states and arrays",
        default="",
    )
    names: tuple[str, ...] = key(
        many(text("a joint's name"), unique=True), "joints to read, by name and in this order", default=()
    )
    frames: tuple[str, ...] = key(
        many(text("a frame"), length=2), "of /tf: the pose of the second frame in the first", default=()
    )
    dim: int = key(integer(1, MAX_WIDTH), "values per sample; known for joints, poses and the like", default=0)
    offset: tuple[float, ...] = key(
        many(number(-1e15, 1e15)),
        "subtracted from the values in float64, before they become float32; one for each value",
        default=(),
    )
    fill: tuple[float, ...] = key(
        one_or_many(number(-1e15, 1e15)),
        "replaces a NaN or an infinity, after `offset`: one number, or one for each value. Without it, a sample that "
        "contains one is dropped",
        default=(),
    )
    align: str = key(
        choice(*spec_alignments(), WINDOW),
        "how the value at a tick is computed, see Alignments below; by default that of its kind",
        default="",
    )
    samples: int = key(integer(1, 4096), "of a window: number of samples per tick, the newest ones", default=0)
    reduce: str = key(choice(*REDUCTIONS), "of a window: one value per column instead of all samples", default="")
    max_gap_ms: float = key(number(0, 1e7, above=True), "largest gap that is interpolated", default=100.0, unit="ms")
    max_age_ms: float = key(
        number(0, 1e7),
        "age up to which a sample is held; also the longest time from a tick to a sample after it",
        default=100.0,
        unit="ms",
    )
    on_invalid: str = key(
        choice("split", "hold", "mask", "drop", "fail"),
        "ticks without a value. split: an export leaves them out and begins a new episode after them. hold: the last "
        "value is used, however old, also live, with `valid` 2. mask: zeros, marked in `valid`. drop: an export leaves "
        "the episode out. fail: an export is refused",
        default="split",
    )
    latency_ms: float = key(
        number(-1e5, 1e5), "calibrated sensor latency, subtracted from every stamp", default=0.0, unit="ms"
    )
    stamp: str = key(
        choice("header", "receive", "device", "header_or_receive"),
        "source of a sample's time; receive for types without a header; device for stamps of another clock",
        default="",
    )
    max_skew_ms: float = key(
        number(0, 1e13, above=True),
        "a sample whose stamp differs more from its arrival is dropped",
        default=5000.0,
        unit="ms",
    )
    rate_hz: float = key(
        number(0, 1e5, above=True),
        "declared rate; buffers are sized by it, and the diagnostics compare the topic with it",
        default=0.0,
        unit="Hz",
    )
    role: str = key(
        choice("observation", "action", *OUTCOMES),
        "whether a policy reads it or produces it, or whether it says how an episode went; intervention: it is not 0 "
        "where an operator commanded",
        default="observation",
    )
    label: str = key(
        choice("absolute", "delta"), "of an action: what an export stores; else as its option --action", default=""
    )
    delta_from: str = key(
        text("the name of a stream"),
        "of an action stored as a delta: the observation that is subtracted, else the previous action",
        default="",
    )
    idle: float | None = key(
        number(0, 1e15),
        "largest change that is not motion, for --trim-idle; else 1 % of a column's range, and 0 for an action",
        default=None,
    )
    unit: str = key(text("a unit such as rad"), "unit of the values, part of the layout", default="")
    qos: QosSpec = key(nested(QosSpec), "quality of service of the subscription", default=DEFAULT_QOS)
    image: ImageSpec | None = key(nested(ImageSpec), "crop, size and normalisation of an image", default=None)
    voxels: VoxelSpec | None = key(nested(VoxelSpec), "the grid that a point cloud is reduced to", default=None)
    camera_info: str = key(
        topic_in_namespace,
        "intrinsics of a depth image, which makes it a point cloud; the image is rectified",
        default="",
    )
    color: str = key(topic_in_namespace, "the colour image registered to the depth image, of the same size", default="")
    quality: StreamQuality | None = key(nested(StreamQuality), "limits that a recording must keep", default=None)
    pair_ms: float = key(
        number(0, 1e4), "largest difference between the stamps of a depth and a colour image", default=20.0, unit="ms"
    )

    def __post_init__(self) -> None:
        rules = _StreamRules(self)
        for name in ("field", "dim", "align", "stamp", "image"):
            object.__setattr__(self, name, getattr(rules, name)())
        if self.qos is DEFAULT_QOS and self.is_transform:
            object.__setattr__(self, "qos", TRANSFORM_QOS)
        if not rules.problems:
            rules.check()
        if rules.problems:
            raise SpecError(rules.problems)

    @property
    def kind(self) -> str:
        """The kind of a sample: `vector`, `image` or `cloud`."""
        if self.type == CLOUD_TYPE or self.camera_info or (self.type == LASER_TYPE and self.voxels):
            return "cloud"
        return "image" if self.type in PICTURE_TYPES else "vector"

    @cached_property
    def companions(self) -> tuple[StreamSpec, ...]:
        """The additional topics of a depth image, as streams `<name>/camera_info` and `<name>/color`; else empty."""
        if not self.camera_info:
            return ()
        info = StreamSpec(
            f"{self.name}/camera_info", self.camera_info, CAMERA_INFO_TYPE, field="k", dim=9, align="hold", qos=self.qos
        )
        color = StreamSpec(f"{self.name}/color", self.color, PICTURE_TYPES[0], qos=self.qos) if self.color else None
        return (info, color) if color else (info,)

    @property
    def is_transform(self) -> bool:
        """Whether the values are the pose of a frame in another frame."""
        return self.type == TF_TYPE and not self.field

    @property
    def is_outcome(self) -> bool:
        """Whether it says how an episode went: rows do not need a value of it, and no policy reads it."""
        return self.role in OUTCOMES

    @property
    def is_rotation(self) -> bool:
        """Whether the values contain a unit quaternion, whose differences are not rotations."""
        ends = {path.rpartition(".")[2] for path in self.paths}
        return self.is_transform or self.align == "slerp" or bool(ends & {"orientation", "rotation"})

    @property
    def rows(self) -> int:
        """Number of rows per tick: `samples` for a window that is not reduced, 0 for other streams."""
        return 0 if self.reduce else self.samples

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the vector values of a tick: (samples, dim) for a window that is not reduced, else (dim,)."""
        return (self.rows, self.dim) if self.rows else (self.dim,)

    @property
    def width(self) -> int:
        """Number of columns in the fused tensor: values per tick for a vector, 0 for an image or a cloud."""
        return self.dim * (self.rows or 1) if self.kind == "vector" else 0

    @cached_property
    def method(self) -> str:
        """The alignment that computes the value of a tick: `align`, or its variant for values in `unit`."""
        return in_unit(self.align, self.unit)

    @property
    def computes(self) -> bool:
        """Whether the value of a tick is computed from several samples instead of copied from one."""
        return bool(self.reduce) if self.align == WINDOW else alignment(self.align).blends

    @property
    def components(self) -> tuple[str, ...]:
        """A label for each value of a sample: joint names, axes, or the index."""
        known = components_of(self.paths)
        if self.names or self.is_transform:
            return self.names or POSE_COMPONENTS
        return known if known and len(known) == self.dim else tuple(str(i) for i in range(self.dim))

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths of one or more numeric fields."""
        return (self.field,) if isinstance(self.field, str) else self.field

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
