"""`FusedSubscriber`: reads the ticks of a fusion node in a policy."""

from __future__ import annotations

import threading
import traceback
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from types import TracebackType

import torch
from rclpy.node import Node

from robocache_ros.engine.fused_frame import FusedFrame
from robocache_ros.errors import RoboCacheError
from robocache_ros.nodes.client.background_node import BackgroundNode
from robocache_ros.nodes.client.image_values import ImageConverter
from robocache_ros.nodes.client.mailbox import Mailbox
from robocache_ros.nodes.client.topic_follower import TopicFollower
from robocache_ros.nodes.shared_frames import RingFollower
from robocache_ros.spec.layout import Layout
from robocache_ros.units import NS_PER_S

TRANSPORTS = ("auto", "message")


class FusedSubscriber:
    """Returns each tick of a fusion node as torch tensors.

    There are three ways to read frames: `latest()`, `for` or `async for` over the subscriber, and the `callback`. A
    consumer that is slower than the ticks gets the newest tick; `overtaken` counts those that it did not read. The
    loops end when the subscriber is closed and when the ROS context is shut down: by `rclpy.shutdown()`, or by the
    signals SIGINT and SIGTERM if `rclpy.init()` has installed its handlers.

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
        node: a node to subscribe with, which the caller spins; None: a new node, spun in the background.
        namespace: namespace of the new node.
        transport: `auto`, or `message` to use topics only.

    Attributes:
        missed: ticks that did not arrive, counted from the gaps between those that did.

    Raises:
        RoboCacheError: an unknown transport or dtype, or `normalize` with uint8.
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
        self._order = threading.Lock()
        self._newest_ns: int | None = None
        self._newest_shared = False
        self._fusion = fusion
        self._closed = False
        self._background = None if node else BackgroundNode("fused_subscriber", namespace)
        self._node: Node = node or self._background.node  # type: ignore[union-attr]
        self._context = self._node.context
        self._mailbox = Mailbox(lambda: not self._context.ok())
        self._ring = self._follow_ring() if transport == "auto" else None
        self._topics = TopicFollower(
            self._node, fusion, self._images, self._on_message_frame, self._on_layout, lambda: self.shared
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
        return self._topics.incomplete

    @property
    def layout(self) -> Layout | None:
        """The columns and the spec; None until the node has published them."""
        return self._layout

    def wait_for_layout(self, timeout_s: float | None = None) -> Layout:
        """The layout; RoboCacheError if the node does not publish it in time, or the subscriber is closed."""
        self._mailbox.wait_for(lambda: self._layout, timeout_s)
        if not self._layout:
            waited = "until it was closed" if timeout_s is None else f"within {timeout_s} s"
            raise RoboCacheError(f"{self._fusion}/layout: no message {waited}; is the fusion node active?")
        return self._layout

    def latest(self, timeout_s: float | None = 0.0, *, other_than_ns: int | None = None) -> FusedFrame | None:
        """The newest frame.

        Args:
            timeout_s: seconds to wait at most; None: until there is a frame, or the subscriber is closed.
            other_than_ns: wait for a tick other than this one (a clock may have jumped back).

        Returns:
            The frame; None at the timeout.
        """
        return self._mailbox.latest(timeout_s, other_than_ns)

    def __iter__(self) -> Iterator[FusedFrame]:
        """Each newest frame once, until the subscriber is closed or ROS is shut down."""
        return iter(self._mailbox)

    def __aiter__(self) -> AsyncIterator[FusedFrame]:
        """Each newest frame once, until the subscriber is closed or ROS is shut down."""
        return self._mailbox.__aiter__()

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

    def __enter__(self) -> FusedSubscriber:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _follow_ring(self) -> RingFollower | None:
        topic = self._node.resolve_topic_name(f"{self._fusion}/fused")
        logger = self._node.get_logger()
        try:
            return RingFollower(topic.rpartition("/")[0], self._on_shared_frame, logger.info)
        except RoboCacheError as error:
            logger.warning(f"frames come as messages: {error}")
            return None

    def _on_layout(self, layout: Layout) -> None:
        unknown = [name for name in self._images if name not in {s.name for s in layout.spec.media}]
        if unknown:
            there = ", ".join(s.name for s in layout.spec.media) or "none"
            self._node.get_logger().error(
                f"images: {', '.join(unknown)}: no such image or voxel stream; choose from {there}"
            )
        self._layout = layout
        self._mailbox.notify()

    def _on_shared_frame(self, frame: FusedFrame, layout: Layout) -> None:
        """Called in the thread of the ring."""
        for name in [name for name in frame.tensors if name not in layout.slots and name not in self._images]:
            del frame.tensors[name]
        self._layout = layout
        self._deliver(frame, layout, shared=True)

    def _on_message_frame(self, frame: FusedFrame, layout: Layout) -> None:
        """Called in the thread that spins the node."""
        self._deliver(frame, layout, shared=False)

    def _deliver(self, frame: FusedFrame, layout: Layout, *, shared: bool) -> None:
        with self._order:  # not around the callback, which may close this subscriber
            switched = shared != self._newest_shared
            if (self.shared and not shared) or (switched and frame.tick_ns == self._newest_ns):
                return  # it has already arrived over the other transport
            for name in self._images:
                if name in frame.valid:  # not in `tensors`: its size is unknown until an image arrives
                    frame.tensors[name] = self._convert(layout.spec.stream(name), frame.tensors.get(name))
            frame = frame.to(self._device)
            if self._newest_ns is not None:
                period = NS_PER_S / layout.spec.rate_hz
                self.missed += max(0, round((frame.tick_ns - self._newest_ns) / period) - 1)
            self._newest_ns, self._newest_shared = frame.tick_ns, shared
            self._mailbox.put(frame, seen=self._callback is not None)
        if self._callback:
            try:
                self._callback(frame)
            except Exception:
                self._node.get_logger().error(f"callback: tick {frame.tick_ns}:\n{traceback.format_exc()}")
