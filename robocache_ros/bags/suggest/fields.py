"""The fields of messages that a suggested spec can use, and what their values show."""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from robocache_ros.bags.describe import BagInfo
from robocache_ros.bags.reader import Bag
from robocache_ros.bags.suggest.spec_text import SuggestedStream
from robocache_ros.decode import definitions
from robocache_ros.decode.cdr import Program, numbers, read_text, remembered
from robocache_ros.decode.decoder import Wanted, nearest_header
from robocache_ros.decode.definitions import (
    EMPTY_FIELD,
    HEADER,
    Array,
    Primitive,
    Struct,
    Text,
    Type,
    message_type,
    parse_path,
    resolve,
)
from robocache_ros.decode.definitions import Sequence as List
from robocache_ros.decode.payloads import DecodeError
from robocache_ros.errors import RoboCacheError
from robocache_ros.spec import keys
from robocache_ros.spec.stream import ROUNDED, StreamSpec

VECTORS = {  # type -> (path, quantity, unit); quaternions use spherical interpolation
    "geometry_msgs/msg/PoseStamped": (("pose.position", "position", "m"), ("pose.orientation", "orientation", "")),
    "geometry_msgs/msg/PoseWithCovarianceStamped": (
        ("pose.pose.position", "position", "m"),
        ("pose.pose.orientation", "orientation", ""),
    ),
    "geometry_msgs/msg/Pose": (("position", "position", "m"), ("orientation", "orientation", "")),
    "geometry_msgs/msg/TransformStamped": (
        ("transform.translation", "position", "m"),
        ("transform.rotation", "orientation", ""),
    ),
    "geometry_msgs/msg/TwistStamped": (("twist.linear", "linear", "m/s"), ("twist.angular", "angular", "rad/s")),
    "geometry_msgs/msg/TwistWithCovarianceStamped": (
        ("twist.twist.linear", "linear", "m/s"),
        ("twist.twist.angular", "angular", "rad/s"),
    ),
    "geometry_msgs/msg/Twist": (("linear", "linear", "m/s"), ("angular", "angular", "rad/s")),
    "geometry_msgs/msg/WrenchStamped": (("wrench.force", "force", "N"), ("wrench.torque", "torque", "N m")),
    "nav_msgs/msg/Odometry": (
        ("pose.pose.position", "position", "m"),
        ("pose.pose.orientation", "orientation", ""),
        ("twist.twist.linear", "linear", "m/s"),
        ("twist.twist.angular", "angular", "rad/s"),
    ),
    "sensor_msgs/msg/Imu": (
        ("orientation", "orientation", ""),
        ("angular_velocity", "angular_velocity", "rad/s"),
        ("linear_acceleration", "linear_acceleration", "m/s^2"),
    ),
}
UNITS = {  # (type, field) -> unit, for types whose fields are detected generically
    ("sensor_msgs/msg/MagneticField", "magnetic_field"): "T",
    ("sensor_msgs/msg/Temperature", "temperature"): "degC",
    ("sensor_msgs/msg/FluidPressure", "fluid_pressure"): "Pa",
    ("sensor_msgs/msg/Illuminance", "illuminance"): "lx",
    ("sensor_msgs/msg/Range", "range"): "m",
    ("sensor_msgs/msg/LaserScan", "ranges"): "m",
}
MEASURED_FIELDS = {  # type -> the fields that are measured; the others describe the sensor
    "sensor_msgs/msg/LaserScan": ("ranges", "intensities"),
    "sensor_msgs/msg/Range": ("range",),
    "sensor_msgs/msg/NavSatFix": ("latitude", "longitude", "altitude"),
}

