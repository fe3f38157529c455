"""`FusedFilter`: the fusion engine as a filter of message_filters, inside the process of the node that uses it."""

from __future__ import annotations

import os
import re
import threading
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any

import torch
from message_filters import SimpleFilter
from rclpy.clock import JumpThreshold
from rclpy.duration import Duration
from rclpy.node import Node
from rclpy.serialization import serialize_message
from rclpy.time import Time
from rclpy.utilities import get_rmw_implementation_identifier
from std_msgs.msg import Header
from torch import Tensor

from robocache_ros.bags.suggest.fields import VECTORS
from robocache_ros.bags.suggest.spec_text import as_name
from robocache_ros.engine import Frames, FusionEngine, Ingest
from robocache_ros.engine.frames import FusedFrame, split_window
from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.nodes import middleware, transport
from robocache_ros.nodes.diagnostics import TopicChecks
from robocache_ros.nodes.fused_subscriber import ImageConverter
from robocache_ros.nodes.publishers import Window
from robocache_ros.nodes.subscriptions import TopicSubscriptions, definitions, subscribe_static_transforms
from robocache_ros.nodes.tick_loop import (
    IDLE_NS,
    ClockReader,
    ClockSource,
    SimClockSource,
    TickLoop,
    TickStats,
    WallClockSource,
    due_ticks,
)
from robocache_ros.spec import IMAGE_TYPES, FusionSpec, StreamSpec, load_spec

CHECK_S = 1.0  # period at which the publishers of the topics are checked
MAX_WAITING_BYTES = 256 << 20  # of the messages that filters have delivered and the engine has not taken
_SCALAR = re.compile(r"^std_msgs/msg/(Bool|Float(32|64)|U?Int(8|16|32|64))$")


class StampedFrame(FusedFrame):
    """A frame with the header that other filters, such as Cache and TimeSynchronizer, read."""

    @property
    def header(self) -> Header:
        """A std_msgs/Header whose stamp is the time of the tick."""
        return Header(stamp=Time(nanoseconds=self.tick_ns).to_msg())


