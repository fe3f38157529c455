"""The loop of a node: what arrived, by which clock, and the ticks that are due."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from rclpy.node import Node
from rclpy.time import Time
from rosgraph_msgs.msg import Clock

from robocache_ros.engine import Frames, FusionEngine
from robocache_ros.engine.tick_grid import JUMP_BACK_NS
from robocache_ros.nodes import middleware, process
from robocache_ros.nodes.sim_timeline import SimTimeline, read_clock
from robocache_ros.nodes.subscriptions import (
    Arrivals,
    Flood,
    LargeMessages,
    RawSubscriber,
    ReceivedMessage,
    Topic,
    TopicSubscriptions,
)
from robocache_ros.ops.resample.selection import HELD, NONE

IDLE_NS = 100_000_000  # how often a thread checks whether to stop
NEAR_NS = 200_000  # this close to a tick the thread sleeps: a wait set returns later than requested
PUSH_NS = 30_000_000  # limit for the messages of a step; the messages that a robot sends in a second take about as long
FLOOD_NS = 1_500_000  # limit for the messages of a step in a flood, so that other threads get processor time
FLOOD_PAUSE_NS = 2_500_000  # between two such steps
PAUSED_NS = 2_000_000_000  # after this time without /clock, messages stay in the middleware's bounded queues
# Messages of a topic that wait for the next /clock message; others stay in the middleware's bounded queues.
MAX_WAITING = {"small": 4096, "large": 64}


class ClockSource(Protocol):
    """A source of time."""

    def step(self) -> Iterator[Frames]:
        """Push the messages that have arrived, and yield the ticks that are due."""

    def wait(self) -> None:
        """Return when a message may have arrived or a tick may be due, after 0.1 s at the latest."""

    def destroy(self) -> None:
        """Release wait sets, threads and subscriptions."""


def due_ticks(engine: FusionEngine, now_ns: int) -> Iterator[Frames]:
    """The ticks that are due, one at a time: a GPU engine computes a single tick without allocating."""
    while len(frames := engine.advance(now_ns, limit=1)):
        yield frames
        if engine.spec.emit == "fixed" and (engine.next_due_ns or 0) > now_ns:
            return


def push_in_order(
    engine: FusionEngine, subscriptions: TopicSubscriptions, arrived: Iterable[tuple[int, Topic, ReceivedMessage]]
) -> Iterator[Frames]:
    """Push messages in the order of arrival, and yield the ticks due between them, so that no buffer overruns."""
    for arrival_ns, topic, message in arrived:
        due_ns = engine.next_due_ns
        if due_ns is not None and due_ns < arrival_ns:
            yield from due_ticks(engine, arrival_ns - 1)
        subscriptions.push(topic, message, arrival_ns)


class WallClockSource:
    """The system's clock: a message arrives when the middleware receives it.

    An image or a cloud that the middleware received before a tick, but that was not yet copied when the tick was
    computed, counts as arrived after the tick. The same applies to a message of a flooded topic that was not yet read:
    a step pushes messages for `PUSH_NS`, in a flood for `FLOOD_NS`, so that no tick and no other topic waits for them.
    """

    def __init__(
        self, node: Node, subscriptions: TopicSubscriptions, engine: FusionEngine, failed: Callable[[Exception], None]
    ) -> None:
        self._subscriptions = subscriptions
        self._engine = engine
        self._eager = engine.spec.emit == "eager"
        self._large = LargeMessages(node, subscriptions, failed)
        self._small = [topic for topic in subscriptions.topics if not topic.large]
        queues = [partial(subscriptions.take_from, topic) for topic in self._small]
        self._arrivals = Arrivals([*queues, self._large.read])
        self._flood = Flood()
        self._waiter = middleware.Waiter(node, len(self._small), self._large.arrived)

    def step(self) -> Iterator[Frames]:
        """Push the messages that have arrived, and yield the ticks that are due."""
        now_ns = time.time_ns()  # before reading: all messages that arrived by this time are read
        in_flood = self._flood.active
        limit_ns = min(FLOOD_NS, self._left_ns(now_ns)) if in_flood else PUSH_NS
        self._subscriptions.provide_buffers()
        arrived = self._arrivals.read(self._earliest_ns, limit_ns, PUSH_NS)
        yield from push_in_order(self._engine, self._subscriptions, arrived)
        limited = self._arrivals.flooded
        if not (limited and in_flood and limit_ns < FLOOD_NS):  # else the next tick shortened the limit: not evidence
            self._flood.add(limited)
        due_ns = self._engine.next_due_ns
        if self._eager or due_ns is None or now_ns >= due_ns or now_ns < due_ns - IDLE_NS - self._engine.spec.delay_ns:
            yield from due_ticks(self._engine, now_ns)

    def wait(self) -> None:
        """Return at the next tick's time or the next message; in a flood, after a pause at the latest."""
        left_ns = self._left_ns(time.time_ns())
        if self._flood.active:
            time.sleep(max(0, min(left_ns, FLOOD_PAUSE_NS)) / 1e9)
        elif left_ns > NEAR_NS:
            self._waiter.wait(min(left_ns - NEAR_NS, IDLE_NS), [topic.subscription for topic in self._small])
        elif left_ns > 0:
            time.sleep(left_ns / 1e9)

    def _left_ns(self, now_ns: int) -> int:
        due_ns = self._engine.next_due_ns
        return IDLE_NS if due_ns is None else due_ns - now_ns

    def _earliest_ns(self) -> int:
        return (self._engine.newest_cut_ns or 0) + 1

    def destroy(self) -> None:
        """Stop the thread and release the wait sets."""
        self._waiter.destroy()
        self._large.destroy()


