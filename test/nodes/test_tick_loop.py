"""The TickLoop and its clocks: a tick is published when it is due, with the messages that arrived before it."""

from __future__ import annotations

import struct
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from rclpy.qos import QoSProfile
from rosgraph_msgs.msg import Clock
from sensor_msgs.msg import Image, JointState
from std_msgs.msg import Float32MultiArray

from robocache_ros.engine import Frames, FusionEngine
from robocache_ros.engine.engine import Outcome
from robocache_ros.nodes import frame_messages, middleware, subscriptions, tick_loop
from robocache_ros.nodes.sim_timeline import CLOCK_HISTORY, SimTimeline, read_clock
from robocache_ros.nodes.subscriptions import ARRIVALS_BATCH, LargeMessages, ReceivedMessage
from robocache_ros.nodes.tick_loop import ClockReader, SimClockSource, TickLoop, TickStats, WallClockSource
from robocache_ros.spec import QosSpec, load_spec
from test.nodes.rig import clock_cdr, repeating, stamped, until

MS, S = 1_000_000, 1_000_000_000
IMAGE = {"type": "sensor_msgs/msg/Image", "image": {"size": [2, 2]}, "qos": {"reliability": "reliable", "depth": 5}}
FRONT = {"topic": "/front", "max_age_ms": 10_000, **IMAGE}
SPEC: dict[str, Any] = {"robocache": 1, "delay_ms": 30, "lead_ms": 5, "streams": {"front": FRONT}}


class ReceivedMessages:
    """Stands for the thread that receives large messages: the test decides what it has received."""

    def __init__(self, node: Any) -> None:
        self.arrived = middleware.signal(node)
        self.received: deque[Any] = deque()

    def read(self, limit: int) -> list[Any]:
        return [self.received.popleft() for _ in range(min(limit, len(self.received)))]

    def destroy(self) -> None:
        self.arrived.destroy()


@pytest.fixture
def wall_clock(rig, monkeypatch):
    """A wall clock source, the arrivals it pushed, and the large messages that it will find received."""
    large = ReceivedMessages(rig.node)
    monkeypatch.setattr(tick_loop, "LargeMessages", lambda *_: large)
    monkeypatch.setattr(tick_loop, "PUSH_NS", 3600_000 * MS)  # a step has time for all messages
    engine = FusionEngine(load_spec(SPEC))
    pushed: list[int] = []
    push = {"push": lambda topic, message, arrival_ns: pushed.append(arrival_ns)}
    topics = SimpleNamespace(topics=[], provide_buffers=lambda: None, **push)
    source = WallClockSource(rig.node, topics, engine, lambda error: None)
    yield SimpleNamespace(source=source, engine=engine, pushed=pushed, received=large.received)
    source.destroy()


def test_message_received_after_a_tick_was_made_arrives_after_it(wall_clock):
    while not list(wall_clock.source.step()):
        wall_clock.source.wait()
    made_ns = wall_clock.engine.newest_cut_ns
    wall_clock.received.extend((None, ReceivedMessage(b"", 0, made_ns + ms * MS)) for ms in (-4, 1))
    list(wall_clock.source.step())
    assert wall_clock.pushed == [made_ns + 1, made_ns + 1 * MS]


def test_flood_does_not_keep_a_tick_waiting(wall_clock, monkeypatch):
    for name in ("PUSH_NS", "FLOOD_NS"):
        monkeypatch.setattr(tick_loop, name, -1)  # a step has time for one message
    while not list(wall_clock.source.step()):
        wall_clock.source.wait()
    made_ns = wall_clock.engine.newest_cut_ns
    wall_clock.received.extend((None, ReceivedMessage(b"", 0, made_ns - number * MS)) for number in range(3))
    pushed = []
    for _ in range(3):
        list(wall_clock.source.step())
        wall_clock.source.wait()  # returns at once while messages wait
        pushed.append(len(wall_clock.pushed))
    assert pushed == [1, 2, 3]
    assert min(wall_clock.pushed) > made_ns


