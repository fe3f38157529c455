"""The parameters of the fusion node."""

from __future__ import annotations

from typing import Any

from rcl_interfaces.msg import FloatingPointRange, IntegerRange, ParameterDescriptor
from rclpy.exceptions import InvalidParameterTypeException, ParameterException
from rclpy.node import Node

from robocache_ros.errors import RoboCacheError


def declare(node: Node) -> None:
    """Declare every parameter with its description and its range."""
    node.declare_parameter("spec", "", _described("Path of the fusion spec (YAML). Read when the node is configured."))
    node.declare_parameter(
        "device",
        "auto",
        _described("Where ticks are computed. Read when the node is configured.", "auto | cpu | cuda | cuda:<index>"),
    )
    node.declare_parameter(
        "normalized",
        False,
        _described("Images in frames as float32, normalised as the spec says; else 8-bit ones as uint8."),
    )
    node.declare_parameter(
        "jpeg",
        "cpu",
        _described("Where jpeg images are decoded: gpu is faster, and differs by a few counts.", "cpu | gpu"),
    )
    node.declare_parameter(
        "payload_bytes",
        "",
        _described(
            "Bytes of the largest image or cloud of a stream, as stream=bytes with commas between: GPU memory is then"
            " taken, and its size shown, when the node is configured, and not at the first message.",
            "<stream>=<bytes>, ...",
        ),
    )
    node.declare_parameter(
        "autostart",
        False,
        _described("Configure and activate at the start, instead of waiting for lifecycle transitions.", fixed=True),
    )
    node.declare_parameter(
        "base_frame",
        "base_link",
        _described("Frame of the voxel clouds of streams with an extrinsic; without one they keep the sensor's frame."),
    )
    slots = _described(
        "Frames kept in memory that consumers of this machine and user map, so that nothing is copied to them; 0: none."
        " Read when the node is configured."
    )
    slots.integer_range = [IntegerRange(from_value=0, to_value=1024)]
    node.declare_parameter("ring_slots", 8, slots)
    period = _described("Seconds between two messages on /diagnostics.", fixed=True)
    period.floating_point_range = [FloatingPointRange(from_value=0.1, to_value=60.0)]
    node.declare_parameter("diagnostics_period_s", 1.0, period)


def read(node: Node, name: str) -> Any:
    """The value of a parameter."""
    return node.get_parameter(name).value


def refusal(error: ParameterException) -> str:
    """Why a parameter could not be declared: rclpy names it, its value and what it takes; this adds how to write it."""
    by_type = isinstance(error, InvalidParameterTypeException)
    return f"{error}{'; a DOUBLE has a point, a STRING of digits quotes' if by_type else ''}"


def payload_bytes(node: Node) -> dict[str, int]:
    """The parameter `payload_bytes` by stream; RoboCacheError where an entry is not name=bytes."""
    sizes = {}
    given = read(node, "payload_bytes")
    for entry in given.split(",") if given.strip() else ():
        name, _, size = (part.strip() for part in entry.partition("="))
        if not size.isdecimal() or not int(size):
            raise RoboCacheError(
                f"parameter payload_bytes: {entry.strip()!r} is not <stream>=<bytes>, as in front=6220800,rear=6220800"
            )
        sizes[name] = int(size)
    return sizes


def _described(description: str, constraints: str = "", fixed: bool = False) -> ParameterDescriptor:
    return ParameterDescriptor(description=description, additional_constraints=constraints, read_only=fixed)