class ClockReader:
    """/clock, read in a thread of its own: an executor that is busy would fall behind a simulator.

    Args:
        node: owns the subscription.
        counters: counts `invalid_clocks`, the messages that were ignored.
        sets_clock: set the clock of the node, in place of rclpy: its time source would receive every message a second
            time, in the executor, which is half the cost of a fast replay. False for a node of another package.
    """

    def __init__(self, node: Node, counters: Counter[str], *, sets_clock: bool = True) -> None:
        self.node, self._counters = node, counters
        source: Any = getattr(node, "_time_source", None) if sets_clock else None
        self._clock: Any = node.get_clock() if source and hasattr(node.get_clock(), "set_ros_time_override") else None
        if self._clock:
            source.detach_node()
        self._raw_subscriber = RawSubscriber()
        self.subscription: Any = middleware.raw_subscription(node, Clock, "/clock", middleware.clock())

    def take(self) -> list[tuple[int, int]]:
        """The messages that have arrived: the source timestamp and the sim time of each."""
        clocks = []
        for _ in range(middleware.CLOCK_DEPTH):  # bounded, so that a flood on /clock does not block the messages
            message = self._raw_subscriber.take(self.subscription)
            if message is None:
                break
            sim_ns = read_clock(message.data)
            if sim_ns is None:
                self._ignore(message.data)
            else:
                clocks.append((message.source_ns, sim_ns))
        return clocks

    def set(self, now_ns: int) -> None:
        """Set the clock of the node."""
        if self._clock:
            self._clock.set_ros_time_override(Time(nanoseconds=now_ns, clock_type=self._clock.clock_type))

    def destroy(self) -> None:
        """Release the subscription."""
        self.node.destroy_subscription(self.subscription)

    def _ignore(self, data: bytes | memoryview) -> None:
        if not self._counters["invalid_clocks"]:
            shown = bytes(data[:12]).hex(" ")
            self.node.get_logger().warning(
                f"/clock: a message is not a time at or after 0 ({len(data)} bytes: {shown}); it is ignored; "
                f"further ones are counted as invalid_clocks in /diagnostics"
            )
        self._counters["invalid_clocks"] += 1


