"""The parameters of nodes: how they are declared, and those of the fusion node."""

from __future__ import annotations

import textwrap
from collections.abc import Container, Iterable
from dataclasses import dataclass
from typing import Any

from rcl_interfaces.msg import FloatingPointRange, IntegerRange, ParameterDescriptor
from rclpy.exceptions import InvalidParameterTypeException, ParameterException
from rclpy.node import Node

from robocache_ros.errors import RoboCacheError, printable


@dataclass(frozen=True)
class Declared:
    """One parameter.

    Attributes:
        constraints: description of the allowed values.
        bounds: the smallest and the largest value of a number.
        read_only: whether it can only be set at the start; all others are read when the node is configured.
        dynamic: whether a value of any type can be given, such as a number for a text.
    """

    name: str
    default: bool | int | float | str
    description: str
    constraints: str = ""
    bounds: tuple[float, float] | None = None
    read_only: bool = False
    dynamic: bool = False

    def descriptor(self) -> ParameterDescriptor:
        """The descriptor that `ros2 param describe` shows."""
        made = ParameterDescriptor(
            description=self.description,
            additional_constraints=self.constraints,
            read_only=self.read_only,
            dynamic_typing=self.dynamic,
        )
        if self.bounds and isinstance(self.default, float):
            # Python's integers are not converted: they would arrive as other numbers.
            low, high = (float(bound) for bound in self.bounds)
            made.floating_point_range = [FloatingPointRange(from_value=low, to_value=high)]
        elif self.bounds:
            made.integer_range = [IntegerRange(from_value=int(self.bounds[0]), to_value=int(self.bounds[1]))]
        return made


PARAMETERS = (
    Declared("spec", "", "Path of the fusion spec (YAML)."),
    Declared("device", "auto", "Where ticks are computed.", "auto | cpu | cuda | cuda:<index>"),
    Declared(
        "normalized", False, "Whether frames hold images as normalised float32; otherwise 8-bit images stay uint8."
    ),
    Declared("jpeg", "cpu", "Where jpeg images are decoded. gpu is faster and differs by a few counts.", "cpu | gpu"),
    Declared(
        "payload_bytes",
        "",
        "Bytes of the largest image or cloud of each named stream. GPU memory for it is allocated when the node is "
        "configured, instead of at the first message.",
        "<stream>=<bytes>, ...",
    ),
    Declared(
        "reliable",
        False,
        "Subscribe to every topic as reliable with deep queues, for replays; overrides the spec's qos. "
        "Best effort publishers then do not match.",
    ),
    Declared(
        "autostart",
        False,
        "Configure and activate at the start, instead of waiting for lifecycle transitions.",
        read_only=True,
    ),
    Declared(
        "exit_on_error",
        False,
        "End the process with exit code 1 if autostart or a run fails, instead of waiting to be configured again.",
        read_only=True,
    ),
    Declared(
        "base_frame",
        "base_link",
        "Frame of the voxel clouds of streams with an extrinsic; other clouds keep the sensor's frame.",
    ),
    Declared(
        "ring_slots",
        8,
        "Frames kept in memory shared with consumers of this machine and user; 0 switches shared memory off.",
        bounds=(0, 1024),
    ),
    Declared(
        "record_run",
        "",
        "Path of a new file with all that the engine takes and a digest of each tick, for robocache replay; "
        "empty: none.",
    ),
    Declared("diagnostics_period_s", 1.0, "Seconds between messages on /diagnostics.", "", (0.1, 60.0), read_only=True),
)


def declare(node: Node, declared: Iterable[Declared]) -> None:
    """Declare every parameter with its description and its range."""
    for parameter in declared:
        node.declare_parameter(parameter.name, parameter.default, parameter.descriptor())


def read(node: Node, name: str) -> Any:
    """The value of a parameter."""
    return node.get_parameter(name).value


def help_text(declared: Iterable[Declared]) -> str:
    """Every parameter with its default, as `--help` shows them."""
    lines = ["parameters, each given as: --ros-args -p NAME:=VALUE"]
    for parameter in declared:
        default = str(parameter.default).lower() if isinstance(parameter.default, bool) else parameter.default
        values = f" [{parameter.constraints}]" if parameter.constraints else ""
        text = f"{parameter.description}{values} (default: {'empty' if default == '' else default})"
        lines += [f"  {parameter.name}", *textwrap.wrap(text, 78, initial_indent="      ", subsequent_indent="      ")]
    return "\n".join(lines)


def refused_change(
    changed: Iterable[str],
    node: str,
    *,
    configured: bool,
    active: bool,
    at_configure: Container[str],
) -> str:
    """Why these parameters cannot be changed now; empty if they can."""
    command = f"ros2 lifecycle set {node}"
    for name in changed:
        if configured and name in at_configure:
            steps = "deactivate and cleanup" if active else "cleanup"
            return f"{name}: is read when the node is configured; first call {steps} ({command} ...), then configure"
        if active and name == "use_sim_time":
            return f"{name}: is read when the node is activated; first call {command} deactivate"
    return ""


def refusal(error: ParameterException) -> str:
    """Why a parameter could not be declared: rclpy's text, and the correct notation of the value."""
    by_type = isinstance(error, InvalidParameterTypeException)
    return f"{error}{'; write a DOUBLE with a decimal point and a STRING of digits in quotes' if by_type else ''}"


def payload_bytes(node: Node) -> dict[str, int]:
    """The parameter `payload_bytes` by stream; RoboCacheError if an entry is not name=bytes."""
    sizes = {}
    given = read(node, "payload_bytes")
    for entry in given.split(",") if given.strip() else ():
        name, _, size = (part.strip() for part in entry.partition("="))
        if not (size.isascii() and size.isdecimal() and len(size) < 16 and int(size)):
            raise RoboCacheError(
                f"parameter payload_bytes: '{printable(entry.strip(), 60)}' is not <stream>=<bytes>; write for example "
                f"front=6220800,rear=6220800"
            )
        sizes[name] = int(size)
    return sizes
