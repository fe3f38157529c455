"""What time it is, by the wall clock or by /clock: each hands the engine what has come in, and asks for the ticks."""

from __future__ import annotations

import struct
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from operator import itemgetter
from typing import Any, Protocol

from rclpy.node import Node
from rosgraph_msgs.msg import Clock

from robocache_ros.engine import Frames, FusionEngine
from robocache_ros.engine.engine import JUMP_BACK_NS
from robocache_ros.nodes import compat, qos
from robocache_ros.nodes.intake import Feed, Intake
from robocache_ros.nodes.large import LargeMessages
from robocache_ros.nodes.taking import Taken, Taker

IDLE_NS = 100_000_000  # how often a thread looks whether it shall stop
NEAR_NS = 200_000  # so near to a tick it is slept for: a wait set comes back later than it was asked to
KEPT_CLOCKS = 4096  # /clock messages remembered, for messages that come after a later one
PAUSED_NS = 2_000_000_000  # without /clock for so long, messages stay in the middleware's bounded queues


class Driver(Protocol):
    """A source of time."""

    def step(self) -> Iterator[Frames]:
        """Take in what has come, and give the ticks that are due."""

    def wait(self) -> None:
        """Return when there may be something to do."""

    def destroy(self) -> None:
        """Give back what it holds."""


def due_ticks(engine: FusionEngine, now_ns: int) -> Iterator[Frames]:
    """The ticks that are due, one at a time: a GPU engine gives one without allocating."""
    while len(frames := engine.advance(now_ns, limit=1)):
        yield frames
        if engine.spec.emit == "fixed" and (engine.next_due_ns or 0) > now_ns:
            return


def feed_in_order(engine: FusionEngine, intake: Intake, arrived: Iterable[tuple[int, Feed, Taken]]) -> Iterator[Frames]:
    """Push messages by their arrival, with the ticks that were due between them: after a stall no ring overruns."""
    for arrival_ns, feed, message in arrived:
        due_ns = engine.next_due_ns
        if due_ns is not None and due_ns < arrival_ns:
            yield from due_ticks(engine, arrival_ns - 1)
        intake.push(feed, message, arrival_ns)


class WallDriver:
    """By the system's clock: a message arrives when the middleware receives it.

    An image or a cloud that was received before a tick, but not taken by the time it is made, arrives after it.
    """

    def __init__(self, node: Node, intake: Intake, engine: FusionEngine, failed: Callable[[Exception], None]) -> None:
        self._intake = intake
        self._engine = engine
        self._eager = engine.spec.emit == "eager"
        self._large = LargeMessages(node, intake, failed)
        small = (feed.subscription for feed in intake.feeds if not feed.large)
        self._waiter = compat.Waiter(node, small, self._large.news)

    def step(self) -> Iterator[Frames]:
        """Take in what has come, and give the ticks that are due."""
        now_ns = time.time_ns()  # before the messages: what arrived by now is among those taken
        made_ns = self._engine.newest_cut_ns or 0
        arrived = [(message.received_ns or now_ns, feed, message) for feed, message in self._intake.take(large=False)]
        arrived += [
            (max(message.received_ns or now_ns, made_ns + 1), feed, message) for feed, message in self._large.read()
        ]
        arrived.sort(key=itemgetter(0))
        yield from feed_in_order(self._engine, self._intake, arrived)
        due_ns = self._engine.next_due_ns
        if self._eager or due_ns is None or now_ns >= due_ns or now_ns < due_ns - IDLE_NS - self._engine.spec.delay_ns:
            yield from due_ticks(self._engine, now_ns)

    def wait(self) -> None:
        """Return at the next tick's time or the next message."""
        due_ns = self._engine.next_due_ns
        left_ns = IDLE_NS if due_ns is None else due_ns - time.time_ns()
        if left_ns > NEAR_NS:
            self._waiter.wait(min(left_ns - NEAR_NS, IDLE_NS))
        elif left_ns > 0:
            time.sleep(left_ns / 1e9)

    def destroy(self) -> None:
        """Stop the thread and give back the wait sets."""
        self._waiter.destroy()
        self._large.destroy()