@dataclass(eq=False)
class SimClockSource:
    """/clock: a message arrives at the sim time at which it was published.

    A tick is computed when the clock has passed its deadline: not at the deadline, when messages may still follow.
    Only /clock restarts the timeline: a message that the transport held back for longer than a jump of the clock, which
    is 60 ms at eight times the rate, is late.
    """

    subscriptions: TopicSubscriptions
    engine: FusionEngine
    clock: ClockReader

    def __post_init__(self) -> None:
        self._timeline = SimTimeline()
        # Messages published after the newest received /clock message.
        self._pending: list[tuple[Topic, ReceivedMessage]] = []
        self._waiting: Counter[int] = Counter()  # how many of them each topic has, by its id
        self._heard_ns = time.monotonic_ns()
        self._waiter = middleware.Waiter(self.clock.node, 1 + len(self.subscriptions.topics))

    def step(self) -> Iterator[Frames]:
        """Push the messages that have arrived, and yield the ticks that are due."""
        # /clock first: all messages published before the newest /clock message have then been received.
        clocks = self._take_clocks()
        if not self._paused:
            self._take_messages()
        if not clocks:
            return
        until_ns = clocks[-1][0]
        ready = [entry for entry in self._pending if entry[1].source_ns <= until_ns]
        self._pending = [entry for entry in self._pending if entry[1].source_ns > until_ns]
        self._waiting = Counter(id(topic) for topic, _ in self._pending)
        ready.sort(key=lambda entry: entry[1].source_ns)
        for source_ns, sim_ns in clocks:
            now_ns = self._timeline.now_ns
            begins = now_ns is None
            if now_ns is not None and sim_ns < now_ns - JUMP_BACK_NS:
                # Messages and ticks from before the jump are processed before those from after it.
                before = [entry for entry in ready if entry[1].source_ns < source_ns]
                ready = ready[len(before) :]
                yield from self._push(before)
                yield from due_ticks(self.engine, now_ns)
                self._timeline.restart()
                begins = True
            if begins:
                # The clock determines the first tick, not the batch of messages.
                yield from due_ticks(self.engine, sim_ns)
            self._timeline.add(source_ns, sim_ns)
        yield from self._push(ready)
        now_ns = self._timeline.now_ns
        assert now_ns is not None
        self.clock.set(now_ns)
        # Until the clock moves on, more messages can arrive at this very time, and a tick with this deadline has them.
        yield from due_ticks(self.engine, now_ns - 1)

    def wait(self) -> None:
        """Return at the next message that can be received."""
        topics = [] if self._paused else [topic for topic in self.subscriptions.topics if self._space(topic)]
        self._waiter.wait(IDLE_NS, [self.clock.subscription, *(topic.subscription for topic in topics)])

    def destroy(self) -> None:
        """Release the wait set and the subscription of /clock."""
        self._waiter.destroy()
        self.clock.destroy()

    def _space(self, topic: Topic) -> int:
        return MAX_WAITING["large" if topic.large else "small"] - self._waiting[id(topic)]

    def _take_messages(self) -> None:
        self.subscriptions.provide_buffers()
        for topic in self.subscriptions.topics:
            found = self.subscriptions.take_from(topic, min(topic.qos.depth, self._space(topic)))
            self._pending += found
            self._waiting[id(topic)] += len(found)

    @property
    def _paused(self) -> bool:
        return time.monotonic_ns() - self._heard_ns > PAUSED_NS

    def _push(self, messages: list[tuple[Topic, ReceivedMessage]]) -> Iterator[Frames]:
        arrived = ((self._arrival_ns(message.source_ns), topic, message) for topic, message in messages)
        return push_in_order(self.engine, self.subscriptions, arrived)

    def _arrival_ns(self, source_ns: int) -> int:
        arrival_ns, earliest_ns = self._timeline.arrival_ns(source_ns), self.engine.earliest_arrival_ns
        return arrival_ns if earliest_ns is None else max(arrival_ns, earliest_ns)

    def _take_clocks(self) -> list[tuple[int, int]]:
        clocks = self.clock.take()
        if clocks:
            self._heard_ns = time.monotonic_ns()
        return clocks


