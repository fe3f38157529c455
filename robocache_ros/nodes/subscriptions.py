"""Serialized messages of topics, taken from the middleware."""

from __future__ import annotations

import ctypes
import struct
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from operator import attrgetter
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray
from rclpy.node import Node
from rclpy.subscription import Subscription

from robocache_ros.buffer_pool import buffer_for
from robocache_ros.decode import definitions_of
from robocache_ros.engine import Ingest
from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.nodes import middleware, process
from robocache_ros.nodes.middleware import any_best_effort, for_replay, profile
from robocache_ros.recorder.run_log import RunLog
from robocache_ros.spec import TF_STATIC, TF_TYPE, FusionSpec, QosSpec, StreamSpec

# Takes serialized messages from the middleware into memory of the caller.
#
# rclpy's take returns a `bytes` object: it makes two unnecessary copies and holds the interpreter's lock meanwhile, 2
# ms for a camera image. Therefore rcl's function is called through ctypes, which releases the lock. If it is not found,
# rclpy's function is called.

SMALL_BYTES = 65536
_OK, _BAD_ALLOC, _NOTHING_THERE = 0, 10, 401  # RCL_RET_OK, RCL_RET_BAD_ALLOC, RCL_RET_SUBSCRIPTION_TAKE_FAILED
_INFO_WORDS = 32  # more than rmw_message_info_t needs, which starts with source and received time and has 72 bytes


class ReceivedMessage(NamedTuple):
    """A serialized message with the middleware's times."""

    data: bytes | memoryview
    source_ns: int  # time of publication; 0 if the middleware does not provide it
    received_ns: int  # time of reception; 0 if the middleware does not provide it


_Allocate = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
_Deallocate = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)
_Reallocate = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
_ZeroAllocate = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_void_p)


class _Allocator(ctypes.Structure):
    """rcutils_allocator_t."""

    _fields_ = (
        ("allocate", _Allocate),
        ("deallocate", _Deallocate),
        ("reallocate", _Reallocate),
        ("zero_allocate", _ZeroAllocate),
        ("state", ctypes.c_void_p),
    )


class _Array(ctypes.Structure):
    """rcutils_uint8_array_t, followed by space for later versions of it."""

    _fields_ = (
        ("buffer", ctypes.c_void_p),
        ("length", ctypes.c_size_t),
        ("capacity", ctypes.c_size_t),
        ("allocator", _Allocator),
        ("_space", ctypes.c_uint64 * 8),
    )


class _Target:
    """The memory for a message as rcutils expects it, with an allocator for larger messages.

    rcutils does not free or grow the caller's memory: if it requests more, it gets the memory of a NumPy array.
    """

    def __init__(self) -> None:
        self.larger: NDArray[np.uint8] | None = None  # the last message, if the caller's memory was too small
        self._capacity = 0
        self._functions = _Allocator(
            _Allocate(lambda nbytes, state: self._grow(0, nbytes)),
            _Deallocate(lambda pointer, state: None),
            _Reallocate(lambda pointer, nbytes, state: self._grow(pointer, nbytes)),
            _ZeroAllocate(lambda count, nbytes, state: self._grow(0, count * nbytes)),
        )
        self.array = _Array(allocator=self._functions)
        self.pointer = ctypes.addressof(self.array)

    def use(self, address: int, capacity: int) -> None:
        """Set the memory for the next message."""
        array = self.array
        array.buffer, array.length, array.capacity = address, 0, capacity
        self._capacity = capacity
        self.larger = None

    def _grow(self, pointer: int | None, nbytes: int) -> int:
        if pointer and self.larger is None and nbytes <= self._capacity:  # some middlewares resize it for each message
            return pointer
        try:
            self.larger = np.empty(nbytes, np.uint8)
        except MemoryError:
            return 0  # rcutils reports the error
        return int(self.larger.ctypes.data)


