"""Message types, from .msg text, from IDL and from installed classes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TypeAlias

import numpy as np

from robocache_ros.decode.payloads import MAX_DEFINITION_BYTES, MAX_DEPTH, MAX_FIXED_BYTES, MAX_LEAVES, MAX_TYPES
from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.spec.keys import suggestion


@dataclass(frozen=True)
class Primitive:
    """A number on the wire: `kind` is NumPy's letter (i, u, f), or b for a boolean of one byte."""

    name: str
    kind: str
    size: int

    def dtype(self, order: str) -> np.dtype[np.generic]:
        """Its NumPy dtype for byte order `<` or `>`; a boolean is read as a byte."""
        return np.dtype(f"{order}{'u' if self.kind == 'b' else self.kind}{self.size}")

    @property
    def code(self) -> str:
        """Its format character in `struct`."""
        letter = {1: "b", 2: "h", 4: "i", 8: "q"}[self.size]
        return {"f": "f" if self.size == 4 else "d", "i": letter}.get(self.kind, letter.upper())


@dataclass(frozen=True)
class Text:
    """A string of at most `bound` bytes."""

    bound: int | None = None


@dataclass(frozen=True)
class Unsupported:
    """A type that can be declared but not read, such as wstring."""

    name: str


@dataclass(frozen=True)
class Array:
    """`length` elements, without a length on the wire."""

    element: Type
    length: int


@dataclass(frozen=True)
class Sequence:
    """Up to `bound` elements after a uint32 length."""

    element: Type
    bound: int | None = None


@dataclass(frozen=True)
class Struct:
    """A message type: its fields in wire order."""

    name: str
    fields: tuple[tuple[str, Type], ...]


Type: TypeAlias = "Primitive | Text | Unsupported | Array | Sequence | Struct"
Path: TypeAlias = "tuple[str | int, ...]"
Run: TypeAlias = "tuple[Primitive, int]"  # a primitive, and how often it is repeated

_UNROLLED = 64  # longer arrays of mixed structs are walked, not laid out
_MAX_RUNS = 4096  # the limit for nested arrays of them


def runs(t: Type) -> list[Run] | None:
    """The primitives of a type of fixed layout, with equal neighbours merged; None if the layout varies."""
    if isinstance(t, Primitive):
        return [(t, 1)]
    if isinstance(t, Array):
        inner = runs(t.element)
        if inner is None or (len(inner) > 1 and (t.length > _UNROLLED or t.length * len(inner) > _MAX_RUNS)):
            return None
        return [(inner[0][0], inner[0][1] * t.length)] if len(inner) == 1 else merged(inner * t.length)
    if isinstance(t, Struct):
        every: list[Run] = []
        for _, field in t.fields:
            inner = runs(field)
            if inner is None:
                return None
            every += inner
        return merged(every)
    return None


def primitive_of(t: Type) -> Primitive:
    """The primitive that a type of fixed layout is, or that all its elements are."""
    fixed = runs(t)
    if fixed is None or len(fixed) != 1:
        raise RoboCacheError(f"field: {describe(t)} has no numbers of a single type; name a field in it")
    return fixed[0][0]


def merged(parts: list[Run]) -> list[Run]:
    """The same primitives, with equal neighbours merged."""
    result: list[Run] = []
    for primitive, count in parts:
        if result and result[-1][0] == primitive:
            result[-1] = (primitive, result[-1][1] + count)
        else:
            result.append((primitive, count))
    return result


def parse_path(path: str) -> Path:
    """`points[0].positions` -> `("points", 0, "positions")`."""
    steps: list[str | int] = []
    for part in path.split("."):
        match = re.fullmatch(r"([A-Za-z_]\w*)((?:\[\d+\])*)", part)
        if match is None:
            raise RoboCacheError(
                f"field: {printable(path)!r} is not a path; write it as pose.orientation or points[0].positions"
            )
        steps += [match[1], *(int(index) for index in re.findall(r"\d+", match[2]))]
    return tuple(steps)