SPIN_NS = 80_000  # the thread spins for this long before a due time: a sleep ends some tens of microseconds late


class TickStats:
    """Counts of published ticks, their lateness, and the ticks at which each stream was held or invalid."""

    def __init__(self, streams: int) -> None:
        self.emitted = 0
        self.held: NDArray[np.int64] = np.zeros(streams, np.int64)
        self.invalid: NDArray[np.int64] = np.zeros(streams, np.int64)
        self.newest_tick_ns: int | None = None
        self.newest_valid: NDArray[np.uint8] = np.zeros(streams, np.uint8)
        self.newest_age_ns: NDArray[np.int64] = np.zeros(streams, np.int64)
        self._lateness_ns: list[int] = []

    def add(self, frames: Frames, lateness_ns: int | None) -> None:
        """Count the ticks of some frames; `lateness_ns`: publication minus due time, None without a due time."""
        self.emitted += len(frames)
        self.held += (frames.valid == HELD).sum(axis=0)
        self.invalid += (frames.valid == NONE).sum(axis=0)
        self.newest_tick_ns = int(frames.ticks_ns[-1])
        self.newest_valid = frames.valid[-1]
        self.newest_age_ns = frames.age_ns[-1]
        if lateness_ns is not None:
            self._lateness_ns.append(lateness_ns)
            del self._lateness_ns[:-10_000]

    def read_lateness_ms(self) -> tuple[float, float, float] | None:
        """Median, 99th percentile and maximum since the last call, in ms; None if no tick had a due time."""
        lateness, self._lateness_ns = self._lateness_ns, []
        if not lateness:
            return None
        lateness.sort()  # np.percentile imports a module at its first call, which fails without file descriptors
        p50, p99, most = (lateness[round(share * (len(lateness) - 1))] / 1e6 for share in (0.5, 0.99, 1.0))
        return p50, p99, most


@dataclass(eq=False)
class TickLoop:
    """Runs a clock source in a thread, so that no service, parameter or diagnostics callback delays a tick."""

    clock_source: ClockSource  # pushes the messages that have arrived, and yields the due ticks
    publish: Callable[[Frames, Callable[[int], None]], None]  # gets due ticks, and waits until one is due
    failed: Callable[[Exception], None]  # called once, from the thread, if it ends with an error
    stats: TickStats
    delay_ns: int | None  # a tick is due at its time + delay; None: immediately (eager, sim time)
    lead_ns: int = 0  # a tick is computed at most this long before it is due

    def __post_init__(self) -> None:
        self._thread = process.Repeated("robocache-ticks", self._step, self.failed)

    def start(self) -> None:
        """Start the thread."""
        process.freeze_gc()
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread, and return when it has ended."""
        self._thread.stop()
        self.clock_source.destroy()
        process.unfreeze_gc()

    def _step(self) -> None:
        for frames in self.clock_source.step():
            if len(frames):
                self.publish(frames, self._wait_until_due)
                self.stats.add(frames, self._lateness_ns(frames))
        self.clock_source.wait()

    def _wait_until_due(self, tick_ns: int) -> None:
        """Return when a tick is due; immediately if that time has passed, or if there is none."""
        if self.delay_ns is None:
            return
        # The wait uses the monotonic clock and is limited by the lead: setting back the wall clock does not block it.
        left_ns = min(tick_ns + self.delay_ns - time.time_ns(), self.lead_ns)
        end_ns = time.monotonic_ns() + left_ns
        if left_ns > SPIN_NS:
            time.sleep((left_ns - SPIN_NS) / 1e9)
        while time.monotonic_ns() < end_ns:
            pass

    def _lateness_ns(self, frames: Frames) -> int | None:
        if self.delay_ns is None:
            return None
        return time.time_ns() - int(frames.ticks_ns[-1]) - self.delay_ns
