"""`FusedSubscriber`: a policy's end of the fusion node."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any

import torch
from rclpy.node import Node
from rclpy.serialization import deserialize_message
from sensor_msgs.msg import Image, PointCloud2
from std_msgs.msg import Float32MultiArray, String
from torch import Tensor

from robocache_ros import ops
from robocache_ros.errors import RoboCacheError
from robocache_ros.frame import FusedFrame, split_window
from robocache_ros.layout import Layout
from robocache_ros.nodes import messages, qos
from robocache_ros.nodes.assembly import Assembly
from robocache_ros.nodes.own import OwnNode
from robocache_ros.nodes.ring import RingFollower
from robocache_ros.spec import NS_PER_S, StreamSpec, load_spec

TRANSPORTS = ("auto", "message")


class FusedSubscriber:
    """Gives each tick of a fusion node as torch tensors.

    Frames are had in three ways: `latest()`, `for` or `async for` over the subscriber, and the `callback`. A consumer
    that is slower than the ticks gets the newest one; those it never saw are counted in `overtaken`.

    Where the node runs on this machine and as this user, its frames are read where they lie, in shared memory or on the
    GPU: nothing is copied, their tensors are not to be written to, and a frame keeps its place as long as any of its
    tensors lives. From elsewhere, and while that fails, they come as messages.

    Args:
        fusion: name of the fusion node, relative to the namespace or absolute, as it was remapped.
        images: image and voxel streams whose newest tensor is wanted with each frame; a frame then waits for them.
        callback: called with each frame, in the thread that spins.
        device: where the tensors shall be; that of the node for frames that are not copied.
        dtype: of normalised images.
        node: a node to subscribe with, which the caller spins; None: one of its own, spun by a thread of its own.
        namespace: of its own node.
        transport: `auto`, or `message` for topics alone.

    Attributes:
        overtaken: frames that a newer one replaced before they were looked at.
        missed: ticks that never came, by the gaps between those that did.
    """

    def __init__(
        self,
        fusion: str = "fusion_node",
        *,
        images: Sequence[str] = (),
        callback: Callable[[FusedFrame], None] | None = None,
        device: str | torch.device = "cpu",
        dtype: torch.dtype = torch.float32,
        node: Node | None = None,
        namespace: str | None = None,
        transport: str = "auto",
    ) -> None:
        if transport not in TRANSPORTS:
            raise RoboCacheError(f"transport: {transport!r} is not one of {', '.join(TRANSPORTS)}")
        self.overtaken = self.missed = 0
        self._images = tuple(images)
        self._callback = callback
        self._device = torch.device(device)
        self._dtype = dtype
        self._changed = threading.Condition()
        self._layout: Layout | None = None
        self._newest: FusedFrame | None = None
        self._seen = True  # whether somebody has looked at the newest frame
        self._assembly = Assembly(self._images)
        self._loops: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []
        self._closed = False
        self._own = None if node else OwnNode("fused_subscriber", namespace)
        self._node = node or self._own.node  # type: ignore[union-attr]
        self._fusion = fusion
        self._image_subscriptions: list[Any] = []
        self._ring = self._follow_ring() if transport == "auto" else None
        self._subscriptions = [
            self._node.create_subscription(String, f"{fusion}/layout", self._on_layout, qos.latched()),
            # Raw: while frames are shared, a message only says that the node lives, and is not worth taking apart.
            self._node.create_subscription(
                Float32MultiArray, f"{fusion}/fused", self._on_fused, qos.reliable(10), raw=True
            ),
        ]
        if self._own:
            self._own.start()

    @property
    def shared(self) -> bool:
        """Whether frames are read where the node keeps them."""
        return self._ring is not None and self._ring.connected

    @property
    def incomplete(self) -> int:
        """Frames given up because an image of theirs did not come in time."""
        return self._assembly.incomplete

    @property
    def layout(self) -> Layout | None:
        """The columns and the spec, once the node has told them."""
        return self._layout

    def wait_for_layout(self, timeout_s: float | None = None) -> Layout:
        """The layout; RoboCacheError if the node does not tell it in time."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._layout or self._closed, timeout_s) or not self._layout:
                raise RoboCacheError(
                    f"{self._fusion}/layout: nothing came within {timeout_s} s; is the fusion node active?"
                )
            return self._layout

    def latest(self, timeout_s: float | None = 0.0, *, other_than_ns: int | None = None) -> FusedFrame | None:
        """The newest frame.

        Args:
            timeout_s: wait at most so long for one; None: until there is one, or the subscriber is closed.
            other_than_ns: wait for a tick other than this one (a clock may have jumped back).
        """

        def there() -> bool:
            frame = self._newest
            return frame is not None and (other_than_ns is None or frame.tick_ns != other_than_ns)

        with self._changed:
            self._changed.wait_for(lambda: there() or self._closed, timeout_s)
            if not there():
                return None
            self._seen = True
            return self._newest

    def __iter__(self) -> Iterator[FusedFrame]:
        """Each newest frame once, until the subscriber is closed."""
        given: FusedFrame | None = None
        while True:
            frame = self.latest(None, other_than_ns=given.tick_ns if given else None)
            if frame is None:
                return
            given = frame
            yield frame

    async def __aiter__(self) -> AsyncIterator[FusedFrame]:
        """Each newest frame once, until the subscriber is closed."""
        entry = (asyncio.get_running_loop(), asyncio.Event())
        with self._changed:
            self._loops.append(entry)
        given: FusedFrame | None = None
        try:
            while not self._closed:
                frame = self._newest
                if frame is None or frame is given:
                    await entry[1].wait()
                    entry[1].clear()
                    continue
                with self._changed:
                    self._seen = True
                given = frame
                yield frame
        finally:
            with self._changed:
                self._loops.remove(entry)

    def close(self) -> None:
        """Stop; those who wait are let go."""
        if self._closed:
            return
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            self._wake_loops()
        if self._ring:
            self._ring.close()
        if self._own:
            self._own.close()
        else:
            for subscription in (*self._subscriptions, *self._image_subscriptions):
                self._node.destroy_subscription(subscription)

    def __enter__(self) -> FusedSubscriber:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _on_layout(self, message: String) -> None:
        layout = Layout(load_spec(json.loads(message.data)["spec"]))
        unknown = [name for name in self._images if name not in {s.name for s in layout.spec.media}]
        if unknown:
            there = ", ".join(s.name for s in layout.spec.media) or "none"
            self._node.get_logger().error(
                f"images: {', '.join(unknown)}: no such image or voxel stream; there are {there}"
            )
        with self._changed:
            self._layout = layout
            self._assembly.clear()
            self._changed.notify_all()
        self._want_images(not self.shared)

    def _follow_ring(self) -> RingFollower | None:
        topic = self._node.resolve_topic_name(f"{self._fusion}/fused")
        try:
            return RingFollower(topic.rpartition("/")[0], self._on_shared)
        except RoboCacheError as error:
            self._node.get_logger().warning(f"frames come as messages: {error}")
            return None

    def _on_shared(self, frame: FusedFrame, layout: Layout) -> None:
        """A frame from the ring, in its thread."""
        for name in [name for name in frame.tensors if name not in layout.slots]:
            tensor = frame.tensors.pop(name)
            if name in self._images:
                frame.tensors[name] = self._finished(layout.spec.stream(name), tensor)
        for name in self._images:
            if name in frame.valid and name not in frame.tensors:  # no image has come yet to show its size
                frame.tensors[name] = self._finished(layout.spec.stream(name), None)
        self._layout = layout
        self._hand_out(frame)

    def _want_images(self, wanted: bool) -> None:
        """Have the images' topics come, or not: a node makes messages of images only for those who listen."""
        if wanted and not self._image_subscriptions and self._layout:
            media = {stream.name: stream for stream in self._layout.spec.media}
            self._image_subscriptions = [self._subscribe(media[name]) for name in self._images if name in media]
        elif not wanted:
            for subscription in self._image_subscriptions:
                self._node.destroy_subscription(subscription)
            self._image_subscriptions = []

    def _subscribe(self, stream: StreamSpec) -> Any:
        def on_image(message: Any) -> None:
            tick_ns = messages.stamp_ns(message.header)
            current = self._layout.spec.stream(stream.name) if self._layout else stream
            tensor = messages.read_voxels(message, current.voxels) if current.voxels else messages.read_image(message)
            self._deliver(self._assembly.add_image(stream.name, tick_ns, tensor))

        kind = Image if stream.kind == "image" else PointCloud2
        return self._node.create_subscription(kind, f"{self._fusion}/{stream.name}/aligned", on_image, qos.reliable(5))

    def _on_fused(self, data: bytes) -> None:
        if self._layout is None:
            return  # without its columns a window says nothing; the layout is latched and on its way
        self._want_images(not self.shared)
        if self.shared:
            self._assembly.clear()
            return
        tick_ns, window = messages.read_fused(deserialize_message(data, Float32MultiArray))
        if window.shape[1] != self._layout.row_width:
            return  # of the node before it was configured anew
        self._deliver(self._assembly.add_window(split_window(self._layout, tick_ns, window)))

    def _deliver(self, frames: list[FusedFrame]) -> None:
        """Hand out frames that were put together from messages."""
        layout = self._layout
        for frame in frames:
            assert layout  # windows are taken in once it is known
            for name in self._images:
                if name in frame.valid:
                    stream, tensor = layout.spec.stream(name), frame.tensors.get(name)
                    frame.tensors[name] = self._finished(stream, messages.blank(stream) if tensor is None else tensor)
            self._hand_out(frame)

    def _hand_out(self, frame: FusedFrame) -> None:
        assert self._layout
        frame = frame.to(self._device)
        if self._newest is not None:
            period = NS_PER_S / self._layout.spec.rate_hz
            self.missed += max(0, round((frame.tick_ns - self._newest.tick_ns) / period) - 1)
        with self._changed:
            self.overtaken += not self._seen
            self._newest, self._seen = frame, False
            self._changed.notify_all()
            self._wake_loops()
        if self._callback:
            with self._changed:
                self._seen = True
            self._callback(frame)

    def _finished(self, stream: StreamSpec, tensor: Tensor | None) -> Tensor:
        if tensor is None:
            return torch.zeros(0)
        if stream.image and stream.image.normalize:
            if tensor.dtype != torch.uint8:  # the node normalises
                return tensor.to(self._dtype)
            return ops.normalize_image(tensor, stream.image.normalize, self._dtype)
        return tensor

    def _wake_loops(self) -> None:
        for loop, event in self._loops:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(event.set)
