"""`FusedSubscriber`: the ticks of a fusion node as tensors."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
import traceback
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import rclpy
import torch
from diagnostic_msgs.msg import DiagnosticArray
from rclpy.callback_groups import CallbackGroup, MutuallyExclusiveCallbackGroup
from rclpy.node import Node
from rclpy.qos import QoSProfile
from rclpy.serialization import deserialize_message
from rosgraph_msgs.msg import Clock
from sensor_msgs.msg import CompressedImage, Image, PointCloud2
from std_msgs.msg import Float32MultiArray, String
from torch import Tensor

from robocache_ros import ipc, ops
from robocache_ros.engine.frames import FusedFrame, split_window
from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.ipc.frame_ring import FrameReader
from robocache_ros.nodes import frame_messages, middleware
from robocache_ros.nodes.process import ended_by_signals, spun
from robocache_ros.nodes.sim_timeline import read_clock
from robocache_ros.ops.image.conversion import mean_std
from robocache_ros.spec import StreamSpec, load_spec
from robocache_ros.spec.layout import Layout
from robocache_ros.units import NS_PER_MS, NS_PER_S


class BackgroundNode:
    """A node with its own context, spun by a thread: the caller needs neither `rclpy.init()` nor an executor."""

    def __init__(self, name: str, namespace: str | None = None) -> None:
        self._context = rclpy.Context()
        rclpy.init(context=self._context, signal_handler_options=None)
        self.node: Node = rclpy.create_node(name, context=self._context, namespace=namespace)
        self._spinning = ExitStack()

    def start(self) -> None:
        """Start spinning."""
        self._spinning.enter_context(spun(self.node, f"robocache-{self.node.get_name()}"))

    def close(self) -> None:
        """Stop spinning and destroy the node."""
        self._spinning.close()
        rclpy.try_shutdown(context=self._context)
        self.node.destroy_node()


class DiagnosticsWatch:
    """Keeps the newest values that one node reports.

    Attributes:
        values: name of a part, such as a stream -> key -> newest value.
    """

    def __init__(self, node: str) -> None:
        self.values: dict[str, dict[str, str]] = {}
        self._prefix = f"{node}: "
        self._background = BackgroundNode("diagnostics_watch")
        self._background.node.create_subscription(
            DiagnosticArray, "/diagnostics", self._on_diagnostics, middleware.reliable(10)
        )
        self._background.start()

    def __enter__(self) -> DiagnosticsWatch:
        return self

    def __exit__(self, *_: object) -> None:
        self._background.close()

    def _on_diagnostics(self, message: DiagnosticArray) -> None:
        for status in message.status:
            if status.name.startswith(self._prefix):
                part = status.name[len(self._prefix) :]
                reported = {pair.key: pair.value for pair in status.values if pair.value}
                self.values[part] = self.values.get(part, {}) | reported


log = logging.getLogger(__name__)

RING_WAIT_S = 0.2  # period at which a follower checks whether it is closed
AWAITED = 8  # ticks whose images are waited for


class Assembly:
    """Combines the window and the images of each tick.

    Attributes:
        incomplete: frames dropped because one of their images did not arrive in time.
    """

    def __init__(self, images: Sequence[str]) -> None:
        self.incomplete = 0
        self._waiting: deque[FusedFrame] = deque()
        self._newest_ns: int | None = None  # tick of the newest window
        self._images: dict[str, dict[int, Tensor]] = {name: {} for name in images}

    def add_window(self, frame: FusedFrame) -> list[FusedFrame]:
        """Add a frame without images; returns the frames that are complete now, in order."""
        if self._newest_ns is not None and frame.tick_ns <= self._newest_ns:
            self._restart(frame.tick_ns)
        self._newest_ns = frame.tick_ns
        self._waiting.append(frame)
        return self._pop_complete()

    def add_image(self, name: str, tick_ns: int, image: Tensor) -> list[FusedFrame]:
        """Add the image of a tick; returns the frames that are complete now, in order."""
        kept = self._images[name]
        if kept and tick_ns <= next(reversed(kept)):
            kept.clear()  # the clock has jumped back: a tick with the same time is a different tick
        kept[tick_ns] = image
        while len(kept) > AWAITED:
            del kept[next(iter(kept))]
        return self._pop_complete()

    def clear(self) -> None:
        """Discard the waiting frames."""
        self._waiting.clear()

    def _restart(self, tick_ns: int) -> None:
        """Discard what is not of the new timeline, after the clock has jumped back to a tick."""
        self.incomplete += len(self._waiting)
        self._waiting.clear()
        for kept in self._images.values():
            if kept and next(reversed(kept)) > tick_ns:
                kept.clear()

    def _pop_complete(self) -> list[FusedFrame]:
        """Remove and return the complete frames; a newer complete frame replaces older incomplete ones."""
        complete = [self._is_complete(frame) for frame in self._waiting]
        if not any(complete):
            while len(self._waiting) > AWAITED:
                self._waiting.popleft()
                self.incomplete += 1
            return []
        count = len(complete) - complete[::-1].index(True)
        candidates = [self._waiting.popleft() for _ in range(count)]
        frames = [frame for frame, has_all in zip(candidates, complete, strict=False) if has_all]
        self.incomplete += count - len(frames)
        for frame in frames:
            for name, images in self._images.items():
                if frame.tick_ns in images and name in frame.valid:
                    frame.tensors[name] = images[frame.tick_ns]
        return frames

    def _is_complete(self, frame: FusedFrame) -> bool:
        return all(
            frame.tick_ns in images or not frame.valid[name][-1]
            for name, images in self._images.items()
            if name in frame.valid
        )


@dataclass(eq=False)
class TopicFollower:
    """Subscribes to a fusion node's topics and delivers frames assembled from their messages.

    Images are delivered as the node publishes them; an invalid image is zero, and missing if its size is not known.
    """

    node: Node  # to subscribe with
    fusion: str  # name of the fusion node
    images: tuple[str, ...]  # image and voxel streams that a frame waits for
    deliver: Callable[[FusedFrame, Layout], None]  # called with each frame and the layout of its columns
    on_layout: Callable[[Layout, bool], None]  # called with each layout, and whether the ticks are times of /clock
    paused: Callable[[], bool]  # whether frames arrive through shared memory; images are then not subscribed to
    group: CallbackGroup
    compressed: bool = False  # whether images come as jpeg

    def __post_init__(self) -> None:
        self._layout: Layout | None = None
        self.assembly = Assembly(self.images)
        self._malformed: set[str] = set()  # topics for which an unreadable message was reported
        self._image_subscriptions: list[Any] = []
        self._subscriptions = [
            self._create(String, "layout", self._on_layout, middleware.latched()),
            # Raw: while frames are read from shared memory, a message only shows that the node is alive.
            self._create(Float32MultiArray, "fused", self._on_fused, middleware.reliable(10), raw=True),
        ]

    def close(self) -> None:
        """Destroy the subscriptions."""
        for subscription in (*self._subscriptions, *self._image_subscriptions):
            self.node.destroy_subscription(subscription)

    def _create(
        self, message_type: type[Any], topic: str, callback: Callable[[Any], None], profile: QoSProfile, **options: Any
    ) -> Any:
        received = self._guarded(topic, callback)
        options |= {"callback_group": self.group, "event_callbacks": middleware.no_events()}
        return self.node.create_subscription(message_type, f"{self.fusion}/{topic}", received, profile, **options)

    def _guarded(self, topic: str, callback: Callable[[Any], None]) -> Callable[[Any], None]:
        """A callback that drops messages that are not from a fusion node, with one warning per topic."""

        def receive(message: Any) -> None:
            try:
                callback(message)
            except (ValueError, LookupError, TypeError, RuntimeError, RecursionError) as error:
                if topic not in self._malformed:
                    self._malformed.add(topic)
                    self.node.get_logger().warning(
                        f"{self.fusion}/{topic}: a message cannot be read ({printable(error, 120)}); it is dropped"
                    )

        return receive

    def _on_layout(self, message: String) -> None:
        described = json.loads(message.data)
        self._layout = Layout(load_spec(described["spec"]))
        self.assembly.clear()
        self.on_layout(self._layout, described.get("use_sim_time") is True)
        self._want_images(not self.paused())

    def _on_fused(self, data: bytes) -> None:
        if self._layout is None:
            return  # a window cannot be split without its columns; the layout is latched and arrives soon
        self._want_images(not self.paused())
        if self.paused():
            self.assembly.clear()
            return
        tick_ns, window = frame_messages.read_fused(deserialize_message(data, Float32MultiArray))
        if window.shape[1] != self._layout.row_width:
            return  # from before the node was reconfigured
        self._finish(self.assembly.add_window(split_window(self._layout, tick_ns, window)))

    def _want_images(self, wanted: bool) -> None:
        """Subscribe to the image topics, or unsubscribe: a node only publishes images that have subscribers."""
        if wanted and not self._image_subscriptions and self._layout:
            media = {stream.name: stream for stream in self._layout.spec.media}
            self._image_subscriptions = [self._subscribe(media[name]) for name in self.images if name in media]
        elif not wanted:
            for subscription in self._image_subscriptions:
                self.node.destroy_subscription(subscription)
            self._image_subscriptions = []

    def _subscribe(self, stream: StreamSpec) -> Any:
        compressed = self.compressed and stream.kind == "image"
        topic = f"{stream.name}/aligned/compressed" if compressed else f"{stream.name}/aligned"
        read = frame_messages.read_compressed if compressed else frame_messages.read_image

        def on_image(message: Any) -> None:
            tick_ns = frame_messages.stamp_ns(message.header)
            current = self._layout.spec.stream(stream.name) if self._layout else stream
            tensor = frame_messages.read_voxels(message, current.voxels) if current.voxels else read(message)
            self._finish(self.assembly.add_image(stream.name, tick_ns, tensor))

        message_type = CompressedImage if compressed else Image if stream.kind == "image" else PointCloud2
        return self._create(message_type, topic, on_image, middleware.reliable(5))

    def _finish(self, frames: list[FusedFrame]) -> None:
        layout = self._layout
        for frame in frames:
            assert layout  # windows are added only when it is known
            for name in self.images:
                if name in frame.valid and name not in frame.tensors:
                    blank = frame_messages.blank(layout.spec.stream(name))
                    if blank is not None:
                        frame.tensors[name] = blank
            self.deliver(frame, layout)


@dataclass(eq=False)
class RingFollower:
    """Delivers each newest frame of a node's ring, in a separate thread.

    Attributes:
        connected: whether frames are read from the ring.

    Raises:
        IpcUnavailableError: there is no folder for the socket that only this user can enter.
    """

    node: str  # fully qualified name of the fusion node
    deliver: Callable[[FusedFrame, Layout], None]  # called with each frame from now on, and the layout of its columns
    on_layout: Callable[[Layout, bool], object]  # called at each connection; whether the ticks are times of /clock
    report: Callable[[str], object] = log.info  # called with a line when the transport of the frames changes

    def __post_init__(self) -> None:
        self._connection = ipc.Connection(ipc.socket_path(self.node))
        self._stopped = threading.Event()
        self._reported = ""
        self.connected = False
        self._thread = threading.Thread(target=self._run, name="robocache-ring", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop following."""
        self._stopped.set()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                self._follow()
            except Exception as error:  # the ring may have any contents; frames still arrive as messages
                self._connection.drop(f"the ring cannot be read ({printable(error, 120)})")
            self.connected = False
            self._report_once(f"frames come as messages: {self._connection.why}")
            self._stopped.wait(RING_WAIT_S)
        self._connection.close()

    def _follow(self) -> None:
        """Deliver frames until the connection ends."""
        while not self._stopped.is_set() and (reader := self._connection.connect()):
            described = json.loads(reader.meta)
            layout = Layout(load_spec(described["spec"]))
            frames = FrameReader(reader, layout)
            self.on_layout(layout, described.get("use_sim_time") is True)
            self.connected = True
            self._report_once("frames come from shared memory")
            while reader.alive and not self._stopped.is_set():
                frame = frames.next(RING_WAIT_S)
                if frame:
                    self.deliver(frame, layout)
                    del frame  # its tensors keep the lease of the slot

    def _report_once(self, text: str) -> None:
        if text != self._reported and not self._stopped.is_set():
            self._reported = text
            self.report(text)