def resolve(t: Type, path: Path) -> Type:
    """The type at a path; the `RoboCacheError` lists the available fields."""
    for step in path:
        if isinstance(step, int):
            if not isinstance(t, (Array, Sequence)):
                raise RoboCacheError(f"field: [{step}] of {describe(t)}, which is not an array; leave out the index")
            if isinstance(t, Array) and step >= t.length:
                raise RoboCacheError(f"field: [{step}] of an array of {t.length}; the last is [{t.length - 1}]")
            t = t.element
            continue
        fields = dict(t.fields) if isinstance(t, Struct) else {}
        if step not in fields:
            choices = f"the fields are {printable(', '.join(fields))}" if fields else "it has no fields"
            choices = f"{suggestion(step, fields)} {choices}".strip()
            raise RoboCacheError(f"field: {describe(t)} has no field {printable(step, 30)!r}; {choices}")
        t = fields[step]
    return t


def describe(t: Type) -> str:
    """A type as written in a .msg file, in at most 80 characters."""
    if isinstance(t, Array):
        return f"{describe(t.element)}[{t.length}]"
    if isinstance(t, Sequence):
        return f"{describe(t.element)}[{'' if t.bound is None else f'<={t.bound}'}]"
    return "string" if isinstance(t, Text) else printable(t.name)


# The common message types, as their packages define them; a recording's own definitions take precedence.
#
# Only types that are the same since Humble are here: a type that a distribution has changed needs its definition.

_HEADER = "std_msgs/Header header; "
_COVARIANCE = "float64[36] covariance"
_NUMBERS = {
    **{f"{sign}Int{bits}": f"{sign.lower()}int{bits}" for sign in ("", "U") for bits in (8, 16, 32, 64)},
    "Float32": "float32",
    "Float64": "float64",
    "Byte": "byte",
}