class FusedFilter(SimpleFilter):  # type: ignore[misc]  # message_filters has no types
    """A filter that delivers one fused frame per tick.

    Callbacks get a `StampedFrame`, the frame of `FusedSubscriber` with a `header`, followed by the arguments that were
    given to `registerCallback`. They run in the order of registration, in the executor that spins the node, as those of
    a Subscriber do, and a tick is delivered at its time + `delay_ms` whatever has arrived: `frame.valid` marks streams
    without a value. Images and voxels of the tick are in the frame, with the values of `FusedSubscriber`.

    There are two ways to give the inputs:

    - `FusedFilter(node, spec)`, where `spec` is the path of a fusion spec, its contents, or a `FusionSpec`. The filter
      subscribes to the topics of the spec as the fusion node does: its frames are those that the node publishes.
    - `FusedFilter(node, [Subscriber(...), ...], rate_hz=50)`, as a TimeSynchronizer is made. Every input has a `topic`
      and a `msg_type`, as a Subscriber has, and delivers messages of it; with `raw=True` a Subscriber delivers them as
      bytes, which saves to serialize them again. A message arrives when its input delivers it, by the clock of the
      node. The streams follow from the types: images; poses, twists, wrenches, odometry and Imu, with a stream for each
      part, such as `imu_angular_velocity`; single numbers of std_msgs. Other types do not say which values are meant
      (the joints of a JointState, the grid of a cloud, the field of a message): `streams` does.

    With the parameter `use_sim_time` of the node at the start, ticks follow /clock.

    Args:
        node: spun by the caller. Its namespace is that of relative topics.
        inputs: a spec, or filters.
        queue_size: frames that wait for a busy executor; the oldest are dropped and counted as `overtaken`.
        streams: with filters: the streams by name, as in a spec, without `type`. `topic` names the filter. Topics that
            are not named have the streams of their type.
        device: where ticks are computed, and where images and voxels of frames are: `cpu`, `cuda`, `cuda:1` or `auto`.
        dtype: dtype of images; see `FusedSubscriber`.
        normalize: apply the `normalize` of each stream's spec to its images.
        keys: with filters: keys of a spec, such as `rate_hz`, `delay_ms`, `horizon` and `emit`.

    Attributes:
        spec: the spec, given or made from the filters.
        overtaken: frames that were dropped because the executor was busy.

    Raises:
        RoboCacheError: a spec, a stream, the device or a message type cannot be used.
    """

    def __init__(
        self,
        node: Node,
        inputs: str | os.PathLike[str] | Mapping[str, Any] | FusionSpec | Sequence[Any],
        queue_size: int = 10,
        *,
        streams: Mapping[str, Mapping[str, Any]] | None = None,
        device: str = "cpu",
        dtype: torch.dtype = torch.float32,
        normalize: bool = False,
        **keys: Any,
    ) -> None:
        super().__init__()
        filters: Sequence[Any] = ()
        if not isinstance(inputs, (str, os.PathLike, Mapping, FusionSpec)):
            filters = inputs
            by_name = derived_streams(filters, streams or {}, node.get_namespace())
            inputs = {"robocache": 1, "streams": by_name, **keys}
        elif streams or keys:
            given = ", ".join([*(["streams"] if streams else []), *keys])
            raise RoboCacheError(f"FusedFilter: {printable(given, 80)}: given beside a spec; write them in the spec")
        if isinstance(inputs, FusionSpec):
            self.spec = inputs.in_namespace(node.get_namespace())
        else:
            self.spec = load_spec(inputs if isinstance(inputs, Mapping) else os.fspath(inputs), node.get_namespace())
        self.overtaken = 0
        self._node = node
        self._convert = ImageConverter(dtype, normalize=normalize)
        self._engine = FusionEngine(self.spec, device)
        self._ingest = Ingest(self.spec, self._engine, definitions(self.spec), live=True)
        self._window = Window(self.spec.horizon, self._engine.layout.row_width, self.spec.rate_hz)
        self._sim_time = bool(node.get_parameter("use_sim_time").value)
        self._subscriptions: TopicSubscriptions | None = None
        self._checks: Any = None
        clock: ClockSource
        if filters:
            clock = FilterSource(node, filters, self._ingest, self.spec, sim_time=self._sim_time)
        else:
            self._subscriptions = TopicSubscriptions(node, self.spec, self._ingest)
            checks = TopicChecks(node, self._subscriptions, transport.limit(get_rmw_implementation_identifier()))
            self._checks = node.create_timer(CHECK_S, lambda: checks.check(active=True))
            clock = (
                SimClockSource(self._subscriptions, self._engine, ClockReader(node, Counter(), sets_clock=False))
                if self._sim_time
                else WallClockSource(node, self._subscriptions, self._engine, self._failed)
            )
        self._static_transforms = subscribe_static_transforms(
            node, self.spec, self._ingest, event_callbacks=middleware.no_events()
        )
        self._ready: deque[StampedFrame] = deque(maxlen=queue_size)
        self._guard = node.create_guard_condition(self._deliver)
        self._loop = TickLoop(
            clock,
            self._publish,
            self._failed,
            TickStats(len(self.spec.streams)),
            None if self._sim_time or self.spec.emit == "eager" else self.spec.delay_ns,
            self.spec.delay_ns - self.spec.cut_ns,
        )
        self._closed = False
        self._loop.start()

    @property
    def counters(self) -> dict[str, dict[str, int]]:
        """What became of the messages of each stream, by cause, as in the diagnostics of the fusion node."""
        return {
            stream.name: dict(self._ingest.counters[stream.name]) | self._engine.lost(stream.name)
            for stream in self.spec.streams
        }

    def close(self) -> None:
        """Stop, and destroy the subscriptions; before the node is destroyed. The given filters are left as they are."""
        if self._closed:
            return
        self._closed = True
        self._loop.stop()
        if self._checks:
            self._node.destroy_timer(self._checks)
        if self._subscriptions:
            self._subscriptions.destroy()
        if self._static_transforms:
            self._node.destroy_subscription(self._static_transforms)
        self._node.destroy_guard_condition(self._guard)

    def __enter__(self) -> FusedFilter:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _publish(self, frames: Frames, wait_until_due: Callable[[int], None]) -> None:
        """Called in the thread of the ticks."""
        rows = frames.rows().numpy()
        for index, tick_ns in enumerate(frames.ticks_ns.tolist()):
            window = torch.from_numpy(self._window.push(tick_ns, rows[index]).copy())
            frame = split_window(self._engine.layout, tick_ns, window)
            for stream in self.spec.media:
                frame.tensors[stream.name] = self._media(stream, frames.media[stream.name][index])
            values = {field.name: getattr(frame, field.name) for field in fields(frame)}
            frame = StampedFrame(**{**values, "clock": self._now_ns})
            wait_until_due(tick_ns)
            self.overtaken += len(self._ready) == self._ready.maxlen
            self._ready.append(frame)
            self._guard.trigger()

    def _media(self, stream: StreamSpec, value: Tensor) -> Tensor:
        found = self._convert(stream, value if value.numel() else None)
        # A tensor on the GPU is a view of a ring, which later ticks overwrite.
        return found.clone() if found.device.type == "cuda" else found

    def _deliver(self) -> None:
        """Called in the executor of the node."""
        while self._ready and not self._closed:
            self.signalMessage(self._ready.popleft())

    def _now_ns(self) -> int:
        return int(self._node.get_clock().now().nanoseconds) if self._sim_time else time.time_ns()

    def _failed(self, error: Exception) -> None:
        """Called in the thread of the ticks, which has ended; at a shutdown, its subscriptions end before it."""
        if self._node.context.ok() and not self._closed:
            text = "".join(traceback.format_exception(error))
            self._node.get_logger().fatal(f"FusedFilter: no more frames are delivered:\n{text}")


