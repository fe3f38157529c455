"""Converts ROS 1 types to ROS 2: type names, and definitions with the ROS 2 names of numbers, times and the header."""

from __future__ import annotations

import re

from robocache_ros.decode.cdr.definitions import HEADER, full_name, split_definitions

_RENAMED = {"tf/msg/tfMessage": "tf2_msgs/msg/TFMessage"}
_TIMES = {"time": "builtin_interfaces/Time", "duration": "builtin_interfaces/Duration"}
_OTHER_NAMES = {"byte": "int8", "char": "uint8", **_TIMES}
_HEADER = "builtin_interfaces/Time stamp\nstring frame_id"  # without seq, which ROS 2 does not have
_LOWER_CASE = "sensor_msgs/msg/CameraInfo"  # D K R P in ROS 1, d k r p in ROS 2
_FIELD = re.compile(r"\s*([A-Za-z][\w/]*)((?:\[\d*\])?)\s+([A-Za-z]\w*)\s*(=?)")


def ros2_type(name: str) -> str:
    """`sensor_msgs/Imu` -> `sensor_msgs/msg/Imu`."""
    full = full_name(name)
    return _RENAMED.get(full, full)


def ros2_definition(name: str, text: str) -> str:
    """Convert a definition and its dependencies to ROS 2 form; comments and constants are omitted.

    Errors:
        RoboCacheError: the text is not a message definition, or is too long.
    """
    first, *others = split_definitions(name, text).items()
    parts = [_translated(*first), *(f"{'=' * 80}\nMSG: {key}\n{_translated(key, body)}" for key, body in others)]
    return "\n".join(parts)


def _translated(name: str, text: str) -> str:
    if name == HEADER:
        return _HEADER
    lines = []
    for line in text.splitlines():
        match = _FIELD.match(line.partition("#")[0])
        if match is None:
            if line.partition("#")[0].strip():
                lines.append(line)  # the parser of the definition reports the error
            continue
        kind, array, field, constant = match.groups()
        if not constant:
            field = field.lower() if name == _LOWER_CASE else field
            lines.append(f"{_OTHER_NAMES.get(kind, kind)}{array} {field}")
    return "\n".join(lines)