_TEXTS = {
    "builtin_interfaces": {
        "Time": "int32 sec; uint32 nanosec",
        "Duration": "int32 sec; uint32 nanosec",
    },
    "std_msgs": {
        "Header": "builtin_interfaces/Time stamp; string frame_id",
        "Bool": "bool data",
        "Empty": "",
        "ColorRGBA": "float32 r; float32 g; float32 b; float32 a",
        "String": "string data",
        "MultiArrayDimension": "string label; uint32 size; uint32 stride",
        "MultiArrayLayout": "MultiArrayDimension[] dim; uint32 data_offset",
        **{name: f"{kind} data" for name, kind in _NUMBERS.items()},
        **{f"{name}MultiArray": f"MultiArrayLayout layout; {kind}[] data" for name, kind in _NUMBERS.items()},
    },
    "geometry_msgs": {
        "Point": "float64 x; float64 y; float64 z",
        "Point32": "float32 x; float32 y; float32 z",
        "Vector3": "float64 x; float64 y; float64 z",
        "Quaternion": "float64 x; float64 y; float64 z; float64 w",
        "Pose": "Point position; Quaternion orientation",
        "Pose2D": "float64 x; float64 y; float64 theta",
        "Transform": "Vector3 translation; Quaternion rotation",
        "Twist": "Vector3 linear; Vector3 angular",
        "Accel": "Vector3 linear; Vector3 angular",
        "Wrench": "Vector3 force; Vector3 torque",
        "Polygon": "Point32[] points",
        "Inertia": "float64 m; Vector3 com; float64 ixx; float64 ixy; float64 ixz; float64 iyy; float64 iyz; "
        "float64 izz",
        "PoseWithCovariance": f"Pose pose; {_COVARIANCE}",
        "TwistWithCovariance": f"Twist twist; {_COVARIANCE}",
        "AccelWithCovariance": f"Accel accel; {_COVARIANCE}",
        "PoseArray": f"{_HEADER}Pose[] poses",
        "TransformStamped": f"{_HEADER}string child_frame_id; Transform transform",
        "Vector3Stamped": f"{_HEADER}Vector3 vector",
        **{
            f"{name}Stamped": f"{_HEADER}{name} {name.lower()}"
            for name in ("Point", "Quaternion", "Pose", "Twist", "Accel", "Wrench", "Polygon", "Inertia")
        },
        **{
            f"{name}WithCovarianceStamped": f"{_HEADER}{name}WithCovariance {name.lower()}"
            for name in ("Pose", "Twist", "Accel")
        },
    },
    "sensor_msgs": {
        "JointState": f"{_HEADER}string[] name; float64[] position; float64[] velocity; float64[] effort",
        "MultiDOFJointState": f"{_HEADER}string[] joint_names; geometry_msgs/Transform[] transforms; "
        "geometry_msgs/Twist[] twist; geometry_msgs/Wrench[] wrench",
        "Imu": f"{_HEADER}geometry_msgs/Quaternion orientation; float64[9] orientation_covariance; "
        "geometry_msgs/Vector3 angular_velocity; float64[9] angular_velocity_covariance; "
        "geometry_msgs/Vector3 linear_acceleration; float64[9] linear_acceleration_covariance",
        "MagneticField": f"{_HEADER}geometry_msgs/Vector3 magnetic_field; float64[9] magnetic_field_covariance",
        "Temperature": f"{_HEADER}float64 temperature; float64 variance",
        "FluidPressure": f"{_HEADER}float64 fluid_pressure; float64 variance",
        "RelativeHumidity": f"{_HEADER}float64 relative_humidity; float64 variance",
        "Illuminance": f"{_HEADER}float64 illuminance; float64 variance",
        # Since Iron a variance follows; it comes with the recording's definition.
        "Range": f"{_HEADER}uint8 radiation_type; float32 field_of_view; float32 min_range; float32 max_range; "
        "float32 range",
        "NavSatStatus": "int8 status; uint16 service",
        "NavSatFix": f"{_HEADER}NavSatStatus status; float64 latitude; float64 longitude; float64 altitude; "
        "float64[9] position_covariance; uint8 position_covariance_type",
        "BatteryState": f"{_HEADER}float32 voltage; float32 temperature; float32 current; float32 charge; "
        "float32 capacity; float32 design_capacity; float32 percentage; uint8 power_supply_status; "
        "uint8 power_supply_health; uint8 power_supply_technology; bool present; float32[] cell_voltage; "
        "float32[] cell_temperature; string location; string serial_number",
        "TimeReference": f"{_HEADER}builtin_interfaces/Time time_ref; string source",
        "ChannelFloat32": "string name; float32[] values",
        "PointCloud": f"{_HEADER}geometry_msgs/Point32[] points; ChannelFloat32[] channels",
        "Joy": f"{_HEADER}float32[] axes; int32[] buttons",
        "LaserScan": f"{_HEADER}float32 angle_min; float32 angle_max; float32 angle_increment; float32 time_increment; "
        "float32 scan_time; float32 range_min; float32 range_max; float32[] ranges; float32[] intensities",
        "RegionOfInterest": "uint32 x_offset; uint32 y_offset; uint32 height; uint32 width; bool do_rectify",
        "CameraInfo": f"{_HEADER}uint32 height; uint32 width; string distortion_model; float64[] d; float64[9] k; "
        "float64[9] r; float64[12] p; uint32 binning_x; uint32 binning_y; RegionOfInterest roi",
        "Image": f"{_HEADER}uint32 height; uint32 width; string encoding; uint8 is_bigendian; uint32 step; "
        "uint8[] data",
        "CompressedImage": f"{_HEADER}string format; uint8[] data",
        "PointField": "string name; uint32 offset; uint8 datatype; uint32 count",
        "PointCloud2": f"{_HEADER}uint32 height; uint32 width; PointField[] fields; bool is_bigendian; "
        "uint32 point_step; uint32 row_step; uint8[] data; bool is_dense",
    },
    "nav_msgs": {
        "Odometry": f"{_HEADER}string child_frame_id; geometry_msgs/PoseWithCovariance pose; "
        "geometry_msgs/TwistWithCovariance twist",
        "Path": f"{_HEADER}geometry_msgs/PoseStamped[] poses",
    },
    "ackermann_msgs": {
        "AckermannDrive": "float32 steering_angle; float32 steering_angle_velocity; float32 speed; "
        "float32 acceleration; float32 jerk",
        "AckermannDriveStamped": f"{_HEADER}AckermannDrive drive",
    },
    "control_msgs": {
        "GripperCommand": "float64 position; float64 max_effort",
        "InterfaceValue": "string[] interface_names; float64[] values",
        "DynamicJointState": f"{_HEADER}string[] joint_names; InterfaceValue[] interface_values",
    },
    "trajectory_msgs": {
        "JointTrajectoryPoint": "float64[] positions; float64[] velocities; float64[] accelerations; float64[] effort; "
        "builtin_interfaces/Duration time_from_start",
        "JointTrajectory": f"{_HEADER}string[] joint_names; JointTrajectoryPoint[] points",
        "MultiDOFJointTrajectoryPoint": "geometry_msgs/Transform[] transforms; geometry_msgs/Twist[] velocities; "
        "geometry_msgs/Twist[] accelerations; builtin_interfaces/Duration time_from_start",
        "MultiDOFJointTrajectory": f"{_HEADER}string[] joint_names; MultiDOFJointTrajectoryPoint[] points",
    },
    "tf2_msgs": {"TFMessage": "geometry_msgs/TransformStamped[] transforms"},
}