MAX_STREAMS_PER_TOPIC = 16  # maximum number of streams per topic
LONGEST = 1024  # maximum number of values of one field
ELEMENTS = 64  # maximum number of messages in a list that are read individually
MAX_VECTOR_BYTES = 64  # a longer list of bytes is a file or an image, not a vector
NO_STREAMS = {  # type prefix -> reason why no stream is suggested
    "sensor_msgs/msg/CameraInfo": "goes with a depth image, as its camera_info",
    "std_msgs/msg/String": "text, not numbers",
    **dict.fromkeys(("rcl_interfaces/", "rosgraph_msgs/", "statistics_msgs/"), "logs and parameters, not a sensor"),
    **dict.fromkeys(("action_msgs/", "lifecycle_msgs/", "bond/"), "events, not a sensor"),
    "diagnostic_msgs/": "a table of text, not numbers",
    **dict.fromkeys(("visualization_msgs/", "moveit_msgs/msg/Display"), "markers for display"),
}
_TIMES = ("builtin_interfaces/msg/Time", "builtin_interfaces/msg/Duration")
# Words in the names of fields that are times, counters or descriptions of a measurement, but no measurements.
_NO_MEASUREMENTS = re.compile(
    r"covariance|(^|_)(variance|cov|time|times|timestamp|stamp|seq|sequence|count|counter|id|ids|index|usec|nsec)(_|$)"
)
_FLOAT32_MAX = float(np.finfo(np.float32).max)
_accepts = keys.keys_of(StreamSpec)["field"].metadata["type"].accepts


class NumericField(NamedTuple):
    """One or more fields that form one stream, and their observed values.

    values: (K, D) float64, for K messages. is_float: whether all values are floating-point numbers.
    """

    paths: tuple[str, ...]
    values: np.ndarray[Any, np.dtype[np.float64]]
    is_float: bool
    is_quaternion: bool = False

    @property
    def path(self) -> str | list[str]:
        """The value of `field` in a spec."""
        return self.paths[0] if len(self.paths) == 1 else list(self.paths)

    @property
    def name(self) -> str:
        """The common part of the paths, without element indexes."""
        parts = [re.sub(r"\[\d+\]", "", path).split(".") for path in self.paths]
        shared = [names[0] for names in zip(*parts, strict=False) if len(set(names)) == 1]
        return "_".join(shared)

    @property
    def dim(self) -> int:
        """Number of values per message."""
        return int(self.values.shape[1])


def numeric_fields(message: Struct, messages: Sequence[Any]) -> tuple[list[NumericField], list[str]]:
    """Return the fields of a type that streams can read, and the omitted fields, each with a reason.

    Single numbers with the same alignment form one stream, as do those at one path of a list of messages. Omitted are
    times and counters by their names, lists of variable length, and streams beyond MAX_STREAMS_PER_TOPIC.

    Args:
        message: the type.
        messages: some messages of it, with the fields as attributes.
    """
    search = _Search(MEASURED_FIELDS.get(message.name, ("",)))
    search.fields(message, "", messages)
    found, left_out = search.found, search.left_out
    together: dict[tuple[Any, ...], list[NumericField]] = {}
    for field in found:
        together.setdefault(_kind(message, field), []).append(field)
    groups = [_joined(fields) for fields in together.values()]
    largest = sorted(groups, key=lambda group: -group.dim)[:MAX_STREAMS_PER_TOPIC]
    left_out += [
        f"{', '.join(group.paths)} (of more than {MAX_STREAMS_PER_TOPIC})" for group in groups if group not in largest
    ]
    return [group for group in groups if group in largest], left_out


def _kind(message: Struct, field: NumericField) -> tuple[Any, ...]:
    """Return the key that groups fields: fields with the same key form one stream."""
    (path,) = field.paths
    header = nearest_header(message, parse_path(path))
    anywhere = re.sub(r"\[\d+\]", "[]", path)
    if field.is_quaternion or (field.dim > 1 and anywhere == path):
        return (path,)
    return ("" if field.dim == 1 and anywhere == path else anywhere, header, field.is_float)


def _joined(fields: Sequence[NumericField]) -> NumericField:
    if len(fields) == 1:
        return fields[0]
    values = np.concatenate([field.values for field in fields], axis=1)
    return NumericField(tuple(field.paths[0] for field in fields), values, all(field.is_float for field in fields))