class RawSubscriber:
    """Takes serialized messages of raw subscriptions; for one thread.

    Args:
        direct: call rcl's function if it is found.
    """

    def __init__(self, *, direct: bool = True) -> None:
        self._rcl_take = find_rcl_take() if direct else None
        self._target = _Target()
        self._info = (ctypes.c_int64 * _INFO_WORDS)()
        self._small = np.empty(SMALL_BYTES, np.uint8)
        self._small_at = int(self._small.ctypes.data)
        self._arguments = (ctypes.c_void_p(self._target.pointer), self._info, None)

    @property
    def direct(self) -> bool:
        """Whether rcl's function is called instead of rclpy's."""
        return self._rcl_take is not None

    def take(self, subscription: Subscription[Any]) -> ReceivedMessage | None:
        """The next message; None if there is none."""
        if self._rcl_take is None:
            return _take_by_rclpy(subscription)
        length = self._take(subscription, self._small_at, SMALL_BYTES)
        if length is None:
            return None
        larger = self._target.larger
        data = ctypes.string_at(self._small_at, length) if larger is None else larger.data.toreadonly()[:length]
        return ReceivedMessage(data, self._info[0], self._info[1])

    def take_into(self, subscription: Subscription[Any], buffer: NDArray[np.uint8]) -> ReceivedMessage | None:
        """The next message, in `buffer`, or in new memory if it is larger; None if there is none."""
        if self._rcl_take is None:
            return _take_by_rclpy(subscription)
        length = self._take(subscription, int(buffer.ctypes.data), buffer.nbytes)
        if length is None:
            return None
        larger = self._target.larger
        data = (buffer if larger is None else larger).data.toreadonly()[:length]
        return ReceivedMessage(data, self._info[0], self._info[1])

    def _take(self, subscription: Subscription[Any], address: int, capacity: int) -> int | None:
        self._target.use(address, capacity)
        handle = subscription.handle
        with handle:
            result = self._rcl_take(handle.pointer, *self._arguments)  # type: ignore[misc]
        if result == _OK:
            return int(self._target.array.length)
        if result == _NOTHING_THERE:
            return None
        ctypes.CDLL("librcutils.so").rcutils_reset_error()
        if result == _BAD_ALLOC:
            raise MemoryError(f"{subscription.topic_name}: no memory for a message")
        raise RuntimeError(f"{subscription.topic_name}: rcl could not take a message (error {result})")


def _take_by_rclpy(subscription: Subscription[Any]) -> ReceivedMessage | None:
    with subscription.handle:
        received: Any = subscription.handle.take_message(subscription.msg_type, True)
    if received is None:
        return None
    data, info = received
    return ReceivedMessage(data, info["source_timestamp"], info["received_timestamp"])


@cache
def find_rcl_take() -> Any:
    """rcl_take_serialized_message of the rcl that rclpy has loaded; None if it is missing or its structures differ."""
    from rclpy.impl.implementation_singleton import rclpy_implementation

    try:
        found = ctypes.CDLL("librcl.so").rcl_take_serialized_message
        rcutils = ctypes.CDLL("librcutils.so")
        if not hasattr(rclpy_implementation.Subscription, "pointer") or not _is_as_declared(rcutils):
            return None
    except (OSError, AttributeError):
        return None
    found.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
    found.restype = ctypes.c_int
    return found


def _is_as_declared(rcutils: Any) -> bool:
    """Whether the functions of rcutils read the structures declared here as they are written."""
    target = _Target()
    target.use(0, 0)
    made = rcutils.rcutils_uint8_array_init(
        ctypes.c_void_p(target.pointer), ctypes.c_size_t(16), ctypes.byref(target.array.allocator)
    )
    first = target.larger
    if made or first is None or (target.array.buffer, target.array.capacity) != (first.ctypes.data, 16):
        return False
    grown = rcutils.rcutils_uint8_array_resize(ctypes.c_void_p(target.pointer), ctypes.c_size_t(64))
    second = target.larger
    if grown or second is first or second is None:
        return False
    return (target.array.buffer, target.array.length, target.array.capacity) == (second.ctypes.data, 0, 64)


FIRST_BYTES = 4096  # size of the buffer for the first large message, which determines the size of the next buffers
BUFFERS = 2  # buffers of a large topic: one for the message that is being received, one for the next
HEADER_BYTES = 16  # encapsulation, stamp and length of frame_id
_LENGTH = {0: struct.Struct(">I"), 1: struct.Struct("<I")}  # by the byte order in the encapsulation