def test_flood_with_pauses_is_one_flood(wall_clock, monkeypatch):
    def flooded() -> int:
        wall_clock.received.extend((None, ReceivedMessage(b"", 0, 1)) for _ in range(2 * ARRIVALS_BATCH))
        before = len(wall_clock.pushed)
        list(wall_clock.source.step())
        pushed = len(wall_clock.pushed) - before
        while len(wall_clock.pushed) - before < 2 * ARRIVALS_BATCH:
            list(wall_clock.source.step())
        list(wall_clock.source.step())  # a pause: everything is read
        return pushed

    monkeypatch.setattr(tick_loop, "FLOOD_NS", -1)  # in a flood a step has time for one message
    assert flooded() == 2 * ARRIVALS_BATCH
    monkeypatch.setattr(tick_loop, "PUSH_NS", -1)
    assert flooded() == 1
    monkeypatch.setattr(tick_loop, "PUSH_NS", 3600_000 * MS)

    assert flooded() == 1

    monkeypatch.setattr(subscriptions, "FLOOD_WINDOW_NS", 0)
    for _ in range(2):  # a window that begins in the flood, and a calm one
        list(wall_clock.source.step())
    assert flooded() == 2 * ARRIVALS_BATCH


def test_signal_ends_a_wait_for_messages(rig):
    signal = middleware.signal(rig.node)
    waiter = middleware.Waiter(rig.node, 0, signal)
    signal.trigger()
    waiter.wait(3600_000 * MS, [])  # it would outlast the test's time limit
    waiter.destroy()
    signal.destroy()


def test_images_of_any_size_are_received_next_to_the_ticks(rig):
    node = rig.fusion(SPEC, ring_slots=0)
    node.autostart()
    images = rig.publisher(Image, "/front")
    aligned = rig.listen(Image, "/fusion_node/front/aligned")
    until(images.get_subscription_count, "the node's subscription")
    until(aligned.subscription.get_publisher_count, "the node's images")
    sizes = [(2, 2), (2, 2), (1000, 700), (2, 2)]  # the first, one of its size, one larger than its buffer
    for number, (width, height) in enumerate(sizes, 1):
        pixels = bytes([number]) * 3 * width * height
        images.publish(stamped(Image(width=width, height=height, step=3 * width, encoding="rgb8", data=pixels)))
        until(lambda number=number: len(aligned) and set(bytes(aligned.newest.data)) == {number}, f"image {number}")

    assert node.parts.ingest.counters["front"]["received"] == len(sizes)
    topic = node.parts.subscriptions.topics[0]
    assert topic.buffer_bytes > 1000 * 700 * 3
    until(lambda: [len(buffer) for buffer in topic.buffers] == [topic.buffer_bytes] * 2, "buffers for the largest")


class EndlessTopic:
    """A large topic that always has a message."""

    large = True

    def __init__(self, rig: Any) -> None:
        self.subscription = middleware.raw_subscription(rig.node, Image, "/front", QoSProfile(depth=5))
        self.received = self.read = self.most = 0

    def take(self, subscriber: Any, limit: int) -> Iterator[ReceivedMessage]:
        for _ in range(limit):
            self.received += 1
            self.most = max(self.most, self.received - self.read)
            yield ReceivedMessage(b"", 0, self.received)


def test_messages_that_are_not_read_stay_in_the_middleware(rig, monkeypatch):
    monkeypatch.setattr(subscriptions, "MAX_LARGE_UNREAD", 3)
    monkeypatch.setattr(subscriptions, "LARGE_BATCH", 3)
    source = EndlessTopic(rig)
    large = LargeMessages(rig.node, SimpleNamespace(topics=[source], resubscribe=id), lambda error: None)
    read: list[int] = []
    while len(read) < 30:
        source.read = len(read) + 1  # the message that is read next is no longer kept
        read += [message.received_ns for _, message in until(lambda: large.read(1), "a message")]
    large.destroy()
    assert read == list(range(1, 31))
    assert source.most <= 3 + 3 - 1  # below 3, a batch of 3 is received