class _Search:
    """Traverses the fields of a type.

    found: fields that a stream can read. left_out: paths, with reasons. measured: fields that are measurements; all
    fields begin with "".
    """

    def __init__(self, measured: tuple[str, ...]) -> None:
        self.measured = measured
        self.found: list[NumericField] = []
        self.left_out: list[str] = []

    def fields(self, struct: Struct, path: str, values: Sequence[Any]) -> None:
        """Add the fields of a message."""
        for name, t in struct.fields:
            inner = f"{path}.{name}".lstrip(".")
            if name == EMPTY_FIELD or (isinstance(t, Struct) and t.name in (*_TIMES, HEADER)):
                continue
            if _NO_MEASUREMENTS.search(name) or not inner.startswith(self.measured):
                if not isinstance(t, Text):
                    self.left_out.append(f"{inner} (not a measurement)")
            else:
                self.field(t, inner, [getattr(value, name) for value in values])

    def field(self, t: Type, path: str, values: Sequence[Any]) -> None:
        """Add a field, or its nested fields."""
        if isinstance(t, Primitive):
            self.add(path, [t], [[value] for value in values])
        elif isinstance(t, (Array, definitions.Sequence)):
            self.elements(t, path, values)
        elif isinstance(t, Struct):
            kinds = [field for _, field in t.fields]
            if all(isinstance(kind, Primitive) and kind.kind == "f" for kind in kinds):
                names = [name for name, _ in t.fields]
                rows = [[getattr(value, name) for name in names] for value in values]
                self.add(path, kinds, rows, is_quaternion=names == ["x", "y", "z", "w"])
            else:
                self.fields(t, path, values)

    def elements(self, t: Array | definitions.Sequence, path: str, values: Sequence[Any]) -> None:
        """Add a list of numbers, or the fields of the elements of a list of messages."""
        sizes = {len(value) for value in values}
        if len(sizes) != 1:
            if isinstance(t.element, (Primitive, Struct)):
                self.left_out.append(f"{path} ({min(sizes)} to {max(sizes)} elements)")
            return
        size = sizes.pop()
        if isinstance(t.element, Primitive):
            if 0 < size <= (MAX_VECTOR_BYTES if t.element.size == 1 and t.element.kind == "u" else LONGEST):
                self.add(path, [t.element], [list(value) for value in values])
            elif size:
                self.left_out.append(f"{path} ({size} elements)")
        elif isinstance(t.element, Struct):
            if size > ELEMENTS:
                self.left_out.append(f"{path} ({size} elements)")
                return
            for index in range(size):
                self.field(t.element, f"{path}[{index}]", [value[index] for value in values])

    def add(
        self, path: str, kinds: Iterable[Type], rows: Sequence[Sequence[Any]], *, is_quaternion: bool = False
    ) -> None:
        """Add a field if a spec can name it and float32 can represent at least one of its values."""
        is_float = all(isinstance(kind, Primitive) and kind.kind == "f" for kind in kinds)
        values = np.array(rows, np.float64)
        finite = np.abs(values[np.isfinite(values)])
        if not _accepts(path) or (len(finite) and finite.max() > _FLOAT32_MAX):
            self.left_out.append(f"{path} (beyond float32)")
        elif len(finite):
            self.found.append(NumericField((path,), values, is_float, is_quaternion))
        else:
            self.left_out.append(f"{path} (no finite value)")


Float64 = NDArray[np.float64]

REDUCED_AT_ONCE = 4096  # messages that are reduced at once, which bounds the memory
TURN, TURN_TOLERANCE = 360.0, 60.0  # a step of about a turn is the wrap of an angle, in degrees
RADIANS = 2 * np.pi / TURN
FEWEST_STEPS = 4  # fewer steps do not show a counter
REGULAR = 0.8  # share of equal steps of a counter
LINEAR = 0.9999  # correlation of a clock with the time
CLOCK_RATES = (1.0, 1e3, 1e6, 1e9)  # of clocks in s, ms, us and ns


@dataclass(frozen=True)
class Column:
    """One value of a stream in all messages of the recording.

    Attributes:
        label: how comments name it.
        path: the `field` of this value; empty if it is the value of a joint.
        is_integer: whether its type is an integer.
        count, not_finite: number of messages, and of those with NaN or infinity in it.
        low, high, last: of the finite values.
        is_exact: whether float32 represents every value.
        wraps_deg, wraps_rad: number of steps of about a turn.
        is_counter: whether it counts messages, or is a clock.
    """

    label: str
    path: str
    is_integer: bool
    count: int
    not_finite: int
    low: float
    high: float
    last: float
    is_exact: bool
    wraps_deg: int
    wraps_rad: int
    is_counter: bool

    @property
    def is_constant(self) -> bool:
        """Whether all values are the same."""
        return self.low == self.high