COMMON = {
    f"{package}/msg/{name}": text.replace("; ", "\n")
    for package, texts in _TEXTS.items()
    for name, text in texts.items()
}

TIME = "builtin_interfaces/msg/Time"
HEADER = "std_msgs/msg/Header"
EMPTY_FIELD = "structure_needs_at_least_one_member"  # the field that ROS 2 adds to a message without fields

PRIMITIVES: dict[str, Type] = {
    **{f"int{8 * size}": Primitive(f"int{8 * size}", "i", size) for size in (1, 2, 4, 8)},
    **{f"uint{8 * size}": Primitive(f"uint{8 * size}", "u", size) for size in (1, 2, 4, 8)},
    "float32": Primitive("float32", "f", 4),
    "float64": Primitive("float64", "f", 8),
    "bool": Primitive("bool", "b", 1),
    "byte": Primitive("byte", "u", 1),
    "char": Primitive("char", "u", 1),
    "wstring": Unsupported("wstring"),
    "wchar": Unsupported("wchar"),
}
# The names that rosidl uses in get_fields_and_field_types().
_ROSIDL = {"double": "float64", "float": "float32", "boolean": "bool", "octet": "byte"}

_SEPARATOR = re.compile(r"^=+\s*$", re.MULTILINE)
_FIELD = re.compile(
    r"(?P<base>[A-Za-z][\w/]*)(?:<=(?P<bound>\d{1,10}))?(?P<array>\[(?P<upper><=)?(?P<count>\d{0,10})\])?\s+(?P<name>[A-Za-z]\w*)"
)
_CONSTANT = re.compile(r"[A-Za-z][\w/]*(?:<=\d+)?\s+[A-Za-z]\w*\s*=")


def full_name(name: str, package: str = "") -> str:
    """`sensor_msgs/Imu` -> `sensor_msgs/msg/Imu`; a bare name belongs to `package`, Header to std_msgs."""
    parts = name.split("/")
    if len(parts) == 1:
        return HEADER if name == "Header" else f"{package}/msg/{name}"
    return f"{parts[0]}/msg/{parts[-1]}"


def split_definitions(name: str, text: str) -> dict[str, str]:
    """Split a concatenated definition into one text per type; the first part is the text of `name`."""
    if len(text) > MAX_DEFINITION_BYTES:
        raise RoboCacheError(
            f"definition of {printable(name)}: {len(text)} characters; at most {MAX_DEFINITION_BYTES} are allowed"
        )
    first, *others = _SEPARATOR.split(text)
    if len(others) >= MAX_TYPES:
        raise RoboCacheError(f"definition of {printable(name)}: more than {MAX_TYPES} types; use fewer")
    parts = {full_name(name): first}
    for other in others:
        head, _, body = other.strip().partition("\n")
        if not head.startswith("MSG:"):
            raise RoboCacheError(
                f"definition of {printable(name, 60)}: expected 'MSG: package/Type' after '=====', "
                f"got '{printable(head, 30)}'"
            )
        parts[full_name(head[4:].strip())] = body
    return parts