POLL_S = 0.1  # period at which a waiting thread checks `ended`; a shutdown by a signal sends no notification
REPORT_S = 5.0  # period at which a thread that waits for frames logs what it waits for


@dataclass(eq=False)
class Mailbox:
    """Keeps the newest frame; threads and event loops wait for it.

    Attributes:
        overtaken: frames that were replaced by a newer frame before they were read.
    """

    ended: Callable[[], bool]  # whether no more frames are delivered; `close` has the same effect
    report: Callable[[], object] = lambda: None  # called every `REPORT_S` while a thread waits without end or in a loop
    # The error for a loop, given its `timeout_s`.
    late: Callable[[float], RoboCacheError] = lambda timeout_s: RoboCacheError(f"no tick within {timeout_s:g} s")

    def __post_init__(self) -> None:
        self.overtaken = 0
        self._closed = False
        self._changed = threading.Condition()
        self._newest: FusedFrame | None = None
        self._error = ""
        self._count = 0  # frames put so far: ticks do not order them, because a clock may jump back
        self._seen = 0  # the count at the last read
        self._loops: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    @property
    def closed(self) -> bool:
        """Whether no more frames are delivered."""
        return self._closed or self.ended()

    def put(self, frame: FusedFrame, *, seen: bool = False) -> None:
        """Replace the newest frame; `seen` if it is also delivered in another way, such as a callback."""
        with self._changed:
            self.overtaken += self._seen < self._count
            self._newest = frame
            self._count += 1
            if seen:
                self._seen = self._count
            self.notify()

    def set_error(self, error: str) -> None:
        """Set the RoboCacheError that everyone who waits for a frame gets; empty: none."""
        with self._changed:
            self._error = error
            self.notify()

    def notify(self) -> None:
        """Wake all waiting threads and event loops, which then check their conditions."""
        with self._changed:
            self._changed.notify_all()
            for loop, event in self._loops:
                with suppress(RuntimeError):  # the loop is closed
                    loop.call_soon_threadsafe(event.set)

    def close(self) -> None:
        """Deliver no more frames; waiting calls return."""
        with self._changed:
            self._closed = True
            self.notify()

    def wait_for(self, condition: Callable[[], object], timeout_s: float | None, *, loop: bool = False) -> bool:
        """Wait for a condition that `notify` signals; returns whether it is met. None: no timeout, until `closed`.

        `loop`: whether the wait is one of a loop, and therefore reported.
        """
        started = time.monotonic()
        reports = 0
        while True:
            waited = time.monotonic() - started
            with self._changed:
                if self._error:
                    raise RoboCacheError(self._error)
                if condition() or self.closed or (timeout_s is not None and waited >= timeout_s):
                    return bool(condition())
                if waited < (reports + 1) * REPORT_S or not (loop or timeout_s is None):
                    self._changed.wait(POLL_S if timeout_s is None else min(POLL_S, timeout_s - waited))
                    continue
            reports += 1
            self.report()

    def latest(
        self, timeout_s: float | None, other_than_ns: int | None, max_age_ms: float | None = None
    ) -> FusedFrame | None:
        """The newest frame, if it is of another tick and not older; None at the timeout."""

        def there() -> bool:
            frame = self._newest
            return frame is not None and frame.tick_ns != other_than_ns and _is_fresh(frame, max_age_ms)

        with self._changed:
            if not self.wait_for(there, timeout_s):
                return None
            self._seen = self._count
            return self._newest

    def frames(self, timeout_s: float | None, max_age_ms: float | None) -> Iterator[FusedFrame]:
        """Each newest frame once, until there are no more or a signal ends the loop.

        Raises:
            RoboCacheError: `timeout_s` has passed without a frame that is at most `max_age_ms` old.
        """
        given = 0
        with ended_by_signals() as signalled:
            while True:
                with self._changed:
                    there = self.wait_for(
                        lambda: signalled() or self._is_new(given, max_age_ms),  # noqa: B023  (called before it changes)
                        timeout_s,
                        loop=True,
                    )
                    if self.closed or signalled():
                        return
                    if not there and timeout_s is not None:
                        raise self.late(timeout_s)
                    given = self._seen = self._count
                    frame = self._newest
                assert frame
                yield frame

    async def frames_async(self, timeout_s: float | None, max_age_ms: float | None) -> AsyncIterator[FusedFrame]:
        """The same for an event loop."""
        event = asyncio.Event()
        entry = (asyncio.get_running_loop(), event)
        with self._changed:
            self._loops.append(entry)
        given = 0
        started = reported = time.monotonic()
        try:
            with ended_by_signals() as signalled:
                while not self.closed and not signalled():
                    with self._changed:
                        if self._error:
                            raise RoboCacheError(self._error)
                        frame = self._newest if self._is_new(given, max_age_ms) else None
                        if frame:
                            given = self._seen = self._count
                    now = time.monotonic()
                    if frame:
                        yield frame
                        started = reported = time.monotonic()
                        continue
                    if timeout_s is not None and now - started >= timeout_s:
                        raise self.late(timeout_s)
                    if now - reported >= REPORT_S:
                        reported = now
                        self.report()
                    with suppress(asyncio.TimeoutError):
                        left_s = POLL_S if timeout_s is None else started + timeout_s - now
                        await asyncio.wait_for(event.wait(), min(POLL_S, left_s))
                    event.clear()
        finally:
            with self._changed:
                self._loops.remove(entry)

    def _is_new(self, given: int, max_age_ms: float | None) -> bool:
        frame = self._newest
        return self._count > given and frame is not None and _is_fresh(frame, max_age_ms)