def test_error_while_receiving_is_reported_to_the_node(rig):
    source = EndlessTopic(rig)
    source.take = lambda subscriber, limit: iter([1 // 0])
    failures: list[Exception] = []
    large = LargeMessages(rig.node, SimpleNamespace(topics=[source], resubscribe=id), failures.append)
    until(lambda: failures, "the failure")
    large.destroy()
    assert isinstance(failures[0], ZeroDivisionError)


class OneTick:
    """A clock source with a single tick."""

    def __init__(self, tick_ns: int) -> None:
        valid, age_ns = np.ones((1, 1), np.uint8), np.zeros((1, 1), np.int64)
        self._frames = [Frames(np.array([tick_ns]), torch.zeros(1, 0), valid, age_ns, {})]

    def step(self) -> Iterator[Frames]:
        while self._frames:
            yield self._frames.pop()

    def wait(self) -> None:
        threading.Event().wait(0.001)

    def destroy(self) -> None: ...


def published_at_ns(tick_ns: int, delay_ns: int | None, lead_ns: int) -> tuple[int, TickStats]:
    """When the loop published a tick."""
    sent: list[int] = []
    out = threading.Event()

    def publish(frames: Frames, wait_until_due: Any) -> None:
        wait_until_due(int(frames.ticks_ns[0]))
        sent.append(time.time_ns())

    def failed(error: Exception) -> None:
        raise AssertionError from error

    class Stats(TickStats):
        def add(self, frames: Frames, lateness_ns: int | None) -> None:
            super().add(frames, lateness_ns)
            out.set()

    stats = Stats(1)
    loop = TickLoop(OneTick(tick_ns), publish, failed, stats, delay_ns, lead_ns)
    loop.start()
    assert out.wait(120)
    loop.stop()
    return sent[0], stats


@pytest.mark.parametrize(("age_ns", "delay_ns"), [(0, 150 * MS), (10_000 * MS, 5_000 * MS)], ids=["ahead", "overdue"])
def test_tick_is_published_when_it_is_due_or_at_once_if_it_is_overdue(age_ns, delay_ns):
    tick_ns = time.time_ns() - age_ns
    sent_ns, stats = published_at_ns(tick_ns, delay_ns, delay_ns)
    assert sent_ns >= tick_ns + delay_ns
    assert stats.emitted == 1
    lateness_ms = stats.read_lateness_ms()
    assert lateness_ms[0] >= 0


@pytest.mark.parametrize("delay_ns", [None, 3600_000 * MS])
def test_no_tick_waits_longer_than_the_lead(delay_ns):
    """Without a due time (eager, sim time), or with one an hour ahead since the wall clock was set back."""
    tick_ns = time.time_ns()
    sent_ns, _ = published_at_ns(tick_ns, delay_ns, 20 * MS)
    assert sent_ns < tick_ns + 3600_000 * MS


def test_ticks_with_a_held_value_and_without_a_value_are_counted_apart():
    stats = TickStats(3)
    valid = np.array([[0, 1, 2], [0, 1, 1]], np.uint8)
    stats.add(Frames(np.array([1, 2]), torch.zeros(2, 0), valid, np.zeros((2, 3), np.int64), {}), None)
    assert (stats.invalid.tolist(), stats.held.tolist()) == ([2, 0, 0], [0, 0, 1])


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
        until(self.clock.get_subscription_count, "the node's clock")
        until(self._joints.get_subscription_count, "its joints")
        until(self.fused.subscription.get_publisher_count, "its ticks")

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
        self.topics = []
        for large in (False, True):
            subscription = middleware.raw_subscription(rig.node, JointState, f"/{large}", QoSProfile(depth=5))
            self.topics.append(SimpleNamespace(large=large, subscription=subscription, qos=QosSpec(depth=50)))
        self.pushed: list[Any] = []

    def provide_buffers(self) -> None: ...

    def take_from(self, topic: Any, limit: int) -> list[tuple[Any, ReceivedMessage]]:
        return [(topic, ReceivedMessage(b"", 1, 1))] * limit

    def push(self, topic: Any, message: ReceivedMessage, arrival_ns: int) -> None:
        self.pushed.append(topic.large)


def test_messages_that_wait_for_the_clock_are_bounded(rig, monkeypatch):
    monkeypatch.setattr(tick_loop, "MAX_WAITING", {"small": 120, "large": 60})
    endless = EndlessTopics(rig)
    stream = {"topic": "/a", "type": "std_msgs/msg/Float64", "dim": 1}
    engine = FusionEngine(load_spec({"robocache": 1, "streams": {"a": stream}}))
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


def test_clock_that_jumps_back_restarts_the_timeline_and_one_that_jumps_ahead_skips_the_time_between(simulation):
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
    before = len(simulation.fused)
    simulation.run(3600 * S, 3601 * S)
    simulation.until_tick(3601 * S - 20_000_000)
    assert len(simulation.fused) < before + 60


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