@dataclass
class Delay:
    """Sum, count and maximum of a delay since it was last read."""

    total_ns: int = 0
    count: int = 0
    max_ns: int = 0

    def add(self, delay_ns: int) -> None:
        """Add one delay."""
        self.total_ns += delay_ns
        self.count += 1
        self.max_ns = max(self.max_ns, delay_ns)

    def read(self) -> tuple[float, float] | None:
        """Mean and maximum in ms since the last call; None if there was no delay."""
        total, count, most = self.total_ns, self.count, self.max_ns
        self.total_ns = self.count = self.max_ns = 0
        return (total / count / 1e6, most / 1e6) if count else None


@dataclass
class StreamState:
    """State of a stream's messages, in addition to the engine's counters."""

    newest_arrival_ns: int | None = None
    publishers: int = 0  # of its topic, at the last check
    loss: str = ""  # why messages may be lost on the way
    age: Delay = field(default_factory=Delay)  # header stamp to arrival
    transport: Delay = field(default_factory=Delay)  # publication to reception, by the middleware's timestamps
    frame_id: str = ""
    crashed: int = 0  # messages that raised an exception other than DecodeError
    problems: dict[str, str] = field(default_factory=dict)  # problems with the topic's publishers, by cause (type, qos)
    events: Counter[str] = field(default_factory=Counter)


@dataclass
class Topic:
    """A subscribed topic and the streams that receive its messages."""

    subscription: Subscription[Any]
    streams: tuple[StreamSpec, ...]
    qos: QosSpec
    name: str  # the topic, after remapping
    auto: bool = False  # whether the reliability follows from what the publishers offer
    wanted: QosSpec | None = None  # QoS that the thread that receives the topic shall subscribe with next
    largest_bytes: int = 0  # size of the largest message so far, of a large topic
    buffers: deque[NDArray[np.uint8]] = field(default_factory=deque)  # for the next large messages

    @property
    def large(self) -> bool:
        """Whether messages are images or clouds, which are received into the engine's buffers."""
        return self.streams[0].kind != "vector"

    @property
    def buffer_bytes(self) -> int:
        """Bytes of the buffers for the next large messages."""
        return buffer_for(self.largest_bytes) if self.largest_bytes else FIRST_BYTES

    def take(self, subscriber: RawSubscriber, limit: int) -> Iterator[ReceivedMessage]:
        """The waiting messages, oldest first, at most `limit`."""
        for _ in range(limit):
            message = self._take_large(subscriber) if self.large else subscriber.take(self.subscription)
            if message is None:
                return
            yield message

    def _take_large(self, subscriber: RawSubscriber) -> ReceivedMessage | None:
        nbytes = self.buffer_bytes
        while self.buffers and len(self.buffers[0]) < nbytes:  # only this thread removes buffers; another one adds them
            self.buffers.popleft()
        buffer = self.buffers.popleft() if self.buffers else np.empty(nbytes, np.uint8)
        message = subscriber.take_into(self.subscription, buffer)
        if message is None:
            self.buffers.appendleft(buffer)
        else:
            self.largest_bytes = max(self.largest_bytes, len(message.data))
        return message