def _is_fresh(frame: FusedFrame, max_age_ms: float | None) -> bool:
    """Whether a tick is at most this far from the clock; after a jump back of the clock it may be in the future."""
    return max_age_ms is None or abs(frame.tick_age_ns) <= max_age_ms * NS_PER_MS


DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.uint8)


class ImageConverter:
    """Converts the images of a fusion node to the values that a policy requests.

    Args:
        dtype: float32, float16 or bfloat16 for x / 255 of each 8-bit value x, computed in float32 and rounded once;
            uint8 for the 8-bit values themselves.
        normalize: return (x / 255 - mean) / std instead, if the stream's spec has `normalize`.

    Raises:
        RoboCacheError: another dtype, or uint8 with `normalize`.
    """

    def __init__(self, dtype: torch.dtype = torch.float32, *, normalize: bool = False) -> None:
        if dtype not in DTYPES:
            raise RoboCacheError(f"dtype: {dtype} is not one of {', '.join(str(known) for known in DTYPES)}")
        if normalize and dtype == torch.uint8:
            raise RoboCacheError("normalize: normalised images are not uint8; give a floating dtype")
        self._dtype = dtype
        self._normalize = normalize

    def __call__(self, stream: StreamSpec, tensor: Tensor | None) -> Tensor:
        """Convert an image; the tensor of a voxel stream is returned unchanged.

        Args:
            stream: the stream of the tensor.
            tensor: (C, H, W) as the node provides it: uint8; float32 for depth, or from a node that normalises. None if
                no image has arrived yet and the size is not declared.

        Returns:
            (C, H, W) on the same device; (0,) for None. Depth keeps its unit: float32 in metres or millimetres.
        """
        if stream.voxels:
            return torch.zeros(0) if tensor is None else tensor
        if tensor is None:
            return torch.zeros(0, dtype=self._dtype)
        normalization = stream.image.normalize if stream.image else None
        if tensor.dtype != torch.uint8:
            if len(tensor) != 3:  # depth
                return tensor if self._dtype == torch.uint8 else tensor.to(self._dtype)
            if self._normalize or (normalization is None and self._dtype != torch.uint8):
                return tensor.to(self._dtype)
            tensor = _pixels(tensor, normalization)
        if self._dtype == torch.uint8:
            return tensor
        return ops.normalize_image(tensor, normalization if self._normalize else None, self._dtype)


