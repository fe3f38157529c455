"""SimClockSource: arrivals by /clock, clocks that jump, and invalid ones."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("rclpy")
from rosgraph_msgs.msg import Clock
from sensor_msgs.msg import JointState
from std_msgs.msg import Float32MultiArray

from robocache_ros.engine import FusionEngine
from robocache_ros.engine.engine import Outcome
from robocache_ros.nodes import frame_messages, middleware, tick_loop
from robocache_ros.nodes.sim_timeline import CLOCK_HISTORY, SimTimeline, read_clock
from robocache_ros.nodes.subscriptions import ReceivedMessage
from robocache_ros.nodes.tick_loop import ClockReader, SimClockSource
from robocache_ros.spec import QosSpec, load_spec
from test.nodes.rig import clock_cdr, repeating, stamped, until

S = 1_000_000_000


def test_message_arrives_at_the_sim_time_of_the_clock_before_it_in_a_bounded_history():
    timeline = SimTimeline()
    for source, sim in ((100, 7), (200, 8), (300, 9)):
        timeline.add(source, sim)

    assert [timeline.arrival_ns(t) for t in (99, 100, 199, 200, 299, 300, 1000)] == [7, 7, 7, 8, 8, 9, 9]

    timeline = SimTimeline()
    for index in range(5 * CLOCK_HISTORY):
        timeline.add(index, index)

    assert timeline.arrival_ns(0) >= 3 * CLOCK_HISTORY
    assert timeline.now_ns == 5 * CLOCK_HISTORY - 1


class FakeTopics:
    """A small topic whose messages a test makes wait; `push` is called with the arrival of each."""

    def __init__(self, push: Callable[[int], None]) -> None:
        self.topics = [SimpleNamespace(large=False, qos=QosSpec(depth=50), subscription=None)]
        self.waiting: list[int] = []  # times of publication
        self.push = lambda topic, message, arrival_ns: push(arrival_ns)

    def provide_buffers(self) -> None: ...

    def take_from(self, topic: Any, limit: int) -> list[tuple[Any, ReceivedMessage]]:
        return [(topic, ReceivedMessage(b"", self.waiting.pop(), 0))] if self.waiting else []


class Simulation:
    """Publishes /clock and joints to an active node."""

    def __init__(self, rig: Any, spec: dict[str, Any]) -> None:
        self.rig = rig
        rig.fusion(spec, use_sim_time=True).autostart()
        self.fused = rig.listen(Float32MultiArray, "/fusion_node/fused")
        self.clock = rig.publisher(Clock, "/clock")
        self._joints = rig.publisher(JointState, "/joints")
        topics = (self.clock.get_subscription_count, self._joints.get_subscription_count,
                  self.fused.subscription.get_publisher_count)  # fmt: skip
        until(lambda: all(matched() for matched in topics), "the node")

    def step(self, now_ns: int) -> None:
        self._now_ns = now_ns
        self.clock.publish(clock_cdr(now_ns))
        self._joints.publish(stamped(JointState(name=["a", "b"], position=[now_ns / S, 0.0]), now_ns))

    def run(self, first_ns: int, last_ns: int) -> None:
        for now_ns in range(first_ns, last_ns + 1, 10_000_000):
            self.step(now_ns)

    def ticks(self) -> list[int]:
        return [frame_messages.read_fused(message)[0] for message in self.fused.messages]

    def until_tick(self, tick_ns: int) -> None:
        """Wait for a tick; the clock moves on by 1 ns, again and again, since a subscriber may lose a message."""
        again = repeating(lambda: self.clock.publish(clock_cdr(self._now_ns + 1)), lambda: tick_ns in self.ticks())
        until(again, f"tick {tick_ns}")


class EndlessTopics:
    """A small and a large topic that always have a message."""

    def __init__(self, rig: Any) -> None:
        self.topics = [self._topic(rig, large) for large in (False, True)]
        self.pushed: list[Any] = []

    def _topic(self, rig: Any, large: bool) -> Any:
        subscription = rig.node.create_subscription(
            JointState, f"/{large}", lambda _: None, 5, raw=True, callback_group=middleware.ManualCallbackGroup()
        )
        return SimpleNamespace(large=large, subscription=subscription, qos=QosSpec(depth=50))

    def provide_buffers(self) -> None:
        pass

    def take_from(self, topic: Any, limit: int) -> list[tuple[Any, ReceivedMessage]]:
        return [(topic, ReceivedMessage(b"", 1, 1))] * limit

    def push(self, topic: Any, message: ReceivedMessage, arrival_ns: int) -> None:
        self.pushed.append(topic.large)


def test_messages_that_wait_for_the_clock_are_bounded(rig, monkeypatch):
    monkeypatch.setattr(tick_loop, "MAX_WAITING", {"small": 120, "large": 60})
    endless = EndlessTopics(rig)
    engine = FusionEngine(
        load_spec({"robocache": 1, "streams": {"a": {"topic": "/a", "type": "std_msgs/msg/Float64", "dim": 1}}})
    )
    source = SimClockSource(endless, engine, ClockReader(rig.node, Counter()))
    among: list[Any] = []
    monkeypatch.setattr(source._waiter, "wait", lambda timeout_ns, topics: among.append(len(topics)))

    for _ in range(4):
        source.wait()
        assert not list(source.step())

    assert Counter(topic.large for topic, _ in source._pending) == {False: 120, True: 60}
    assert among == [3, 3, 2, 1]  # subscriptions that it waits for: of /clock alone in the end
    monkeypatch.setattr(source, "_take_clocks", lambda: [(2, 5 * S)])
    list(source.step())
    assert Counter(endless.pushed) == {False: 120, True: 60}
    assert not source._pending
    source.destroy()


def test_message_that_the_transport_held_back_is_late_and_does_not_restart_the_timeline(rig, monkeypatch):
    spec = {"robocache": 1, "streams": {"a": {"topic": "/a", "type": "std_msgs/msg/Float64", "stamp": "receive"}}}
    engine = FusionEngine(load_spec(spec))
    outcomes: list[Outcome] = []
    topics = FakeTopics(lambda arrival_ns: outcomes.append(engine.push("a", None, arrival_ns, np.ones(1, "f4"))))
    source = SimClockSource(topics, engine, ClockReader(rig.node, Counter()))
    clocks = [(ns, ns) for ns in range(5 * S, 7 * S, S // 100)]  # each published at its own time
    monkeypatch.setattr(source, "_take_clocks", lambda: clocks)
    ticks = sum(len(frames) for frames in source.step())

    clocks, topics.waiting = [(7 * S, 7 * S)], [6 * S]
    ticks += sum(len(frames) for frames in source.step())

    assert outcomes == [Outcome.LATE]
    assert engine.clock_jumps == 0
    assert ticks == 97  # from 5 s until before 60 ms, the delay, before 7 s
    source.destroy()


@pytest.mark.parametrize("together", [True, False])
def test_a_message_at_the_deadline_of_a_tick_is_in_it_however_clocks_are_batched(rig, monkeypatch, together):
    stream = {"topic": "/a", "type": "sensor_msgs/msg/JointState", "names": ["x"], "align": "hold"}
    engine = FusionEngine(load_spec({"robocache": 1, "rate_hz": 50, "delay_ms": 20, "streams": {"a": stream}}))
    outcomes: list[Outcome] = []
    topics = FakeTopics(
        lambda arrival_ns: outcomes.append(engine.push("a", 5 * S + 10_000_000, arrival_ns, np.ones(1, "f4")))
    )
    source = SimClockSource(topics, engine, ClockReader(rig.node, Counter()))
    deadline_ns = 5 * S + 40_000_000
    batches = [[(5 * S, 5 * S)], [(deadline_ns, deadline_ns)], [(deadline_ns + 9, deadline_ns + 2_000_000)]]
    if together:
        batches = [batches[0], batches[1] + batches[2]]
    ticks: list[int] = []
    for clocks in batches:
        monkeypatch.setattr(source, "_take_clocks", lambda clocks=clocks: clocks)
        if clocks[-1][0] > deadline_ns:  # published after the clock of the deadline
            topics.waiting.append(deadline_ns + 1)
        ticks += [tick_ns for frames in source.step() for tick_ns in frames.ticks_ns.tolist()]

    assert ticks == [5 * S, 5 * S + 20_000_000]
    assert outcomes == [Outcome.ACCEPTED]  # not late
    source.destroy()


@pytest.fixture
def simulation(rig, joint_spec):
    return Simulation(rig, joint_spec)


def test_clock_that_jumps_back_restarts_the_timeline(simulation):
    simulation.run(5 * S, 6 * S)
    simulation.run(2 * S, 3 * S)

    simulation.until_tick(3 * S - 20_000_000)

    # Every tick due before the jump was published, and no sample of that time is in the ticks after it.
    windows = dict(frame_messages.read_fused(message) for message in simulation.fused.messages)
    assert 6 * S - 20_000_000 in windows
    after = windows[2 * S + 20_000_000]
    assert after[:-2, 0].tolist() == [0.0, 0.0]
    assert after[-1, 0] == pytest.approx(2.02)
    until(lambda: simulation.rig.counts("ticks").get("clock_jumps") == "1", "the jump")


def test_clock_that_jumps_ahead_skips_the_time_between(simulation):
    simulation.run(5 * S, 6 * S)
    simulation.run(3600 * S, 3601 * S)

    simulation.until_tick(3601 * S - 20_000_000)

    assert len(simulation.ticks()) < 110


def test_ticks_wait_for_the_clock_follow_it_and_pause_with_it(simulation):
    rig = simulation.rig
    until(lambda: len(rig.diagnostics) > 3, "diagnostics")
    assert rig.counts("ticks")["emitted"] == "0"
    assert "/clock" in rig.status("ticks").message

    simulation.run(5 * S, 6 * S)
    simulation.until_tick(6 * S - 20_000_000)  # delay_ms is 20
    assert 6 * S not in simulation.ticks()
    for _ in range(20):
        simulation.step(6 * S)

    simulation.run(6 * S, 7 * S)
    simulation.until_tick(7 * S - 20_000_000)

    ticks = simulation.ticks()
    assert ticks == sorted(set(ticks))


@pytest.mark.parametrize(
    ("data", "time_ns"),
    [
        (struct.pack("<4siI", b"\0\1\0\0", 5, 7), 5 * S + 7),
        (struct.pack(">4siI", b"\0\0\0\0", 5, 7), 5 * S + 7),
        (struct.pack("<4siI", b"\0\1\0\0", 0, 0), 0),
        (struct.pack("<4siI", b"\0\1\0\0", -1, 0), None),
        (struct.pack("<4siI", b"\0\1\0\0", 5, S), None),
        (b"\0\1\0\0\5\0\0\0", None),
        (b"", None),
    ],
    ids=["little", "big endian", "zero", "negative", "nanoseconds", "truncated", "empty"],
)
def test_clock_message_is_a_time_or_invalid(data, time_ns):
    assert read_clock(data) == time_ns


def test_invalid_clocks_are_counted_logged_once_and_ignored(simulation, capfd):
    simulation.run(5 * S, 6 * S)
    for seconds, nanoseconds in ((-1, 0), (-(2**31), 0), (6, S), (-1, 2**32 - 1)):
        simulation.clock.publish(struct.pack("<4siI", b"\0\1\0\0", seconds, nanoseconds))
    simulation.clock.publish(b"\0\1\0\0\1")
    simulation.run(6 * S, 7 * S)

    simulation.until_tick(7 * S - 20_000_000)

    assert simulation.ticks() == sorted(simulation.ticks())
    until(lambda: simulation.rig.counts("ticks").get("invalid_clocks") == "5", "the count")
    assert simulation.rig.counts("ticks")["clock_jumps"] == "0"
    assert capfd.readouterr().err.count("/clock: a message is not a time") == 1