class TopicSubscriptions:
    """The subscriptions of a spec."""

    def __init__(
        self, node: Node, spec: FusionSpec, ingest: Ingest, *, reliable: bool = False, run_log: RunLog | None = None
    ) -> None:
        self._run_log = run_log
        self.states = {stream.name: StreamState() for stream in spec.feeds}
        self._node = node
        self._ingest = ingest
        self._raw_subscriber = RawSubscriber()
        shared: dict[tuple[Any, ...], list[StreamSpec]] = {}
        for stream in spec.feeds:
            shared.setdefault((stream.topic, stream.type, stream.qos), []).append(stream)
        # Images and clouds are last, so that joints do not wait for them.
        ordered = sorted(shared.values(), key=lambda streams: streams[0].kind != "vector")
        self.topics = [self._subscribe(tuple(streams), reliable) for streams in ordered]

    def take(self) -> list[tuple[Topic, ReceivedMessage]]:
        """The waiting messages, at most the queue depth of each topic."""
        self.provide_buffers()
        return [entry for topic in self.topics for entry in self.take_from(topic, topic.qos.depth)]

    def take_from(self, topic: Topic, limit: int) -> list[tuple[Topic, ReceivedMessage]]:
        """The waiting messages of a topic, oldest first, at most `limit`."""
        self.resubscribe(topic)
        return [(topic, message) for message in topic.take(self._raw_subscriber, limit)]

    def provide_buffers(self) -> None:
        """Get buffers from the engine for the next large messages; called in the thread that pushes them."""
        for topic in self.topics:
            if topic.large and topic.largest_bytes:
                while len(topic.buffers) < BUFFERS:
                    topic.buffers.append(self._ingest.engine.buffer(topic.streams[0].name, topic.buffer_bytes))

    def push(self, topic: Topic, message: ReceivedMessage, arrival_ns: int) -> None:
        """Hand a message to each of its streams; never raises."""
        data, source_ns, received_ns = message
        if self._run_log:
            self._run_log.message(topic.streams[0].topic, data, arrival_ns)
        for stream in topic.streams:
            state = self.states[stream.name]
            state.newest_arrival_ns = arrival_ns
            if source_ns and received_ns:
                state.transport.add(received_ns - source_ns)
            if topic.large:
                state.frame_id = _frame_id(data) or state.frame_id
            try:
                self._ingest.serialized(stream.name, data, arrival_ns)
            except Exception as error:
                # Ingest counts bad messages itself. Any other exception is a bug in this package; the node continues.
                if not state.crashed:
                    text = printable(repr(error), 120)
                    self._node.get_logger().error(f"{stream.name}: a message could not be decoded: {text}")
                state.crashed += 1
                continue
            stamp_ns = self._ingest.stamps_ns.pop(stream.name, None)
            if stamp_ns and stream.stamp != "receive":
                clock = self._ingest.engine.device_clocks.get(stream.name)
                state.age.add(arrival_ns - (clock.newest_ns if clock else stamp_ns))

    def discard(self) -> None:
        """Drop the messages that wait in the middleware."""
        self.take()  # limited to the queue depths, so that a flood does not keep it busy

    def destroy(self) -> None:
        """Destroy the subscriptions."""
        for topic in self.topics:
            self._node.destroy_subscription(topic.subscription)
        self.topics = []

    def resubscribe(self, topic: Topic) -> None:
        """Subscribe to a topic with the QoS that `TopicChecks` wants; called by the thread that receives it."""
        wanted, topic.wanted = topic.wanted, None
        if wanted:
            self._node.destroy_subscription(topic.subscription)
            topic.subscription, topic.qos = self._subscription(topic.streams[0], wanted), wanted

    def _subscribe(self, streams: tuple[StreamSpec, ...], reliable: bool) -> Topic:
        first = streams[0]
        large = first.kind != "vector"
        requested = for_replay(first.qos, large=large) if reliable else first.qos
        name = self._node.resolve_topic_name(first.topic)
        auto = requested.reliability == "auto"
        if auto:
            offered = [publisher.qos_profile for publisher in self._node.get_publishers_info_by_topic(name)]
            all_reliable = large and offered and not any_best_effort(offered)
            requested = replace(requested, reliability="reliable" if all_reliable else "best_effort")
        return Topic(self._subscription(first, requested), streams, requested, name, auto)

    def _subscription(self, stream: StreamSpec, requested: QosSpec) -> Subscription[Any]:
        subscription: Subscription[Any] = middleware.raw_subscription(
            self._node, message_class(stream), stream.topic, profile(requested)
        )
        return subscription


def message_class(stream: StreamSpec) -> type[Any]:
    """The message class of a stream; RoboCacheError if its package is not installed."""
    return middleware.message_class(stream.type, f"streams.{stream.name}.type")


def definitions(spec: FusionSpec) -> dict[str, str]:
    """The definitions of the spec's message types, from the installed classes; transforms need no definition."""
    texts: dict[str, str] = {}
    for stream in (feed for feed in spec.feeds if not feed.is_transform):
        texts.update(definitions_of(message_class(stream)))
    return texts


def _frame_id(data: bytes | memoryview) -> str:
    """The frame of an image or a cloud, whose first field is the header; empty if it is missing or truncated."""
    if len(data) < HEADER_BYTES:
        return ""
    (length,) = _LENGTH[data[1] & 1].unpack_from(data, HEADER_BYTES - 4)
    if not 0 < length <= min(256, len(data) - HEADER_BYTES):
        return ""
    return str(data[HEADER_BYTES : HEADER_BYTES + length - 1], errors="replace")