def read_columns(info: BagInfo, streams: Sequence[SuggestedStream]) -> list[list[Column]]:
    """Return the columns of each stream; empty for images, clouds and poses of /tf, and if no message has them."""
    found: dict[int, _Values] = {}
    for index, stream in enumerate(streams):
        if not {"image", "voxels", "frames"} & set(stream.keys) and ("field" in stream.keys or "dim" in stream.keys):
            found[index] = _Values(info.definitions, stream.keys)
    by_topic: dict[str, list[_Values]] = {}
    for index, values in found.items():
        by_topic.setdefault(streams[index].keys["topic"], []).append(values)
    if by_topic:
        with Bag(info.path, sampled=info.is_sampled) as bag:
            for message in bag.messages(by_topic):
                for values in by_topic[message.topic]:
                    values.add(message.data, message.log_ns)
    return [found[index].columns() if index in found else [] for index in range(len(streams))]


class _Values:
    """The values of a stream, reduced block by block."""

    def __init__(self, definitions: Mapping[str, str], keys: Mapping[str, Any]) -> None:
        field = keys.get("field", "data")
        self._paths = [field] if isinstance(field, str) else list(field)
        self._message = message_type(keys["type"], definitions)
        self._names: tuple[str, ...] = tuple(keys.get("names", ()))
        wanted: Wanted = [(("name",), remembered(read_text))] if self._names else []
        self._program = Program(self._message, [*wanted, *((parse_path(path), numbers) for path in self._paths)])
        self._dim = len(self._names) or keys["dim"]
        self._kinds: list[np.dtype[Any]] = []  # of the numbers of each path
        self._lengths: list[int] = []
        self._parts: list[bytearray] = []  # of the messages that are not reduced yet, by path
        self._logs_ns = array("q")
        self._sums: _Sums | None = None

    def add(self, data: bytes | memoryview, log_ns: int) -> None:
        try:
            parts = self._program.read(data)
        except DecodeError:
            return
        if self._names:
            place = {name: index for index, name in enumerate(parts[0])}
            if not set(self._names) <= set(place) or len(parts[1]) != len(parts[0]):
                return
            parts = [parts[1][[place[name] for name in self._names]]]
        if not self._lengths:
            if sum(map(len, parts)) != self._dim:
                return
            self._lengths = [len(part) for part in parts]
            self._kinds = [part.dtype for part in parts]
            self._parts = [bytearray() for _ in parts]
        if [len(part) for part in parts] != self._lengths:
            return
        for block, part, kind in zip(self._parts, parts, self._kinds, strict=True):
            block += (part if part.dtype == kind else part.astype(kind)).tobytes()  # of another byte order
        self._logs_ns.append(log_ns)
        if len(self._logs_ns) == REDUCED_AT_ONCE:
            self._reduce()

    def columns(self) -> list[Column]:
        if self._logs_ns:
            self._reduce()
        sums = self._sums
        if sums is None:
            return []
        kinds = zip(self._kinds, self._lengths, strict=True)
        integers = [kind.kind != "f" for kind, length in kinds for _ in range(length)]
        counters = sums.are_counters() & np.array(integers)
        of_columns = (
            sums.not_finite,
            sums.low,
            sums.high,
            sums.last,
            sums.exact,
            sums.wraps_deg,
            sums.wraps_rad,
            counters,
        )
        return [
            Column(label, "" if self._names else label, is_integer, sums.count, *values)
            for label, is_integer, *values in zip(
                self._labels(), integers, *(of_all.tolist() for of_all in of_columns), strict=True
            )
        ]

    def _reduce(self) -> None:
        blocks = zip(self._parts, self._kinds, self._lengths, strict=True)
        parts = [np.frombuffer(bytes(block), kind).reshape(-1, length) for block, kind, length in blocks]
        values, times = np.concatenate(parts, axis=1, dtype=np.float64), np.array(self._logs_ns, np.int64)
        self._parts, self._logs_ns = [bytearray() for _ in self._parts], array("q")
        if self._sums is None:
            self._sums = _Sums(values[0], int(times[0]))
        self._sums.add(values, times)

    def _labels(self) -> list[str]:
        if self._names:
            return list(self._names)
        labels: list[str] = []
        for path, length in zip(self._paths, self._lengths, strict=True):
            kind = resolve(self._message, parse_path(path))
            if isinstance(kind, Struct):
                labels += [f"{path}.{name}" for name, _ in kind.fields]
            elif isinstance(kind, (Array, List)):
                labels += [f"{path}[{index}]" for index in range(length)]
            else:
                labels.append(path)
        return labels


