"""A planar arm of three joints that reaches for a goal: its kinematics, an expert, and its messages.

The arm follows commanded joint velocities. Its joint states come at 100 Hz with jitter and a transport delay, the goal
at 20 Hz, and the expert commands at 40 Hz: none of them at the 50 Hz of the ticks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from test.fuzz.messages import header, numbers, serialize

LINKS_M = np.array([0.4, 0.3, 0.2])
START_RAD = np.array([0.6, 0.7, 0.5])
MAX_SPEED = 2.0  # rad/s
START_NS = 1_700_000_000_000_000_000
TYPES = {
    "/arm/joint_states": "sensor_msgs/msg/JointState",
    "/arm/goal": "geometry_msgs/msg/PointStamped",
    "/arm/command": "std_msgs/msg/Float64MultiArray",
}
SPEC = """
robocache: 1
rate_hz: 50
horizon: 2
delay_ms: 20
streams:
  joints:
    {topic: /arm/joint_states, type: sensor_msgs/msg/JointState, field: position, names: [shoulder, elbow, wrist],
     align: linear, max_gap_ms: 40}
  goal: {topic: /arm/goal, type: geometry_msgs/msg/PointStamped, field: point, align: hold, max_age_ms: 200}
  command:
    {topic: /arm/command, type: std_msgs/msg/Float64MultiArray, dim: 3, align: next, stamp: receive, max_age_ms: 100,
     role: action}
"""
Message = tuple[str, int, bytes]  # topic, arrival in ns, CDR
Float64 = NDArray[np.float64]


def tip(joints: Float64) -> Float64:
    """(..., 2) metres, the end of the arm at (..., 3) joint angles."""
    angles = np.cumsum(joints, axis=-1)
    return np.stack([(LINKS_M * np.cos(angles)).sum(-1), (LINKS_M * np.sin(angles)).sum(-1)], axis=-1)


def expert(joints: Float64, goal: Float64) -> Float64:
    """(3,) joint velocities towards a goal: damped least squares on the Jacobian."""
    angles = np.cumsum(joints)
    parts = np.stack([-LINKS_M * np.sin(angles), LINKS_M * np.cos(angles)])  # of each link, by its own angle
    jacobian = np.cumsum(parts[:, ::-1], axis=1)[:, ::-1]
    wanted = 4.0 * (goal - tip(joints))  # m/s
    velocity = jacobian.T @ np.linalg.solve(jacobian @ jacobian.T + 0.01 * np.eye(2), wanted)
    return np.clip(velocity, -MAX_SPEED, MAX_SPEED)


def random_goal(random: np.random.Generator) -> Float64:
    """(2,) metres, a goal that the arm can reach, on its left side."""
    radius, angle = random.uniform(0.45, 0.8), random.uniform(0.2, 2.0)
    return radius * np.array([np.cos(angle), np.sin(angle)])


@dataclass
class Arm:
    """The simulation: it moves with its velocity until a time, and returns the messages that are sent until then."""

    random: np.random.Generator
    goal: Float64
    joints: Float64 = field(default_factory=lambda: START_RAD.copy())
    velocity: Float64 = field(default_factory=lambda: np.zeros(3))
    now_ns: int = START_NS
    _joints_ns: int = START_NS  # when the next message is due
    _goal_ns: int = START_NS + 3_000_000

    def move(self, until_ns: int) -> Iterator[Message]:
        """Move until a time."""
        while min(self._joints_ns, self._goal_ns) <= until_ns:
            if self._joints_ns <= self._goal_ns:
                self._move(self._joints_ns)
                self._joints_ns += int(10e6 + self.random.uniform(-2e6, 2e6))
                values: dict[str, object] = {"name": ("shoulder", "elbow", "wrist"), "position": self.joints.tolist()}
                yield self._message("/arm/joint_states", 2_000_000, values)
            else:
                self._move(self._goal_ns)
                self._goal_ns += 50_000_000
                x, y = self.goal
                yield self._message("/arm/goal", 1_000_000, {"point": {"x": x, "y": y}})
        self._move(until_ns)

    def _message(self, topic: str, delay_ns: int, values: dict[str, object]) -> Message:
        data = serialize(TYPES[topic], {"header": header(self.now_ns), **values})
        return topic, self.now_ns + delay_ns, data

    def distance(self) -> float:
        """Metres from the tip to the goal."""
        return float(np.linalg.norm(tip(self.joints) - self.goal))

    def _move(self, to_ns: int) -> None:
        self.joints = self.joints + self.velocity * ((to_ns - self.now_ns) / 1e9)
        self.now_ns = to_ns


def random_arm(random: np.random.Generator) -> Arm:
    return Arm(random, random_goal(random), joints=START_RAD + random.normal(0, 0.3, 3))


def demonstration(seed: int, reaches: int, commands: int = 60) -> list[Message]:
    """The messages of a recording in which the expert reaches for one goal after the other, in order of arrival."""
    random = np.random.default_rng(seed)
    arm = random_arm(random)
    messages: list[Message] = []
    for command in range(reaches * commands):
        if command % commands == 0:
            arm.goal = random_goal(random)
        messages += arm.move(arm.now_ns + 25_000_000)
        arm.velocity = expert(arm.joints, arm.goal)
        messages.append(("/arm/command", arm.now_ns, numbers(*arm.velocity)))
        # The arm moves with some noise that is not recorded, so that the expert shows how to correct it.
        arm.velocity = arm.velocity + random.normal(0, 0.15, 3)
    return sorted(messages, key=lambda message: message[1])