IDLE_NS = 100_000_000  # how often the thread checks whether to stop
PAUSE_S = 0.002  # pause while the received messages are not read, and in a flood
LARGE_BATCH = 8  # messages of a topic in a row; more indicate a flood, or waited during a stall
MAX_LARGE_UNREAD = 64  # messages received and not read; others wait in the middleware's queues


class LargeMessages:
    """Receives the messages of the large topics as they arrive; for a node on the wall clock.

    Copying a camera image takes 2 ms, without the interpreter's lock. A message whose copy is not complete when a tick
    is computed counts as arrived after the tick.
    """

    def __init__(self, node: Node, subscriptions: TopicSubscriptions, failed: Callable[[Exception], None]) -> None:
        self.arrived = middleware.signal(node)  # triggered for each message
        self._subscriptions = subscriptions
        self._topics: Sequence[Topic] = [topic for topic in subscriptions.topics if topic.large]
        self._received: deque[tuple[Topic, ReceivedMessage]] = deque()
        self._raw_subscriber = RawSubscriber()
        self._waiter = middleware.Waiter(node, len(self._topics))
        self._thread = process.Repeated("robocache-large", self._step, failed)
        if self._topics:
            self._thread.start()

    def read(self, limit: int) -> list[tuple[Topic, ReceivedMessage]]:
        """The messages received and not yet read, oldest first, at most `limit`."""
        return [self._received.popleft() for _ in range(min(limit, len(self._received)))]

    def destroy(self) -> None:
        """Stop, and release the wait set."""
        self._thread.stop()
        self._waiter.destroy()
        self.arrived.destroy()

    def _step(self) -> None:
        flooded = len(self._received) >= MAX_LARGE_UNREAD
        for topic in self._topics if not flooded else ():
            flooded = self._receive(topic) or flooded
        if flooded:
            self._thread.stopped.wait(PAUSE_S)
        else:
            self._waiter.wait(IDLE_NS, [topic.subscription for topic in self._topics])

    def _receive(self, topic: Topic) -> bool:
        """Receive the messages of a topic; returns whether there may be more."""
        self._subscriptions.resubscribe(topic)
        count = 0
        for message in topic.take(self._raw_subscriber, LARGE_BATCH):
            self._received.append((topic, message))
            self.arrived.trigger()
            count += 1
        return count == LARGE_BATCH


ARRIVALS_BATCH = 32  # messages read from a queue in a row; a topic of 1 kHz has 20 in a tick at 50 Hz

ReadQueue: TypeAlias = "Callable[[int], Sequence[tuple[Topic, ReceivedMessage]]]"


class _Entry(NamedTuple):
    arrival_ns: int
    queue: int
    topic: Topic
    message: ReceivedMessage


_arrival_ns = attrgetter("arrival_ns")