def needed_types(name: str, text: str) -> list[str]:
    """Return the types of the fields of a definition that are not primitive."""
    package = name.partition("/")[0]
    fields = (line.partition("#")[0].strip() for line in text.splitlines())
    bases = (match["base"] for field in fields if not _CONSTANT.match(field) and (match := _FIELD.match(field)))
    return [full_name(base, package) for base in bases if base not in PRIMITIVES and base != "string"]


def message_type(name: str, definitions: Mapping[str, str] | None = None) -> Struct:
    """The layout of a message type.

    definitions: type -> .msg text with the types it needs after '=====' lines, as in MCAP schemas. Other types come
    from the common types. `RoboCacheError` if a type is unknown or a text cannot be read.
    """
    name = full_name(name)
    texts = dict(COMMON)
    own = {full_name(key): text for key, text in (definitions or {}).items()}
    for key in sorted(own, key=name.__eq__):  # the type's own text comes last and takes precedence
        texts.update(split_definitions(key, own[key]))
    return _Builder(texts).struct(name)


class _Builder:
    def __init__(self, texts: Mapping[str, str]) -> None:
        self.texts = texts
        self.built: dict[str, tuple[Struct, int, int]] = {}  # with the number of leaves and bytes of each
        self.open: list[str] = []

    def struct(self, name: str) -> Struct:
        if name in self.built:
            return self.built[name][0]
        shown = printable(name, 60)
        if name not in self.texts:
            wanted = f" (needed by {printable(self.open[-1], 60)})" if self.open else ""
            raise RoboCacheError(f"type: no definition of {shown}{wanted}; give its .msg file with --msg-path DIR")
        if name in self.open:
            raise RoboCacheError(f"definition of {shown}: contains itself; remove the cycle")
        if len(self.open) == MAX_DEPTH:
            raise RoboCacheError(f"definition of {shown}: more than {MAX_DEPTH} nested messages; nest fewer")
        self.open.append(name)
        package = name.partition("/")[0]
        fields = tuple(field for line in self.texts[name].splitlines() for field in self._field(name, package, line))
        if len({field for field, _ in fields}) != len(fields):
            raise RoboCacheError(f"definition of {shown}: two fields have the same name; rename one")
        self.open.pop()
        # In ROS 2, a message without fields takes one byte on the wire.
        empty = ((EMPTY_FIELD, PRIMITIVES["uint8"]),)
        struct = Struct(name, fields or empty)
        sizes = [self._size(t) for _, t in struct.fields]
        leaves, nbytes = sum(size[0] for size in sizes), sum(size[1] for size in sizes)
        if leaves > MAX_LEAVES or nbytes > MAX_FIXED_BYTES:
            raise RoboCacheError(
                f"definition of {shown}: {leaves} fields and {nbytes:.3g} bytes, with nested ones; at most "
                f"{MAX_LEAVES} and {MAX_FIXED_BYTES:.3g} are allowed"
            )
        self.built[name] = struct, leaves, nbytes
        return struct

    def _size(self, t: Type) -> tuple[int, int]:
        """The number of leaves of a type, and the minimum number of bytes that it takes."""
        if isinstance(t, Struct):
            return self.built[t.name][1:]
        if isinstance(t, Array):
            leaves, nbytes = self._size(t.element)
            return leaves, nbytes * t.length
        if isinstance(t, Sequence):
            return self._size(t.element)[0], 4
        return 1, t.size if isinstance(t, Primitive) else 4

    def _field(self, name: str, package: str, line: str) -> list[tuple[str, Type]]:
        text = line.partition("#")[0].strip()
        if not text or _CONSTANT.match(text):
            return []
        match = _FIELD.match(text)
        shown = f"definition of {printable(name, 60)}"
        if match is None or match["base"] == "module":
            raise RoboCacheError(f"{shown}: cannot read '{printable(line.strip(), 40)}'; expected .msg text, not IDL")
        base, bound = match["base"], match["bound"]
        if base == "string":
            element: Type = Text(int(bound) if bound else None)
        else:
            element = PRIMITIVES.get(base) or self.struct(full_name(base, package))
        if not match["array"]:
            return [(match["name"], element)]
        count = int(match["count"]) if match["count"] else None
        if count is None or match["upper"]:
            return [(match["name"], Sequence(element, count))]
        if count == 0:
            raise RoboCacheError(f"{shown}: '{printable(line.strip(), 40)}' has no elements; give it one or more")
        return [(match["name"], Array(element, count))]


