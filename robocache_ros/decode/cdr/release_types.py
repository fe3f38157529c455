"""Message types that differ between releases of their package; the messages themselves show which release it is."""

from __future__ import annotations

from collections.abc import Iterable

from robocache_ros.decode.cdr.definitions import message_type
from robocache_ros.decode.cdr.whole_message import message_end
from robocache_ros.decode.payloads import Buffer, DecodeError

_PADDING = 4  # some middlewares round the size of a message up to a multiple of this

_HEAD = "std_msgs/Header header\nstring[] joint_names\n"


def _points(kind: str, names: Iterable[str], prefix: str = "") -> str:
    return "".join(f"trajectory_msgs/{kind} {prefix}{name}\n" for name in names)


def _controller_state(names: tuple[str, ...]) -> str:
    several = _points("MultiDOFJointTrajectoryPoint", names, "multi_dof_")
    return f"{_HEAD}{_points('JointTrajectoryPoint', names)}string[] multi_dof_joint_names\n{several}"


_NEW = ("reference", "feedback", "error", "output")

# For each type, the .msg text of each release.
RELEASES = {
    "control_msgs/msg/JointTrajectoryControllerState": (
        _HEAD + _points("JointTrajectoryPoint", ("desired", "actual", "error")),
        _controller_state((*_NEW, "desired", "actual")),
        _controller_state(_NEW),
    )
}


def find_release(name: str, messages: Iterable[Buffer]) -> str | None:
    """The .msg text of the release whose layout ends where each of the messages ends; None if there is none."""
    samples = list(messages)
    for text in RELEASES.get(name, ()) if samples else ():
        layout = message_type(name, {name: text})
        try:
            rests = [len(data) - message_end(layout, data) for data in samples]
        except DecodeError:
            continue
        if all(0 <= rest < _PADDING for rest in rests):
            return text
    return None