class FilterSource:
    """A `ClockSource` of the messages that filters deliver, by the clock of the node.

    Raises:
        RoboCacheError: no filter delivers the topic of a stream.
    """

    def __init__(self, node: Node, filters: Sequence[Any], ingest: Ingest, spec: FusionSpec, *, sim_time: bool) -> None:
        self._sim_time = sim_time
        self._node, self._ingest, self._engine = node, ingest, ingest.engine
        self._clock: Any = node.get_clock()
        self._changed = threading.Condition()
        self._arrived: list[tuple[int, tuple[str, ...], bytes]] = []
        self._bytes = 0
        self._lost = False
        self._closed = False
        topics = [_absolute(each.topic, node.get_namespace()) for each in filters]
        for feed in spec.feeds:
            if feed.topic not in topics:
                raise RoboCacheError(
                    f"streams.{feed.name}: no filter has the topic {printable(feed.topic, 60)}; add a Subscriber to it"
                )
        for each, topic in zip(filters, topics, strict=True):
            names = tuple(feed.name for feed in spec.feeds if feed.topic == topic)
            each.registerCallback(self._add, names)
        # Each /clock wakes the thread of the ticks.
        threshold = JumpThreshold(min_forward=Duration(nanoseconds=1), min_backward=Duration(nanoseconds=-1))
        self._jumps = self._clock.create_jump_callback(threshold, post_callback=lambda _: self._wake())

    def step(self) -> Iterator[Frames]:
        """Push the messages that have arrived, and yield the ticks that are due."""
        with self._changed:
            arrived, self._arrived, self._bytes = self._arrived, [], 0
            now_ns = self._now_ns()
        for arrival_ns, feeds, data in arrived:
            due_ns = self._engine.next_due_ns
            if due_ns is not None and due_ns < arrival_ns:
                yield from due_ticks(self._engine, arrival_ns - 1)
            for feed in feeds:
                try:
                    self._ingest.serialized(feed, data, arrival_ns)
                except Exception as error:  # Ingest counts bad messages itself
                    text = printable(repr(error), 120)
                    self._node.get_logger().error(f"{feed}: a message could not be decoded: {text}", once=True)
        if now_ns:  # 0 before the first /clock; see SimClockSource for the deadline itself
            yield from due_ticks(self._engine, now_ns - self._sim_time)

    def wait(self) -> None:
        """Return when a message has arrived, the clock has been set, or a tick is due."""
        due_ns = self._engine.next_due_ns
        with self._changed:
            left_ns = IDLE_NS if due_ns is None else due_ns - self._now_ns()
            if not self._arrived and left_ns > 0:
                self._changed.wait((IDLE_NS if self._sim_time else min(left_ns, IDLE_NS)) / 1e9)

    def destroy(self) -> None:
        """Take no more messages: message_filters has no way to disconnect."""
        self._closed = True
        self._jumps.unregister()

    def _now_ns(self) -> int:
        return int(self._clock.now().nanoseconds)

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify()

    def _add(self, message: Any, feeds: tuple[str, ...]) -> None:
        """Called in the executor of the node."""
        if self._closed:
            return
        data = message if isinstance(message, bytes) else serialize_message(message)
        with self._changed:
            now_ns = self._now_ns()
            if not now_ns:
                return
            if self._bytes + len(data) > MAX_WAITING_BYTES:
                if not self._lost:
                    self._node.get_logger().error(
                        "FusedFilter: messages come faster than they are fused; some are dropped; lower their rate"
                    )
                self._lost = True
                return
            self._bytes += len(data)
            self._arrived.append((now_ns, feeds, data))
            self._changed.notify()


