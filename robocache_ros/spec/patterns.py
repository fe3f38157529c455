"""Key types of the fusion spec for text with a specific syntax: names of topics, types and fields."""

from __future__ import annotations

import re

from robocache_ros.spec import keys
from robocache_ros.spec.message_types import full_type_hint

_TOPIC = r"^/[A-Za-z0-9_]+(/[A-Za-z0-9_]+)*$"  # ROS 1 allows a part to start with a digit
_TYPE = r"^[A-Za-z][A-Za-z0-9_]*/msg/[A-Za-z][A-Za-z0-9_]*$"
# ROS 2 fields are always lower case; ROS 1 and IDL fields may not be.
_FIELD = r"^[A-Za-z][A-Za-z0-9_]*(\[[0-9]{1,6}\])?(\.[A-Za-z][A-Za-z0-9_]*(\[[0-9]{1,6}\])?)*$"


def pattern(wanted: str, expression: str, hint: keys.Hint = keys.change_it) -> keys.KeyType:
    """Text that matches a regular expression completely; `wanted` describes it."""
    return keys.text(wanted, lambda raw: re.fullmatch(expression, raw) is not None, expression, hint)


topic_name = pattern("an absolute topic name such as /panda/joint_states", _TOPIC)
message_type = pattern("a message type such as sensor_msgs/msg/JointState", _TYPE, full_type_hint)
field_path = pattern("a field's path such as pose.orientation", _FIELD)