@dataclass
class _Sums:
    """Sums over the messages so far, each (D,)."""

    first: Float64
    start_ns: int

    def __post_init__(self) -> None:
        width = len(self.first)
        self.count = 0
        self.not_finite, self.wraps_deg, self.wraps_rad = (np.zeros(width, np.int64) for _ in range(3))
        self.rising, self.falling, self.equal, self.steps = (np.zeros(width, np.int64) for _ in range(4))
        self.low, self.high = np.full(width, np.inf), np.full(width, -np.inf)
        self.exact = np.ones(width, bool)
        self.last = self.first
        self._tail = np.empty((0, width))  # the last two rows of the blocks before
        self._moments = np.zeros((5, width))  # of time t and value v: t, v, tt, tv, vv

    def add(self, values: Float64, times_ns: NDArray[np.int64]) -> None:
        finite = np.isfinite(values)
        self.count += len(values)
        self.not_finite += (~finite).sum(axis=0)
        self.low = np.minimum(self.low, np.where(finite, values, np.inf).min(axis=0))
        self.high = np.maximum(self.high, np.where(finite, values, -np.inf).max(axis=0))
        self.last = np.where(finite[-1], values[-1], self.last)
        with np.errstate(over="ignore", invalid="ignore"):
            self.exact &= ((values.astype(np.float32) == values) | ~finite).all(axis=0)
            joined = np.concatenate([self._tail, values])
            steps = np.diff(joined, axis=0)
            new = steps[max(0, len(self._tail) - 1) :]
            self.steps += len(new)
            self.rising += (new > 0).sum(axis=0)
            self.falling += (new < 0).sum(axis=0)
            self.equal += ((np.diff(steps, axis=0) == 0) & (steps[1:] > 0)).sum(axis=0)
            self.wraps_deg += (np.abs(np.abs(new) - TURN) < TURN_TOLERANCE).sum(axis=0)
            self.wraps_rad += (np.abs(np.abs(new) - TURN * RADIANS) < TURN_TOLERANCE * RADIANS).sum(axis=0)
            v = np.where(finite, values - self.first, 0.0)
            t = ((times_ns - self.start_ns) / 1e9)[:, None]
            self._moments += np.stack([(x * np.ones_like(v)).sum(axis=0) for x in (t, v, t * t, t * v, v * v)])
        self._tail = joined[-2:]

    def are_counters(self) -> NDArray[np.bool_]:
        """Whether columns rise by equal steps, or at the rate of a clock."""
        if (self.steps < FEWEST_STEPS).any():
            return np.zeros(len(self.first), bool)
        n, (t, v, tt, tv, vv) = self.count, self._moments
        with np.errstate(all="ignore"):
            cov, var_t, var_v = tv - t * v / n, tt - t * t / n, vv - v * v / n
            linear = cov / np.sqrt(var_t * var_v) > LINEAR
            rate = cov / var_t
        clock = linear & np.logical_or.reduce([np.abs(rate / one - 1) < 0.02 for one in CLOCK_RATES])
        rises = (self.falling <= 1) & (2 * self.rising > self.steps)
        found: NDArray[np.bool_] = rises & (clock | (self.equal >= REGULAR * (self.steps - 1)))
        return found


def usable_columns(
    stream: SuggestedStream, columns: Sequence[Column], *, constants: bool
) -> tuple[list[Column], dict[str, list[str]]]:
    """Return the columns of a stream that a policy can use, and the labels of the others by reason.

    Args:
        stream: the stream.
        columns: of it.
        constants: whether columns that never change are used.
    """
    left_out: dict[str, list[str]] = {}
    kept = []
    for column in columns:
        if reason := _useless(column, constants):
            left_out.setdefault(reason, []).append(column.label)
        else:
            kept.append(column)
    whole = stream.keys["align"] == "slerp" or stream.is_quaternion
    if whole and kept and any("NaN" in reason for reason in left_out):
        return [], left_out
    if whole and kept:
        return list(columns), {}
    if not kept or len(columns) <= MAX_LISTED or stream.keys.get("names"):
        return kept, left_out
    bad = {reason: labels for reason, labels in left_out.items() if "NaN" in reason or "float32" in reason}
    if bad:  # a scan or a matrix with holes: its other columns are not listed one by one
        labels = [label for one in bad.values() for label in one]
        return [], {
            f"{next(iter(bad))}, in {len(labels)} of {len(columns)} values": [re.sub(r"\[\d+\]$", "", columns[0].label)]
        }
    return list(columns), {}


