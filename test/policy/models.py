"""Models of what a runner talks to: a policy, and the controllers, written from the sources of ros2_controllers."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from robocache_ros.engine.frames import FusedFrame
from robocache_ros.policy.plan import Chunk, Prefix
from robocache_ros.policy.runner import Reply

GENERATIONS = ("at once", "deferred", "spliced")
ARRAY, JOINT = "std_msgs/msg/Float64MultiArray", "sensor_msgs/msg/JointState"
ARM: dict[str, dict[str, Any]] = {  # streams of two joints and their commands
    "joints": {"topic": "/joints", "type": JOINT, "names": ["a", "b"]},
    "action": {"topic": "/command", "type": ARRAY, "dim": 2, "align": "hold", "role": "action"},
}


@cache
def store() -> Any:
    from rosbags.typesys import Stores, get_typestore

    return get_typestore(Stores.ROS2_KILTED)


def read(data: bytes, type_name: str) -> Any:
    return store().deserialize_cdr(data, type_name)


def stamp_ns(message: Any) -> int:
    return int(message.header.stamp.sec) * 10**9 + int(message.header.stamp.nanosec)


class FakeWorker:
    """A policy that answers when the test tells it to: row i of a chunk of tick k is `f(k + i)`, in each column."""

    def __init__(self, rows: int = 40, f: Callable[[int], float] = float) -> None:
        self.requests: list[int] = []
        self.replies: list[Reply] = []
        self.dead = ""
        self.prefix: Prefix | None = None
        self.observed: list[int] = []
        self.restarts = 0
        self._rows, self._f = rows, f

    @property
    def busy(self) -> bool:
        return bool(self.requests)

    def observe(self, frame: FusedFrame, tick: int) -> None:
        self.observed.append(tick)

    def submit(self, frame: FusedFrame, tick: int, prefix: Prefix | None = None) -> None:
        self.requests.append(tick)
        self.prefix = prefix

    def answer(self) -> None:
        tick = self.requests.pop()
        values = [self._f(tick + i) for i in range(self._rows)]
        self.replies.append(Reply(tick, Chunk(tick, np.array([values] * 2, np.float32).T), 12.5))

    def poll(self) -> list[Reply]:
        replies, self.replies = self.replies, []
        return replies

    def restart(self) -> None:
        self.restarts += bool(self.dead)
        self.dead = ""

    def close(self) -> None: ...


class TrajectoryController:
    """JointTrajectoryController with `interpolate_from_desired_state`, on positions.

    Args:
        generation: the outcome of a trajectory whose stamp is in the future. `at once` (Humble, Jazzy, Kilted): the
            running one is dropped, and a ramp leads from the last command to the first point; `deferred` (6.9): it
            begins at its stamp; `spliced` (master): the running one is followed until the stamp. A stamp in the past
            skips points, and `spliced` shifts the trajectory to now while another one runs.
        start: (D,) the position before any trajectory.
    """

    def __init__(self, generation: str, start: np.ndarray) -> None:
        self.generation = generation
        self._times: np.ndarray = np.array([-(2**62)])
        self._points = start[None].astype(np.float64)
        self._next: tuple[int, np.ndarray, np.ndarray] | None = None

    def receive(self, messages: list[bytes], now_ns: int) -> None:
        for data in messages:
            self._receive(read(data, "trajectory_msgs/msg/JointTrajectory"), now_ns)

    def _receive(self, message: Any, now_ns: int) -> None:
        begin_ns = stamp_ns(message)
        offsets = [p.time_from_start.sec * 10**9 + p.time_from_start.nanosec for p in message.points]
        assert offsets[0] > 0
        assert (np.diff(offsets) > 0).all()
        assert not any(len(p.velocities) for p in message.points)
        assert len(offsets) >= 2
        if begin_ns < now_ns and self.generation == "spliced" and now_ns < self._times[-1]:
            begin_ns = now_ns
        times = begin_ns + np.array(offsets)
        points = np.array([p.positions for p in message.points])
        assert times[-1] > now_ns, "rejected: the trajectory has ended"
        if self.generation == "at once":
            here = self.command(now_ns)
            self._times, self._points = np.append(now_ns, times), np.vstack([here, points])
        else:
            self._next = (begin_ns, times, points)

    def command(self, now_ns: int) -> np.ndarray:
        if self._next and now_ns >= self._next[0]:
            begin_ns, times, points = self._next
            here = self._at(begin_ns)
            self._times, self._points = np.append(begin_ns, times), np.vstack([here, points])
            self._next = None
        return self._at(now_ns)

    def _at(self, now_ns: int) -> np.ndarray:
        after = int(np.searchsorted(self._times, now_ns, side="right"))  # a point holds at its time, to the bit
        if after == 0 or after == len(self._times):
            return self._points[max(after - 1, 0)]
        begin, end = self._times[after - 1 : after + 1]
        share = float(now_ns - begin) / float(end - begin)
        return self._points[after - 1] + share * (self._points[after] - self._points[after - 1])