def derived_streams(
    filters: Sequence[Any], given: Mapping[str, Mapping[str, Any]], namespace: str
) -> dict[str, dict[str, Any]]:
    """The streams of filters, as in a spec: those that are given, with their types, and those of the other topics.

    Raises:
        RoboCacheError: a filter has no topic, or its type does not determine the values.
    """
    for number, each in enumerate(filters):
        if not (hasattr(each, "topic") and hasattr(each, "msg_type")):
            raise RoboCacheError(
                f"FusedFilter: input {number} has no topic and msg_type; give a message_filters.Subscriber"
            )
    types = {_absolute(each.topic, namespace): _type_name(each.msg_type) for each in filters}
    found: dict[str, dict[str, Any]] = {}
    named = set()
    for name, keys in given.items():
        topics = [_absolute(str(keys[key]), namespace) for key in ("topic", "camera_info", "color") if key in keys]
        named |= set(topics)
        kind = types.get(topics[0]) if "topic" in keys else None
        found[name] = {**({"type": kind} if kind else {}), **keys}
    if any("frame" in keys.get("voxels", {}) for keys in given.values()):
        named.add("/tf")
    for topic, kind in types.items():
        if topic not in named:
            found.update(_streams_of_type(topic, kind))
    return found


def _streams_of_type(topic: str, kind: str) -> dict[str, dict[str, Any]]:
    name = as_name(topic).lstrip("_0123456789") or "stream"
    of_topic = {"topic": topic, "type": kind}
    if kind in IMAGE_TYPES:
        return {name: of_topic}
    if kind in VECTORS:
        parts = {}
        for path, quantity, unit in VECTORS[kind]:
            align = "slerp" if quantity == "orientation" else "linear"
            parts[f"{name}_{quantity}"] = {
                **of_topic,
                "field": path,
                "align": align,
                **({"unit": unit} if unit else {}),
            }
        return parts
    if _SCALAR.match(kind):
        return {name: {**of_topic, "align": "linear" if "Float" in kind else "hold"}}
    raise RoboCacheError(
        f"FusedFilter: {printable(topic, 50)}: {kind} does not say which values are meant; "
        f"give streams={{'{name[:20]}': {{'topic': ..., ...}}}} with names, field and dim, or voxels"
    )


def _type_name(message_class: type[Any]) -> str:
    return f"{message_class.__module__.partition('.')[0]}/msg/{message_class.__name__}"


def _absolute(topic: str, namespace: str) -> str:
    return topic if topic.startswith("/") else f"{namespace.rstrip('/')}/{topic}"