class Arrivals:
    """Merges queues of messages.

    The queues are read in turn, `BATCH` messages at a time. A queue that returned `BATCH` messages may contain more,
    which may be older than messages of other queues. Messages that are newer than its last one therefore wait until it
    is empty, or until the time limit.

    Attributes:
        flooded: whether the last `read` reached its time limit.
    """

    def __init__(self, queues: Sequence[ReadQueue]) -> None:
        self._queues = queues
        self._held: list[_Entry] = []
        self.flooded = False

    def read(
        self, earliest_ns: Callable[[], int], limit_ns: int, grace_ns: int
    ) -> Iterator[tuple[int, Topic, ReceivedMessage]]:
        """The messages that have arrived, with their arrival in ns, in order; at least one, if there is one.

        Args:
            earliest_ns: lower bound for arrivals, because the tick of that time has been computed.
            limit_ns: time limit after which messages of queues that are not empty are left for the next call.
            grace_ns: additional time after which the messages of all queues are left for the next call.
        """
        end_ns = time.monotonic_ns() + limit_ns
        self.flooded = False
        while True:
            full = self._fill()
            last_ns = [max(e.arrival_ns for e in self._held if e.queue == queue) for queue in full]
            horizon_ns = min(last_ns, default=None)
            ready = self._held
            if horizon_ns is not None:
                ready = [entry for entry in self._held if entry.arrival_ns <= horizon_ns]
            self._held = self._held[len(ready) :]
            for index, (arrival_ns, _, topic, message) in enumerate(ready):
                if index and time.monotonic_ns() > end_ns:
                    self._held = ready[index:] + self._held
                    yield from self._read_quiet(full, earliest_ns, end_ns + grace_ns)
                    return
                yield max(arrival_ns, earliest_ns()), topic, message
            if not full:
                return
            if time.monotonic_ns() > end_ns:
                yield from self._read_quiet(full, earliest_ns, end_ns + grace_ns)
                return

    def _read_quiet(
        self, full: set[int], earliest_ns: Callable[[], int], end_ns: int
    ) -> Iterator[tuple[int, Topic, ReceivedMessage]]:
        """The messages of the queues that are empty now; the others are left for the next call."""
        self.flooded = True
        ready = [entry for entry in self._held if entry.queue not in full]
        self._held = [entry for entry in self._held if entry.queue in full]
        for index, (arrival_ns, _, topic, message) in enumerate(ready):
            if time.monotonic_ns() > end_ns:
                self._held = sorted(ready[index:] + self._held, key=_arrival_ns)
                return
            yield max(arrival_ns, earliest_ns()), topic, message

    def _fill(self) -> set[int]:
        """Read the queues; returns those that may contain more messages."""
        waiting = [0] * len(self._queues)
        for entry in self._held:
            waiting[entry.queue] += 1
        now_ns = time.time_ns()
        full = set()
        for queue, read in enumerate(self._queues):
            if waiting[queue] < ARRIVALS_BATCH:  # otherwise new messages stay in the middleware's bounded queue
                found = read(ARRIVALS_BATCH)
                self._held += [_Entry(message.received_ns or now_ns, queue, topic, message) for topic, message in found]
                if len(found) < ARRIVALS_BATCH:
                    continue
            full.add(queue)
        self._held.sort(key=_arrival_ns)
        return full


FLOOD_WINDOW_NS = 1_000_000_000  # a flood lasts for whole windows; it has pauses
FLOOD_SHARE = 0.25  # of the steps of a window that reach their limit in a flood


class Flood:
    """Whether messages arrive faster than they can be pushed.

    A flood begins with a step that reaches its time limit. It ends after a window in which few steps reached theirs: in
    normal operation a step reaches the short limit of a flood now and then, for example with two large images. A flood
    with pauses, of a reliable publisher that waits while its queue is full, is one flood.

    Attributes:
        active: whether a flood is going on.
    """

    def __init__(self) -> None:
        self.active = False
        self._window_start_ns = 0
        self._steps = self._limited = 0

    def add(self, limited: bool) -> None:
        """Count a step; `limited`: whether it reached its time limit."""
        now_ns = time.monotonic_ns()
        if not self.active:
            if limited:
                self.active, self._window_start_ns, self._steps, self._limited = True, now_ns, 0, 0
            return
        self._steps += 1
        self._limited += limited
        if now_ns - self._window_start_ns >= FLOOD_WINDOW_NS:
            self.active = self._limited >= FLOOD_SHARE * self._steps
            self._window_start_ns, self._steps, self._limited = now_ns, 0, 0


TF_STATIC_DEPTH = 100  # one message of each publisher of static transforms


def subscribe_static_transforms(
    node: Node, spec: FusionSpec, ingest: Ingest, run_log: RunLog | None = None, **options: Any
) -> Subscription[Any] | None:
    """Subscribe to /tf_static, with options of the node's `create_subscription`; None if no stream needs it.

    Raises:
        RoboCacheError: tf2_msgs is not installed.
    """
    if not spec.framed and not spec.transforms:
        return None
    found = middleware.load_message_class(TF_TYPE)
    if found is None:
        key = f"{spec.framed[0].name}.voxels.frame" if spec.framed else f"{spec.transforms[0].name}.type"
        hint = "install it, or give voxels.extrinsic" if spec.framed else "install it"
        raise RoboCacheError(f"streams.{key}: {TF_STATIC} needs the package tf2_msgs, which is not installed; {hint}")

    def take(data: bytes) -> None:
        if run_log:
            run_log.static_transforms(data)
        ingest.static_transforms(data)

    return node.create_subscription(found, TF_STATIC, take, middleware.latched(TF_STATIC_DEPTH), raw=True, **options)