def _pixels(image: Tensor, normalization: object) -> Tensor:
    """The (3, H, W) uint8 pixels that a node normalised to float32; exact, because rounding errors are below 1e-3."""
    affine = mean_std(normalization, len(image))
    if affine:
        mean, std = (torch.tensor(values, dtype=torch.float32, device=image.device)[:, None, None] for values in affine)
        image = image * std + mean
    return (image * 255).round().clamp(0, 255).to(torch.uint8)


TRANSPORTS = ("auto", "message", "compressed")
OVERLAP_NS = NS_PER_S  # of two transports: one may lag behind the other; an older tick is one after a jump of the clock
UNSPUN_S = 1.0  # time after which a node that has run no callback counts as not spun


class FusedSubscriber:
    """Returns each tick of a fusion node as torch tensors.

    There are three ways to read frames: `latest()`, `for` or `async for` over the subscriber, and the `callback`. A
    consumer that is slower than the ticks gets the newest tick; `overtaken` counts those that it did not read. The
    first frame is one that was made after the subscriber connected; `frame.tick_age_ns` is how long ago a tick was.
    The loops end when the subscriber is closed, when the ROS context is shut down, and at the first Ctrl-C or SIGTERM,
    if the program has no handler of its own for that signal. While no frame arrives, the log has a line every 5 s.

    By default, images have the values that LeRobotDataset returns for an exported dataset: (C, H, W) float32 in 0..1,
    which is x / 255 of each 8-bit value x; a pixel of 200 is 0.784. The bits are the same if the dataset stores PNG
    images; a dataset's video is lossy. `dtype=torch.uint8` returns the 8-bit values. The spec's `normalize` is applied
    only with `normalize=True`: a policy that normalises by itself, as LeRobot's policies do, must get images without
    it. Depth keeps its unit, voxels their values. Invalid values are zero before normalisation.

    If the node runs on the same machine under the same user, vectors, voxels and uint8 images are views of its memory,
    or of the GPU's: they are not copied, must not be written to, and occupy their slot until all of them are deleted.
    Otherwise, and if shared memory is not available, frames arrive as messages; the log states which is the case.

    Args:
        fusion: name of the fusion node, relative to the namespace or absolute, as it was remapped.
        images: image and voxel streams whose newest tensor each frame contains; a frame then waits for them.
        callback: called with each frame, in the thread that received it; its errors are logged.
        device: device of the tensors; the node's device for frames that are not copied.
        dtype: dtype of images: float32, float16, bfloat16, or uint8 for the 8-bit values.
        normalize: apply the `normalize` of each stream's spec to its images: (x / 255 - mean) / std.
        timeout_s: seconds after which a loop without a new frame raises an error; None: it waits.
        max_age_ms: age of a tick up to which `latest` and the loops return it, by the clock of the node; None: any.
        node: a node to subscribe with, which the caller spins with any executor; None: a new node, spun in the
            background.
        namespace: namespace of the new node.
        transport: `auto`; `message` to use topics only; `compressed` for topics with images as jpeg, for a slow network
            (lossy; the node must publish 8-bit images).

    Attributes:
        missed: ticks that did not arrive, counted from the gaps between those that did since the connection to the
            node.

    Raises:
        RoboCacheError: an unknown transport or dtype, or `normalize` with uint8. While waiting for a frame: a name in
            `images` that the node does not have; in a loop: no frame within `timeout_s`.
    """

    def __init__(
        self,
        fusion: str = "fusion_node",
        *,
        images: Sequence[str] = (),
        callback: Callable[[FusedFrame], None] | None = None,
        device: str | torch.device = "cpu",
        dtype: torch.dtype = torch.float32,
        normalize: bool = False,
        timeout_s: float | None = None,
        max_age_ms: float | None = None,
        node: Node | None = None,
        namespace: str | None = None,
        transport: str = "auto",
    ) -> None:
        if transport not in TRANSPORTS:
            raise RoboCacheError(f"transport: {transport!r} is not one of {', '.join(TRANSPORTS)}")
        self.missed = 0
        self._convert = ImageConverter(dtype, normalize=normalize)
        self._images = tuple(images)
        self._callback = callback
        self._device = torch.device(device)
        self._layout: Layout | None = None
        self._timeout_s, self._max_age_ms = timeout_s, max_age_ms
        self._order = threading.Lock()
        self._newest_ns: int | None = None
        self._missed_from_ns: int | None = None  # the newest tick since the connection
        self._newest_shared = False
        self._fusion = fusion
        self._refused = False  # an image that the node does not have was requested
        self._closed = False
        self._background = None if node else BackgroundNode("fused_subscriber", namespace)
        self._node: Node = node or self._background.node  # type: ignore[union-attr]
        self._context = self._node.context
        self._topic = self._node.resolve_topic_name(f"{fusion}/fused")
        # Its own: the callbacks of the caller's node do not delay the frames under a MultiThreadedExecutor.
        self._group = MutuallyExclusiveCallbackGroup()
        self._spun = False
        self._started_s = time.monotonic()
        self._warned_unspun = False
        self._guard = self._node.create_guard_condition(self._on_spin, callback_group=self._group)
        self._guard.trigger()
        self._clock = _TickClock(self._node, self._group)
        self._mailbox = Mailbox(lambda: not self._context.ok(), self._report_waiting, self._late)
        self._ring = self._follow_ring() if transport == "auto" else None
        self._topics = TopicFollower(
            self._node,
            fusion,
            self._images,
            partial(self._deliver, shared=False),  # in the thread that spins the node
            self._on_layout,
            lambda: self.shared,
            self._group,
            compressed=transport == "compressed",
        )
        if self._background:
            self._background.start()

    @property
    def shared(self) -> bool:
        """Whether frames are read from shared memory."""
        return self._ring is not None and self._ring.connected

    @property
    def overtaken(self) -> int:
        """Frames that were replaced by a newer frame before they were read."""
        return self._mailbox.overtaken

    @property
    def incomplete(self) -> int:
        """Frames dropped because one of their images did not arrive in time."""
        return self._topics.assembly.incomplete

    @property
    def layout(self) -> Layout | None:
        """The columns and the spec; None until the node has published them."""
        return self._layout

    def wait_for_layout(self, timeout_s: float | None = None) -> Layout:
        """The layout; RoboCacheError if the node does not publish it in time, or the subscriber is closed."""
        self._mailbox.wait_for(lambda: self._layout, timeout_s)
        if not self._layout:
            waited = "until it was closed" if timeout_s is None else f"within {timeout_s} s"
            raise RoboCacheError(f"{self._fusion}/layout: no message {waited}; {self._why()}")
        return self._layout

    def latest(
        self, timeout_s: float | None = 0.0, *, other_than_ns: int | None = None, max_age_ms: float | None = None
    ) -> FusedFrame | None:
        """The newest frame.

        Args:
            timeout_s: seconds to wait at most; None: until there is a frame, or the subscriber is closed.
            other_than_ns: wait for a tick other than this one (a clock may have jumped back).
            max_age_ms: age of the tick up to which it is returned; None: the `max_age_ms` of the subscriber.

        Returns:
            The frame; None at the timeout.
        """
        frame = self._mailbox.latest(timeout_s, other_than_ns, self._max_age_ms if max_age_ms is None else max_age_ms)
        if frame is None and self._unspun and not self._warned_unspun:
            self._warned_unspun = True
            self._node.get_logger().warning(f"latest: there is no frame: {self._why()}")
        return frame

    def __iter__(self) -> Iterator[FusedFrame]:
        """Each newest frame once, until the subscriber is closed, ROS is shut down, or a signal arrives."""
        return self._mailbox.frames(self._timeout_s, self._max_age_ms)

    def __aiter__(self) -> AsyncIterator[FusedFrame]:
        """Each newest frame once, until the subscriber is closed, ROS is shut down, or a signal arrives."""
        return self._mailbox.frames_async(self._timeout_s, self._max_age_ms)

    def close(self) -> None:
        """Stop; calls that are waiting for a frame return."""
        if self._closed:
            return
        self._closed = True
        self._mailbox.close()
        if self._ring:
            self._ring.close()
        if self._background:
            self._background.close()
        else:
            self._topics.close()
            self._clock.close()
            self._node.destroy_guard_condition(self._guard)

    def __enter__(self) -> FusedSubscriber:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _follow_ring(self) -> RingFollower | None:
        logger = self._node.get_logger()
        try:
            return RingFollower(self._topic.rpartition("/")[0], self._on_shared_frame, self._on_layout, logger.info)
        except RoboCacheError as error:
            logger.warning(f"frames come as messages: {error}")
            return None

    @property
    def _unspun(self) -> bool:
        return not self._spun and time.monotonic() > self._started_s + UNSPUN_S

    def _on_spin(self) -> None:
        self._spun = True

    def _why(self) -> str:
        """Why no frame arrives, and what to do."""
        if self._unspun:
            return f"nobody spins the node {self._node.get_name()}; add it to an executor, or leave `node` out"
        if not self._node.count_publishers(self._topic):
            return f"no node publishes {self._topic}; start it, or check its name and its namespace"
        if self._layout is None:
            return "the node has published no layout; activate it"
        if self._images and self.incomplete:
            return f"images of {', '.join(self._images)} do not arrive; check the transport settings of this process"
        return "the node publishes no ticks; check that it is active and that its clock runs"

    def _late(self, timeout_s: float) -> RoboCacheError:
        return RoboCacheError(f"{self._fusion}: no new tick within {timeout_s:g} s: {self._why()}")

    def _report_waiting(self) -> None:
        self._node.get_logger().warning(f"waiting for {self._topic.rpartition('/')[0]}: {self._why()}")

    def _on_layout(self, layout: Layout, use_sim_time: bool) -> None:
        """Called at each connection, in the thread of the ring or the one that spins the node."""
        known = [stream.name for stream in layout.spec.media]
        unknown = [printable(name) for name in self._images if name not in known]
        error = ""
        if unknown:
            error = (
                f"images: {', '.join(unknown)}: {self._fusion} has no such image or voxel stream; "
                f"choose from {printable(', '.join(known) or 'none', 100)}"
            )
            if self._callback:
                self._node.get_logger().error(error)
        self._clock.follow(use_sim_time=use_sim_time)
        with self._order:
            self._refused = bool(unknown)
            self._layout = layout
            self._missed_from_ns = None
        self._mailbox.set_error(error)

    def _on_shared_frame(self, frame: FusedFrame, layout: Layout) -> None:
        """Called in the thread of the ring."""
        for name in [name for name in frame.tensors if name not in layout.slots and name not in self._images]:
            del frame.tensors[name]
        self._deliver(frame, layout, shared=True)

    def _deliver(self, frame: FusedFrame, layout: Layout, *, shared: bool) -> None:
        with self._order:  # not around the callback, which may close this subscriber
            if self.shared and not shared:
                return
            behind_ns = -1 if self._newest_ns is None else self._newest_ns - frame.tick_ns
            if shared != self._newest_shared and 0 <= behind_ns < OVERLAP_NS:
                return  # it has already arrived over the other transport
            if self._refused or self._closed:
                return
            for name in self._images:
                if name in frame.valid:  # not in `tensors`: its size is unknown until an image arrives
                    frame.tensors[name] = self._convert(layout.spec.stream(name), frame.tensors.get(name))
            frame = replace(frame.to(self._device), clock=self._clock.now_ns)
            if self._missed_from_ns is not None:
                period = NS_PER_S / layout.spec.rate_hz
                self.missed += max(0, round((frame.tick_ns - self._missed_from_ns) / period) - 1)
            self._newest_ns, self._newest_shared = frame.tick_ns, shared
            self._missed_from_ns = frame.tick_ns
            self._clock.due_ns = frame.tick_ns + layout.spec.delay_ns
            self._mailbox.put(frame, seen=self._callback is not None)
        if self._callback:
            try:
                self._callback(frame)
            except Exception:
                self._node.get_logger().error(f"callback: tick {frame.tick_ns}:\n{traceback.format_exc()}")