class SimTimeline:
    """Which sim time it was when a message was published.

    A message arrives at the sim time of the last /clock message published no later than it, by the middleware's source
    timestamps: a replay that announces each message's log time before the message reproduces the arrivals exactly.
    """

    def __init__(self) -> None:
        self._source_ns: list[int] = []
        self._sim_ns: list[int] = []

    def add(self, source_ns: int, sim_ns: int) -> None:
        """Remember a /clock message."""
        self._source_ns.append(source_ns)
        self._sim_ns.append(sim_ns)
        if len(self._source_ns) >= 2 * KEPT_CLOCKS:
            del self._source_ns[:-KEPT_CLOCKS], self._sim_ns[:-KEPT_CLOCKS]

    def restart(self) -> None:
        """Forget the time before a jump."""
        self._source_ns.clear()
        self._sim_ns.clear()

    @property
    def now_ns(self) -> int | None:
        """The newest sim time."""
        return self._sim_ns[-1] if self._sim_ns else None

    def arrival_ns(self, source_ns: int) -> int:
        """The sim time at which a message was published; the earliest one known for those before it."""
        return self._sim_ns[max(0, bisect_right(self._source_ns, source_ns) - 1)]


class SimDriver:
    """By /clock: a message arrives at the sim time at which it was published."""

    def __init__(self, node: Node, intake: Intake, engine: FusionEngine) -> None:
        self._node = node
        self._intake = intake
        self._engine = engine
        self._timeline = SimTimeline()
        self._pending: list[tuple[Feed, Taken]] = []  # published after the newest /clock message that was taken
        self._clock = compat.NodeClock(node)
        self._taker = Taker()
        self._subscription: Any = node.create_subscription(
            Clock, "/clock", lambda _: None, qos.clock(), callback_group=compat.OwnThread(), raw=True
        )
        self._heard_ns = time.monotonic_ns()
        self._waiter = compat.Waiter(node, [self._subscription, *(feed.subscription for feed in intake.feeds)])

    def step(self) -> Iterator[Frames]:
        """Take in what has come, and give the ticks that are due."""
        # The clock first: what was published before the newest /clock message here is then among the messages taken.
        clocks = self._take_clocks()
        if not self._paused:
            self._pending += self._intake.take()
        if not clocks:
            return
        taken_until_ns = clocks[-1][0]
        ready = [entry for entry in self._pending if entry[1].source_ns <= taken_until_ns]
        self._pending = [entry for entry in self._pending if entry[1].source_ns > taken_until_ns]
        ready.sort(key=lambda entry: entry[1].source_ns)
        for source_ns, sim_ns in clocks:
            now_ns = self._timeline.now_ns
            begins = now_ns is None
            if now_ns is not None and sim_ns < now_ns - JUMP_BACK_NS:
                # Messages and ticks of the time before the jump go out before the time after it begins.
                before = [entry for entry in ready if entry[1].source_ns < source_ns]
                ready = ready[len(before) :]
                yield from self._feed(before)
                yield from due_ticks(self._engine, now_ns)
                self._timeline.restart()
                begins = True
            if begins:
                yield from due_ticks(self._engine, sim_ns)  # the first tick hangs on the clock, not on the batch
            self._timeline.add(source_ns, sim_ns)
        yield from self._feed(ready)
        now_ns = self._timeline.now_ns
        assert now_ns is not None
        self._clock.set(now_ns)
        yield from due_ticks(self._engine, now_ns)

    def wait(self) -> None:
        """Return at the next message."""
        self._waiter.wait(IDLE_NS, [self._subscription] if self._paused else None)

    def destroy(self) -> None:
        """Give back the wait set and the subscription of /clock."""
        self._waiter.destroy()
        self._node.destroy_subscription(self._subscription)

    @property
    def _paused(self) -> bool:
        return time.monotonic_ns() - self._heard_ns > PAUSED_NS

    def _feed(self, messages: list[tuple[Feed, Taken]]) -> Iterator[Frames]:
        arrived = ((self._timeline.arrival_ns(message.source_ns), feed, message) for feed, message in messages)
        return feed_in_order(self._engine, self._intake, arrived)

    def _take_clocks(self) -> list[tuple[int, int]]:
        clocks = []
        while (message := self._taker.take(self._subscription)) is not None:
            if len(message.data) < 12:
                continue
            seconds, nanoseconds = struct.unpack_from("<iI" if message.data[1] & 1 else ">iI", message.data, 4)
            clocks.append((message.source_ns, seconds * 1_000_000_000 + nanoseconds))
        if clocks:
            self._heard_ns = time.monotonic_ns()
        return clocks
