"""One stream of a fusion spec: topic, stamps and alignment."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from robocache_ros.alignments import alignment, in_unit, spec_alignments
from robocache_ros.spec.keys import choice, converted, either, integer, key, many, nested, number, text
from robocache_ros.spec.media import ImageSpec, VoxelSpec
from robocache_ros.spec.message_types import (
    CAMERA_INFO_TYPE,
    CLOUD_TYPE,
    LASER_TYPE,
    MAX_WIDTH,
    PICTURE_TYPES,
    POSE_COMPONENTS,
    REDUCTIONS,
    TF_TYPE,
    WINDOW,
    components_of,
    field_path,
    message_type,
    topic_in_namespace,
)
from robocache_ros.spec.problems import SpecError
from robocache_ros.spec.quality import StreamQuality
from robocache_ros.spec.stream_rules import StreamRules
from robocache_ros.units import NS_PER_MS

OUTCOMES = ("reward", "success")  # roles of streams that say how an episode went


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
        converted(
            either(number(-1e15, 1e15), many(number(-1e15, 1e15))),
            lambda given: given if isinstance(given, tuple) else (given,),
        ),
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
        "whether a policy reads it or produces it, or whether it says how an episode went",
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
        rules = StreamRules(self)
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
