"""The commands of a robot as messages: the inverse of the decoders, for streams with `role: action`.

The messages are CDR bytes, which a node publishes as they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from robocache_ros.alignments import alignment
from robocache_ros.decode.cdr import CdrWriter
from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.policy.joint_limits import ColumnLimits, column_limits, read_joints
from robocache_ros.policy.plan import ActionPlan
from robocache_ros.spec import FusionSpec, StreamSpec
from robocache_ros.spec.layout import Layout
from robocache_ros.spec.run import OutputSpec, RunOptions
from robocache_ros.units import NS_PER_S

Float32: TypeAlias = "NDArray[np.float32]"

JOINT_STATE = "sensor_msgs/msg/JointState"
TRAJECTORY = "trajectory_msgs/msg/JointTrajectory"
JOG = "control_msgs/msg/JointJog"
POSE = "geometry_msgs/msg/PoseStamped"
TWIST, TWIST_STAMPED = "geometry_msgs/msg/Twist", "geometry_msgs/msg/TwistStamped"
NUMBERS = {  # arrays and numbers without a stamp: whether it is an array, and the format of a value
    "std_msgs/msg/Float64MultiArray": (True, "d"),
    "std_msgs/msg/Float32MultiArray": (True, "f"),
    "std_msgs/msg/Float64": (False, "d"),
    "std_msgs/msg/Float32": (False, "f"),
}
# What the values of joints may be, the default first.
FIELDS = {
    JOINT_STATE: ("position", "velocity", "effort"),
    JOG: ("velocities", "displacements"),
    TRAJECTORY: ("positions",),
}
# The places of a message's numbers by their paths, without the part before them, such as `pose.`.
_POSE = [f"position.{axis}" for axis in "xyz"] + [f"orientation.{axis}" for axis in "xyzw"]
_TWIST = [f"{part}.{axis}" for part in ("linear", "angular") for axis in "xyz"]
PARTS = {POSE: ("pose.", _POSE), TWIST_STAMPED: ("twist.", _TWIST), TWIST: ("", _TWIST)}
TYPES = (*NUMBERS, *FIELDS, *PARTS)
VELOCITIES = (TWIST, TWIST_STAMPED, JOG)  # their receivers stop if commands end
INTERVENTION = "intervention"  # name of the value beside the columns of what was executed
MIN_POINTS = 2  # of a trajectory: one of a single point is never blended
AHEAD = 2  # ticks from now to the stamp of a trajectory, at least: one that begins in the past steps into its middle


class Output:
    """The commands of one action stream.

    Args:
        stream: the stream; its `offset`, which decoding subtracts, is added again in float64.
        output: where the commands go.
        columns: its columns of an action row.

    Attributes:
        topic, type: of the messages.
        offset: (D,) or (1,) float64, added to the values.
        is_velocity: whether the values are velocities, which must become zero when a run ends.
        is_trajectory: whether a message has the rows of several ticks.

    Raises:
        RoboCacheError: the type has no such output, or it is not safe.
    """

    def __init__(self, stream: StreamSpec, output: OutputSpec, columns: slice) -> None:
        self.name, self.columns = stream.name, columns
        self.topic, self.type = output.topic or stream.topic, output.type or stream.type
        self._where, self._frame, self._unit = f"run.outputs.{stream.name}", output.frame, stream.unit
        self.offset = np.array(stream.offset, np.float64) if stream.offset else np.zeros(1)
        self._names = output.names or stream.names
        if self.type not in TYPES:
            raise RoboCacheError(f"{self._where}: {self.type} is not an output; set its type to one of {_SHOWN}")
        same = self.type == stream.type
        given = output.field or (stream.paths[0].rpartition(".")[2] if same and self.type in FIELDS else "")
        self._field = given or FIELDS.get(self.type, ("",))[0]
        self._places = self._placed(stream)
        self._check(stream, output)

    def _placed(self, stream: StreamSpec) -> list[int]:
        """Return where each value goes among the numbers of a pose or a twist; empty for other types."""
        if self.type not in PARTS:
            return []
        prefix, parts = PARTS.get(stream.type, ("", []))
        if parts is not PARTS[self.type][1]:  # the values of another type go in the order of the parts
            return list(range(stream.dim))
        paths = [path.removeprefix(prefix) for path in stream.paths]
        return [place for path in paths for place, part in enumerate(parts) if f"{part}.".startswith(f"{path}.")]

    def _check(self, stream: StreamSpec, output: OutputSpec) -> None:
        where = self._where
        if self.type in FIELDS and self._field not in FIELDS[self.type]:
            raise RoboCacheError(
                f"{where}.field: {self._field!r} is not one of {', '.join(FIELDS[self.type])}; use one"
            )
        if self.type in FIELDS and len(self._names) != stream.dim:
            raise RoboCacheError(f"{where}.names: {len(self._names)} joints for {stream.dim} values; name each joint")
        wanted = len(PARTS[self.type][1]) if self.type in PARTS else 0
        complete = len(self._places) == stream.dim and (self.type != POSE or stream.dim == wanted)
        if wanted and not (complete and stream.dim <= wanted):
            raise RoboCacheError(
                f"{where}: {self.type} takes {wanted} values, and the stream has {stream.dim}; give all of them"
            )
        if self.type in NUMBERS and not NUMBERS[self.type][0] and stream.dim != 1:
            raise RoboCacheError(f"{where}: {self.type} takes one value, not {stream.dim}; use a MultiArray")
        self.is_trajectory = self.type == TRAJECTORY
        self.is_velocity = (
            (self.type in VELOCITIES and self._field != "displacements")
            or self._field == "velocity"
            or stream.unit.endswith("/s")
        )
        if self.is_velocity and self.type not in VELOCITIES and not output.accept_no_timeout:
            raise RoboCacheError(
                f"{where}: velocities as {self.type.rpartition('/')[2]} have no timeout, and motion would not end with "
                "this program; use TwistStamped or JointJog, or set accept_no_timeout"
            )

    @property
    def is_stamped(self) -> bool:
        """Whether its messages begin with a header."""
        return self.type not in NUMBERS and self.type != TWIST

    def joint_limits(self, urdf: str, max_speed: float, period_s: float) -> ColumnLimits:
        """Return the limits of its columns that a URDF states.

        Raises:
            RoboCacheError: the text is not a URDF, or does not limit each of the joints.
        """
        where = f"{self._where}.urdf"
        if len(self._names) != self.columns.stop - self.columns.start:
            raise RoboCacheError(f"{where}: needs a joint for each value; name them in {self._where}.names")
        if self.type in PARTS or self._field in ("effort", "displacements"):
            raise RoboCacheError(f"{where}: limits positions and velocities of joints only; leave it out")
        found = column_limits(
            read_joints(urdf, where),
            self._names,
            self._unit,
            velocities=self.is_velocity,
            max_speed=max_speed,
            period_s=period_s,
            where=where,
        )
        return found._replace(lower=found.lower - self.offset, upper=found.upper - self.offset)

    def message(self, row: Float32, stamp_ns: int, period_ns: int) -> bytes:
        """Return the message of one row.

        Args:
            row: (A,) float32, the row of all streams.
            stamp_ns: time of sending: Servo ignores older commands.
            period_ns: of the ticks.
        """
        return self._message(self._values(row), stamp_ns, period_ns)

    def zero(self, stamp_ns: int, period_ns: int) -> bytes:
        """Return the message of zero velocity."""
        return self._message(np.zeros(self.columns.stop - self.columns.start), stamp_ns, period_ns)

    def trajectory(self, rows: Float32, stamp_ns: int, offsets_ns: Sequence[int]) -> bytes:
        """Return a trajectory of positions.

        It has no velocities, and begins after its stamp, so that each generation of JointTrajectoryController executes
        the rows at their times.

        Args:
            rows: (N, A) float32, at least two.
            stamp_ns: before the first row.
            offsets_ns: of each row, from the stamp.
        """
        cdr = CdrWriter().header(stamp_ns, self._frame).texts(self._names).put("I", len(rows))
        for row, offset_ns in zip(rows, offsets_ns, strict=True):
            cdr.doubles(self._values(row)).put("I", 0, 0, 0)  # velocities, accelerations, effort
            cdr.put("i", offset_ns // NS_PER_S).put("I", offset_ns % NS_PER_S)
        return cdr.done()

    def _values(self, row: Float32) -> NDArray[np.float64]:
        return row[self.columns].astype(np.float64) + self.offset

    def _message(self, values: NDArray[np.float64], stamp_ns: int, period_ns: int) -> bytes:
        cdr = CdrWriter()
        if self.type in NUMBERS:
            is_array, form = NUMBERS[self.type]
            if is_array:
                cdr.put("I", 0, 0, len(values))  # no dimensions, data_offset
            return cdr.put(form, *values.tolist()).done()
        if self.is_stamped:
            cdr.header(stamp_ns, self._frame)
        if self.type in PARTS:
            numbers = np.zeros(len(PARTS[self.type][1]))
            numbers[self._places] = values
            return cdr.put("d", *numbers.tolist()).done()
        cdr.texts(self._names)
        for field in FIELDS[JOINT_STATE] if self.type == JOINT_STATE else ("displacements", "velocities"):
            cdr.doubles(values if field == self._field else np.zeros(0))
        if self.type == JOG:
            cdr.put("d", period_ns / NS_PER_S)
        return cdr.done()


_SHOWN = ", ".join(name.rpartition("/")[2] for name in TYPES if name not in (TWIST, *list(NUMBERS)[1:]))


def run_offset(spec: FusionSpec, options: RunOptions) -> int:
    """Return the ticks from an observation to the first row of its chunk: those of the run, else of the dataset."""
    if options.offset is not None:
        return options.offset
    return spec.dataset.offset_ticks(spec.rate_hz) if spec.dataset else 0


@dataclass(frozen=True)
class Limits:
    """The limits of commands.

    Attributes:
        lower, upper: (A,) of each column; None: no limit.
        max_step: (A,) largest change from one tick to the next; None: no limit.
        coast_ticks: ticks without a command before the run stops.
        invalid_ticks: ticks of an invalid required stream before the run stops.
    """

    lower: Float32 | None = None
    upper: Float32 | None = None
    max_step: Float32 | None = None
    coast_ticks: int = RunOptions.coast_ticks
    invalid_ticks: int = RunOptions.invalid_ticks

    def arrays(self) -> dict[str, Float32]:
        """Return the limits of the columns that there are, by name."""
        found = {"lower": self.lower, "upper": self.upper, "max_step": self.max_step}
        return {name: values for name, values in found.items() if values is not None}

    def __post_init__(self) -> None:
        if self.lower is not None and self.upper is not None and (self.lower > self.upper).any():
            raise RoboCacheError("limits: lower is above upper; exchange them")


class Outputs:
    """The outputs of a spec, and what it says about the columns of an action row.

    Args:
        spec: of the robot.
        options: of the run.
        urdfs: the texts of the URDFs that outputs name, by the key `urdf`.

    Attributes:
        spec, options: as given.
        names: (A,) of the columns, such as `action.joint1`.
        blending: (A,) the alignment by which each column is blended; `hold`: never.
        limits: of the commands.

    Raises:
        RoboCacheError: the spec has no action, or one that cannot be sent.
    """

    def __init__(self, spec: FusionSpec, options: RunOptions, urdfs: Mapping[str, str] | None = None) -> None:
        self.spec, self.options = spec, options
        streams = Layout(spec).vectors_of("action")
        if not streams:
            raise RoboCacheError("streams: none has role: action; give the stream of the commands this role")
        self.outputs: list[Output] = []
        names: list[str] = []
        blending: list[str] = []
        for stream in streams:
            if stream.label == "delta":
                raise RoboCacheError(f"streams.{stream.name}.label: deltas are not sent; train on absolute commands")
            output, start = options.output(stream.name), len(names)
            self.outputs.append(Output(stream, output, slice(start, start + stream.dim)))
            names += [f"{stream.name}.{component}" for component in stream.components]
            blending += _blending(stream, output)
        self.names, self.blending = tuple(names), tuple(blending)
        bounds = {
            key: self._columns([(stream.dim, getattr(options.output(stream.name), key)) for stream in streams], key)
            for key in ("lower", "upper", "max_step")
        }
        for each in self.outputs:
            if urdf := options.output(each.name).urdf:
                if urdf not in (urdfs or {}):
                    raise RoboCacheError(f"run.outputs.{each.name}.urdf: {printable(urdf, 60)} was not read; read it")
                self._limit(bounds, each, (urdfs or {})[urdf])
        self.options = options.without_urdfs()  # the limits have them
        self.limits = Limits(**bounds, coast_ticks=options.coast_ticks, invalid_ticks=options.invalid_ticks)

    def plan(self) -> ActionPlan:
        """Return a plan of its columns, without rows."""
        return ActionPlan(self.blending, self.options, run_offset(self.spec, self.options))

    @property
    def velocities(self) -> list[Output]:
        """The outputs of velocities."""
        return [output for output in self.outputs if output.is_velocity]

    @cached_property
    def width(self) -> int:
        """A: number of columns."""
        return len(self.names)

    def executed(self, row: Float32 | None, tick_ns: int, *, intervention: bool) -> bytes:
        """Return what was sent at a tick as a sensor_msgs/JointState, which a stream of a spec can read by name.

        Args:
            row: (A,) float32; None: nothing was sent, so that its values are NaN.
            tick_ns: time of the tick, the stamp.
            intervention: whether it is the operator's; the value of the name `intervention`, 0 or 1.
        """
        values = np.full(self.width, np.nan) if row is None else row.astype(np.float64)
        cdr = CdrWriter().header(tick_ns, "").texts((*self.names, INTERVENTION))
        return cdr.doubles(np.append(values, float(intervention))).put("I", 0, 0).done()  # velocity, effort

    def _limit(self, bounds: dict[str, Float32 | None], output: Output, urdf: str) -> None:
        """Narrow the limits of the columns of an output to those of a URDF."""
        found = output.joint_limits(urdf, self.options.output(output.name).max_speed, 1 / self.spec.rate_hz)
        for key, values in found._asdict().items():
            narrower, free = (np.maximum, -np.inf) if key == "lower" else (np.minimum, np.inf)
            limits = bounds[key]
            if limits is None:
                limits = bounds[key] = np.full(self.width, free, np.float32)
            limits[output.columns] = narrower(limits[output.columns], values)
        lower, upper = bounds["lower"], bounds["upper"]
        if lower is not None and upper is not None and (excluded := np.flatnonzero(lower > upper)).size:
            name = self.names[excluded[0]]
            raise RoboCacheError(f"run.outputs.{output.name}.urdf: allows no value of {name}; correct lower and upper")

    def _columns(self, given: list[tuple[int, tuple[float, ...]]], key: str) -> Float32 | None:
        """Return (A,) limits of the columns; None if there are none."""
        if not any(values for _, values in given):
            return None
        free = -np.inf if key == "lower" else np.inf
        parts = []
        for output, (dim, values) in zip(self.outputs, given, strict=True):
            if len(values) not in (0, 1, dim):
                raise RoboCacheError(
                    f"run.outputs.{output.name}.{key}: {len(values)} values for {dim}; give one, or one for each"
                )
            parts.append(np.full(dim, values[0] if len(values) == 1 else (values or free), np.float32))
        return np.concatenate(parts)


def _blending(stream: StreamSpec, output: OutputSpec) -> list[str]:
    """Return how each column of a stream is blended."""
    unknown = [name for name in output.discrete if name not in stream.components]
    if unknown:
        known = ", ".join(stream.components)
        raise RoboCacheError(f"run.outputs.{stream.name}.discrete: no {unknown[0]!r}; it has {known}")
    method = stream.method if stream.computes and not stream.reduce else "linear"
    if alignment(method).group == 1 and stream.is_rotation:
        if stream.is_transform:
            return ["linear"] * 3 + ["slerp"] * 4
        ends = [path.rpartition(".")[2] for path in stream.paths]
        widths = [4 if end in ("orientation", "rotation") else 3 for end in ends]
        if sum(widths) == stream.dim:
            return [name for width in widths for name in ["slerp" if width == 4 else "linear"] * width]
        method = "hold"  # parts of a rotation
    return ["hold" if name in output.discrete else method for name in stream.components]