def definitions_of(message_class: type) -> dict[str, str]:
    """The definitions of an installed message class (its `get_fields_and_field_types`), for `make_decoder`.

    The classes of its fields are found by name in the installed packages.
    """
    texts: dict[str, str] = {}
    _describe_class(message_class, texts)
    return texts


def _describe_class(message_class: type, texts: dict[str, str]) -> None:
    package = message_class.__module__.partition(".")[0]
    name = f"{package}/msg/{message_class.__name__}"
    if name in texts:
        return
    if not hasattr(message_class, "get_fields_and_field_types"):
        raise RoboCacheError(
            f"{printable(repr(message_class))}: is not a ROS 2 message class; pass one such as sensor_msgs.msg.Imu"
        )
    fields: dict[str, str] = message_class.get_fields_and_field_types()
    lines = {field: _as_msg(kind) for field, kind in fields.items()}
    texts[name] = "\n".join(f"{kind} {field}" for field, kind in lines.items())
    for kind in lines.values():
        base = kind.partition("[")[0]
        if "/" in base:
            other, _, inner = base.partition("/")
            _describe_class(getattr(import_module(f"{other}.msg"), inner), texts)


def _as_msg(kind: str) -> str:
    """`sequence<double, 3>` -> `float64[<=3]`, `string<8>[2]` -> `string<=8[2]`."""
    sequence = re.fullmatch(r"sequence<(.+?)(?:, *(\d+))?>", kind)
    if sequence:
        return f"{_as_msg(sequence[1])}[{f'<={sequence[2]}' if sequence[2] else ''}]"
    base, bracket, rest = kind.partition("[")
    base = re.sub(r"<(\d+)>$", r"<=\1", base)
    return _ROSIDL.get(base, base) + bracket + rest


