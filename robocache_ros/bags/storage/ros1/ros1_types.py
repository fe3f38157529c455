"""Types of ROS 1 as those of ROS 2: names, and definitions with other names for numbers, times and the header."""

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
    """A definition with the types it needs, as ROS 2 writes it; comments and constants are left out.

    Errors:
        RoboCacheError: the text has no such form, or is too long.
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
                lines.append(line)  # whoever reads the definition refuses it
            continue
        kind, array, field, constant = match.groups()
        if not constant:
            field = field.lower() if name == _LOWER_CASE else field
            lines.append(f"{_OTHER_NAMES.get(kind, kind)}{array} {field}")
    return "\n".join(lines)