class _TickClock:
    """The clock of the node's ticks: the wall clock, or /clock if the node uses sim time."""

    def __init__(self, node: Node, group: CallbackGroup) -> None:
        self._node = node
        self._group = group
        self._lock = threading.Lock()
        self._subscription: Any = None
        self._use_sim_time = False
        self._sim_ns: int | None = None  # the newest /clock
        self.due_ns = 0  # when the newest tick was due

    def follow(self, *, use_sim_time: bool) -> None:
        """Set which clock it is."""
        with self._lock:
            self._use_sim_time = use_sim_time
            if use_sim_time and self._subscription is None:
                self._subscription = self._node.create_subscription(
                    Clock, "/clock", self._on_clock, middleware.clock(depth=1), callback_group=self._group, raw=True,
                    event_callbacks=middleware.no_events(),
                )  # fmt: skip

    def now_ns(self) -> int:
        """The time. Sim time is that of the newest tick until a message of /clock has arrived."""
        if not self._use_sim_time:
            return time.time_ns()
        return self.due_ns if self._sim_ns is None else self._sim_ns

    def close(self) -> None:
        """Destroy the subscription."""
        with self._lock:
            if self._subscription is not None:
                self._node.destroy_subscription(self._subscription)

    def _on_clock(self, data: bytes) -> None:
        sim_ns = read_clock(data)
        if sim_ns is not None:
            self._sim_ns = sim_ns