_TOKEN = re.compile(r'"|::|[A-Za-z_]\w*|[-+\d.][\w.+-]*|[^\s\w]')
_ESCAPE = re.compile(r"\\.")
# Neither pattern scans a text more than once from a start that does not match: only the last quote can lack an end.
_NO_TOKENS = re.compile(r'"[^"]*"|//[^\n]*|^[ \t]*(?:#|=|IDL:)[^\n]*', re.MULTILINE)
_IDL_NUMBERS = {
    "boolean": "bool", "octet": "byte", "char": "char", "wchar": "wchar", "float": "float32", "double": "float64",
    "short": "int16", "long": "int32", "long long": "int64",
    "unsigned short": "uint16", "unsigned long": "uint32", "unsigned long long": "uint64",
    **{f"{sign}int{bits}": f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
}  # fmt: skip
_MAX_TOKENS = 200_000


def msg_of_idl(name: str, text: str) -> str:
    """The .msg text of a type and of the types it needs, from IDL; empty if the IDL cannot be read.

    Args:
        name: the type, `package/msg/Name`.
        text: the IDL files of the type and of the types it needs, one after the other.
    """
    try:
        structs = _Reader(text).structs
        first = structs.pop(_short("::".join(name.split("/"))))
    except (KeyError, ValueError, IndexError, RecursionError, RoboCacheError):
        return ""
    return "\n".join([first, *(f"{'=' * 80}\nMSG: {key}\n{body}" for key, body in structs.items())])


def _short(scoped: str) -> str:
    """`geometry_msgs::msg::Pose` -> `geometry_msgs/Pose`."""
    parts = scoped.split("::")
    return f"{parts[0]}/{parts[-1]}"


def _without_blocks(text: str) -> str:
    """The text without /* comments */."""
    first, *rest = text.split("/*")
    return " ".join([first, *(part.partition("*/")[2] for part in rest)])


class _Reader:
    def __init__(self, text: str) -> None:
        if len(text) > MAX_DEFINITION_BYTES:
            raise RoboCacheError(f"definition: {len(text)} characters; at most {MAX_DEFINITION_BYTES} are allowed")
        self._tokens: list[str] = _TOKEN.findall(_NO_TOKENS.sub(" ", _ESCAPE.sub("_", _without_blocks(text))))
        if len(self._tokens) > _MAX_TOKENS:
            raise RoboCacheError("definition: too long")
        self._at = 0
        self._scope: list[str] = []
        self._aliases: dict[str, tuple[str, str]] = {}  # typedefs: type and array
        self.structs: dict[str, str] = {}
        while self._at < len(self._tokens):
            self._declaration()

    def _next(self) -> str:
        self._at += 1
        return self._tokens[self._at - 1]

    def _peek(self) -> str:
        return self._tokens[self._at]

    def _expect(self, token: str) -> None:
        if (found := self._next()) != token:
            raise RoboCacheError(f"definition: expected {token}, got {printable(found, 20)}")

    def _declaration(self) -> None:
        self._annotations()
        word = self._next()
        if word == "module":
            self._scope.append(self._next())
            self._expect("{")
        elif word == "}":
            self._scope.pop()
            self._expect(";")
        elif word == "struct":
            name = self._next()
            self._expect("{")
            lines = list(self._members())
            self._expect(";")
            self.structs[_short("::".join([*self._scope, name]))] = "\n".join(lines)
        elif word == "typedef":
            kind, array = self._type()
            name = self._next()
            self._aliases[name] = kind, self._array(array)
            self._expect(";")
        elif word == "enum":
            self._aliases[self._next()] = "uint32", ""
            self._skip_past("}")
            self._expect(";")
        elif word == "const":
            self._skip_past(";")
        else:
            raise RoboCacheError(f"definition: cannot read {printable(word, 20)}")

    def _members(self) -> Iterator[str]:
        while True:
            self._annotations()
            if self._peek() == "}":
                self._at += 1
                return
            kind, array = self._type()
            while True:
                name = self._next()
                yield f"{kind}{self._array(array)} {name}"
                if self._next() == ";":
                    break

    def _type(self) -> tuple[str, str]:
        """The name of a type in .msg text, and the array in the brackets after it."""
        word = self._next()
        if word == "sequence":
            self._expect("<")
            kind, array = self._type()
            bound = f"<={self._next()}" if self._next() == "," else ""
            if bound:
                self._expect(">")
            if array:
                raise RoboCacheError("definition: a sequence of arrays")
            return kind, f"[{bound}]"
        if word in ("string", "wstring"):
            bound = ""
            if self._peek() == "<":
                self._at += 1
                bound = f"<={self._next()}"
                self._expect(">")
            return f"{word}{bound}", ""
        while word in ("unsigned", "long", "unsigned long") and self._peek() in ("short", "long"):
            word = f"{word} {self._next()}"
        if word in _IDL_NUMBERS:
            return _IDL_NUMBERS[word], ""
        while self._peek() == "::":
            self._at += 1
            word = f"{word}::{self._next()}"
        alias = self._aliases.get(word.rpartition("::")[2])
        return alias or (_short("::".join([*self._scope[:2], word]) if "::" not in word else word), "")

    def _array(self, array: str) -> str:
        """An array combined with the dimensions after its name."""
        count = 1
        while self._peek() == "[":
            self._at += 1
            count *= int(self._next())
            self._expect("]")
            if array.startswith("[") and not array[1:-1].isdigit():
                raise RoboCacheError("definition: an array of sequences")
        inner = int(array[1:-1]) if array[1:-1].isdigit() else 0
        return array if count == 1 else f"[{count * max(inner, 1)}]"

    def _annotations(self) -> None:
        while self._at < len(self._tokens) and self._peek() == "@":
            self._at += 2
            while self._peek() == "::":
                self._at += 2
            if self._peek() == "(":
                self._skip_past(")")

    def _skip_past(self, token: str) -> None:
        while self._next() != token:
            pass
