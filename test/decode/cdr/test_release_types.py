"""Types whose layout depends on the release of their package."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from rosbags.typesys import Stores, get_types_from_msg, get_typestore

from robocache_ros.bags.reader import RELEASES, find_release

STATE = "control_msgs/msg/JointTrajectoryControllerState"


def message(text: str, joints: int, feedback: bool = True) -> bytes:
    """A controller's state as a release serializes it; its optional lists are empty or not."""
    store = get_typestore(Stores.ROS2_JAZZY)
    store.register(get_types_from_msg(text, STATE))
    types: Any = store.types
    duration = types["builtin_interfaces/msg/Duration"](0, 0)
    some, none = np.linspace(0, 1, joints), np.empty(0)
    single = types["trajectory_msgs/msg/JointTrajectoryPoint"](some, some if feedback else none, none, none, duration)
    several = types["trajectory_msgs/msg/MultiDOFJointTrajectoryPoint"]([], [], [], duration)
    header = types["std_msgs/msg/Header"](types["builtin_interfaces/msg/Time"](7, 8), "base")
    values = {"header": header, "joint_names": [f"joint_{k}" for k in range(joints)], "multi_dof_joint_names": []}
    names = [line.split()[1] for line in text.strip().splitlines()]
    fields = [values.get(name, several if name.startswith("multi_dof_") else single) for name in names]
    return bytes(store.serialize_cdr(types[STATE](*fields), STATE))


@pytest.mark.parametrize("text", RELEASES[STATE])
@pytest.mark.parametrize("joints", [1, 2, 6, 7])
def test_messages_tell_the_release_that_serialized_them(text: str, joints: int) -> None:
    assert find_release(STATE, [message(text, joints), message(text, joints, feedback=False)]) == text


def test_messages_of_no_known_release_have_none() -> None:
    data = message(RELEASES[STATE][0], 6)
    assert find_release(STATE, [data[:-8]]) is None
    assert find_release(STATE, [data + bytes(8)]) is None
    assert find_release(STATE, []) is None
    assert find_release("sensor_msgs/msg/JointState", [data]) is None