MAX_LISTED = 64  # maximum number of values of a stream whose fields are listed one by one


def _useless(column: Column, constants: bool) -> str:
    if column.not_finite:
        return f"NaN or infinite in {column.not_finite:,} of {column.count:,} messages"
    if column.is_constant:
        return "" if constants else f"always {column.low + 0.0:g}"
    if column.is_counter:
        return "counts messages or time"
    if max(abs(column.low), abs(column.high)) > _FLOAT32_MAX:
        return "beyond float32"
    if abs(offset_of(column)) > MAX_OFFSET:
        return "too large for float32, also with an offset"
    return ""


MAX_OFFSET = 1e15  # of a spec
COARSE = 1e-3  # maximum float32 step relative to the value range of a column


def offset_of(column: Column) -> float:
    """Return what to subtract before conversion to float32; 0 if float32 is precise enough without it."""
    span = column.high - column.low
    step = float(np.spacing(np.float32(min(max(abs(column.low), abs(column.high)), _FLOAT32_MAX))))
    coarse = not column.is_exact and span > 0 and step > span * COARSE
    if not coarse and not is_rounded(column.path):
        return 0.0
    digits = int(np.clip(-np.floor(np.log10(max(span, 1e-4))), 0, 4))
    return round(column.last, digits)


def is_rounded(path: str) -> bool:
    """Whether a spec requires an offset for a field."""
    return path.rpartition(".")[2] in ROUNDED


HEADINGS = re.compile(r"(^|_)(yaw|heading|bearing|azimuth|course|compass|hdg|cog)(_|$)")
DEGREES = re.compile(r"(^|_)(deg|degs|degree|degrees)(_|$)")


def in_each_message(path: str) -> str:
    """Return a path for all messages of a list, `joints[].angle` for `joints[2].angle`; else the path itself."""
    return re.sub(r"\[\d+\](?=.)", "[]", path)


def angle_unit(column: Column) -> str:
    """Return deg or rad for an angle that wraps around, by the range of its values, its steps and its name; else ''."""
    words = re.sub(r"[^a-z0-9]+", "_", column.path.lower())
    if column.is_integer or not column.path:
        return ""
    in_turn = (column.low >= -181 and column.high <= 181) or (column.low >= -1 and column.high <= 361)
    largest = max(abs(column.low), abs(column.high))
    named = bool(HEADINGS.search(words))
    if in_turn and largest > 2 * np.pi + 0.1 and (named or DEGREES.search(words) or column.wraps_deg):
        return "deg" if named or column.wraps_deg else ""
    in_radians = (column.low >= -3.2 and column.high <= 3.2) or (column.low >= -0.1 and column.high <= 6.4)
    full = 6.1 < column.high - column.low < 6.4
    return "rad" if in_radians and column.wraps_rad and (named or full) else ""


def shown(left_out: Mapping[str, Sequence[str]]) -> str:
    """Format columns by reason, with runs of elements shortened: `position[3..7] (always 0)`."""
    return "; ".join(f"{', '.join(_runs(labels))} ({reason})" for reason, labels in left_out.items())


def _runs(labels: Sequence[str]) -> list[str]:
    runs: list[tuple[str, int, int]] = []
    for label in labels:
        found = re.fullmatch(r"(.*)\[(\d+)\]", label)
        name, index = (found[1], int(found[2])) if found else (label, -1)
        if runs and index >= 0 and runs[-1][0] == name and runs[-1][2] == index - 1:
            runs[-1] = (name, runs[-1][1], index)
        else:
            runs.append((name, index, index))
    return [name if a < 0 else f"{name}[{a}]" if a == b else f"{name}[{a}..{b}]" for name, a, b in runs]


def readable(info: BagInfo, stream: SuggestedStream) -> str:
    """Return why the engine could not read a stream; empty if it can."""
    from robocache_ros.decode import make_decoder

    try:
        spec = keys.read(StreamSpec, stream.keys, name="stream")
        if not spec.is_transform:
            make_decoder(spec, info.definitions)
    except RoboCacheError as error:
        return str(error)
    return ""
