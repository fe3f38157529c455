"""The ticks of a fusion node from its topics: messages assembled to frames."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from rclpy.callback_groups import CallbackGroup
from rclpy.node import Node
from rclpy.qos import QoSProfile
from rclpy.serialization import deserialize_message
from sensor_msgs.msg import CompressedImage, Image, PointCloud2
from std_msgs.msg import Float32MultiArray, String
from torch import Tensor

from robocache_ros.engine.frames import FusedFrame, split_window
from robocache_ros.errors import printable
from robocache_ros.nodes import frame_messages, middleware
from robocache_ros.spec import StreamSpec, load_spec
from robocache_ros.spec.layout import Layout

AWAITED = 8  # ticks whose images are waited for


class Assembly:
    """Combines the window and the images of each tick.

    Args:
        images: image and voxel streams that a frame waits for if it has them.

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


class TopicFollower:
    """Subscribes to a fusion node's topics and delivers frames assembled from their messages.

    Args:
        node: the node to subscribe with.
        fusion: name of the fusion node.
        images: image and voxel streams that a frame waits for.
        deliver: called with each frame and the layout of its columns. Images are as the node publishes them; an invalid
            image is zero, and missing if its size is not known.
        on_layout: called with each layout, and whether the ticks are times of /clock.
        paused: whether frames currently arrive through shared memory; images are then not subscribed to.
        group: of the callbacks.
        compressed: whether images come as jpeg.
    """

    def __init__(
        self,
        node: Node,
        fusion: str,
        images: Sequence[str],
        deliver: Callable[[FusedFrame, Layout], None],
        on_layout: Callable[[Layout, bool], None],
        paused: Callable[[], bool],
        group: CallbackGroup,
        *,
        compressed: bool = False,
    ) -> None:
        self._node = node
        self._fusion = fusion
        self._images = tuple(images)
        self._deliver = deliver
        self._notify = on_layout
        self._paused = paused
        self._group = group
        self._compressed = compressed
        self._layout: Layout | None = None
        self._assembly = Assembly(self._images)
        self._malformed: set[str] = set()  # topics for which an unreadable message was reported
        self._image_subscriptions: list[Any] = []
        self._subscriptions = [
            self._create(String, "layout", self._on_layout, middleware.latched()),
            # Raw: while frames are read from shared memory, a message only shows that the node is alive.
            self._create(Float32MultiArray, "fused", self._on_fused, middleware.reliable(10), raw=True),
        ]

    @property
    def incomplete(self) -> int:
        """Frames dropped because one of their images did not arrive in time."""
        return self._assembly.incomplete

    def close(self) -> None:
        """Destroy the subscriptions."""
        for subscription in (*self._subscriptions, *self._image_subscriptions):
            self._node.destroy_subscription(subscription)

    def _create(
        self, message_type: type[Any], topic: str, callback: Callable[[Any], None], profile: QoSProfile, **options: Any
    ) -> Any:
        received = self._guarded(topic, callback)
        return self._node.create_subscription(
            message_type, f"{self._fusion}/{topic}", received, profile, callback_group=self._group, **options
        )

    def _guarded(self, topic: str, callback: Callable[[Any], None]) -> Callable[[Any], None]:
        """A callback that drops messages that are not from a fusion node, with one warning per topic."""

        def receive(message: Any) -> None:
            try:
                callback(message)
            except (ValueError, LookupError, TypeError, RuntimeError, RecursionError) as error:
                if topic not in self._malformed:
                    self._malformed.add(topic)
                    self._node.get_logger().warning(
                        f"{self._fusion}/{topic}: a message cannot be read ({printable(error, 120)}); it is dropped"
                    )

        return receive

    def _on_layout(self, message: String) -> None:
        described = json.loads(message.data)
        self._layout = Layout(load_spec(described["spec"]))
        self._assembly.clear()
        self._notify(self._layout, described.get("use_sim_time") is True)
        self._want_images(not self._paused())

    def _on_fused(self, data: bytes) -> None:
        if self._layout is None:
            return  # a window cannot be split without its columns; the layout is latched and arrives soon
        self._want_images(not self._paused())
        if self._paused():
            self._assembly.clear()
            return
        tick_ns, window = frame_messages.read_fused(deserialize_message(data, Float32MultiArray))
        if window.shape[1] != self._layout.row_width:
            return  # from before the node was reconfigured
        self._finish(self._assembly.add_window(split_window(self._layout, tick_ns, window)))

    def _want_images(self, wanted: bool) -> None:
        """Subscribe to the image topics, or unsubscribe: a node only publishes images that have subscribers."""
        if wanted and not self._image_subscriptions and self._layout:
            media = {stream.name: stream for stream in self._layout.spec.media}
            self._image_subscriptions = [self._subscribe(media[name]) for name in self._images if name in media]
        elif not wanted:
            for subscription in self._image_subscriptions:
                self._node.destroy_subscription(subscription)
            self._image_subscriptions = []

    def _subscribe(self, stream: StreamSpec) -> Any:
        compressed = self._compressed and stream.kind == "image"
        topic = f"{stream.name}/aligned/compressed" if compressed else f"{stream.name}/aligned"
        read = frame_messages.read_compressed if compressed else frame_messages.read_image

        def on_image(message: Any) -> None:
            tick_ns = frame_messages.stamp_ns(message.header)
            current = self._layout.spec.stream(stream.name) if self._layout else stream
            tensor = frame_messages.read_voxels(message, current.voxels) if current.voxels else read(message)
            self._finish(self._assembly.add_image(stream.name, tick_ns, tensor))

        message_type = CompressedImage if compressed else Image if stream.kind == "image" else PointCloud2
        return self._create(message_type, topic, on_image, middleware.reliable(5))

    def _finish(self, frames: list[FusedFrame]) -> None:
        layout = self._layout
        for frame in frames:
            assert layout  # windows are added only when it is known
            for name in self._images:
                if name in frame.valid and name not in frame.tensors:
                    blank = frame_messages.blank(layout.spec.stream(name))
                    if blank is not None:
                        frame.tensors[name] = blank
            self._deliver(frame, layout)
