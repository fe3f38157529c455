"""What the fusion node publishes: windows, their layout, aligned images and voxels; and frames in shared memory."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rclpy.lifecycle import LifecycleNode
from rclpy.node import Node
from sensor_msgs.msg import CompressedImage, Image, JointState, PointCloud2
from std_msgs.msg import Float32MultiArray, String

from robocache_ros import ipc
from robocache_ros.engine import Frames, tick_grid
from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.ipc.frame_ring import FrameWriter
from robocache_ros.nodes import frame_messages, middleware
from robocache_ros.spec import StreamSpec
from robocache_ros.spec.layout import Layout

log = logging.getLogger(__name__)

FUSED_DEPTH = 200  # ticks kept for a slow subscriber; they are small
PLOT_DEPTH = 10
MEDIA_DEPTH = 5
RETRY_S = 10.0  # time until the node tries again to create a ring


class Window:
    """The rows of the last H ticks, in one block of memory.

    Args:
        horizon: H.
        columns: C.
        rate_hz: rate of the tick grid; a tick that was not published is a row of zeros, so that rows are one period
            apart.
    """

    def __init__(self, horizon: int, columns: int, rate_hz: int) -> None:
        self._horizon = horizon
        self._rate_hz = rate_hz
        self._rows = np.zeros((horizon + max(horizon, 64), columns), np.float32)
        self._stop = horizon
        self._newest: int | None = None

    def push(self, tick_ns: int, row: NDArray[np.float32]) -> NDArray[np.float32]:
        """Add the (C,) row of a tick; returns the (H, C) window that ends with it, valid until the next call."""
        tick = tick_grid.first_at_or_after(tick_ns, self._rate_hz)
        missing = self._horizon if self._newest is None else tick - self._newest - 1
        if not 0 <= missing < self._horizon:
            self._rows[:] = 0
            self._stop = self._horizon
            missing = 0
        for _ in range(missing):
            self._append(0)
        self._append(row)
        self._newest = tick
        return self._rows[self._stop - self._horizon : self._stop]

    def _append(self, row: NDArray[np.float32] | int) -> None:
        if self._stop == len(self._rows):
            kept = self._rows[self._stop - self._horizon + 1 :].copy()
            self._rows[: len(kept)] = kept
            self._stop = len(kept)
        self._rows[self._stop] = row
        self._stop += 1


@dataclass(eq=False)
class RingOutput:
    """Provides each tick's frame to consumers of the same machine and user, in addition to the topics.

    If the ring cannot be created, or fails, a warning is logged once, frames are published as messages only, and
    another attempt follows every `retry_s`.
    """

    node: Node  # whose name the consumers use
    layout: Layout
    device: torch.device
    slots: int  # one frame each
    retry_s: float = RETRY_S

    def __post_init__(self) -> None:
        self._use_sim_time = False
        self._next_try = 0.0
        self._failed = False
        self._writer: FrameWriter | None = None
        self._guarded(self._make)

    def set_clock(self, *, use_sim_time: bool) -> None:
        """Set the clock of the next ticks; if it is another one, the readers reconnect."""
        if use_sim_time != self._use_sim_time:
            self._use_sim_time = use_sim_time
            self.close()
            self._next_try = 0.0

    def fill(self, frames: Frames, window: torch.Tensor) -> None:
        """Write the frame of one tick into the ring; `window` contains the (horizon, C) rows that end with it."""
        if self._writer is None and time.monotonic() >= self._next_try:
            self._guarded(self._make)
        if self._writer and self._guarded(partial(self._writer.fill, frames, window)) and self._failed:
            self._failed = False
            log.info("frames are published through shared memory again")

    def announce(self) -> None:
        """Announce the frame that was filled last to the consumers."""
        if self._writer:
            self._guarded(self._writer.announce)

    def counters(self) -> dict[str, int]:
        """`ring_readers`: connected readers; `ring_overwritten`: frames overwritten while a reader had leased them."""
        writer = self._writer
        return {"ring_readers": writer.readers, "ring_overwritten": writer.overwritten} if writer else {}

    def close(self) -> None:
        """Disconnect the readers."""
        if self._writer:
            self._writer.close()
            self._writer = None

    def _make(self) -> None:
        path = ipc.socket_path(self.node.get_fully_qualified_name())
        self._writer = FrameWriter(path, self.layout, self.device, slots=self.slots, use_sim_time=self._use_sim_time)

    def _guarded(self, step: Callable[[], None]) -> bool:
        """Run a step and return whether it succeeds; an error in shared memory never stops the ticks."""
        try:
            step()
        except (RoboCacheError, OSError) as error:
            if not self._failed:
                log.warning(
                    "frames are published as messages only; shared memory is tried again every %g s: %s",
                    self.retry_s,
                    printable(error, 160),
                )
            self._failed = True
            self._next_try = time.monotonic() + self.retry_s
            self.close()
            return False
        return True


class Outputs:
    """The publishers of a spec."""

    def __init__(
        self,
        node: LifecycleNode,
        layout: Layout,
        frame_of: Callable[[StreamSpec], str],
        ring: RingOutput | None = None,
    ) -> None:
        self.ring = ring
        self._node = node
        self._layout = layout
        self._frame_of = frame_of
        spec = layout.spec
        self._window = Window(spec.horizon, layout.row_width, spec.rate_hz)
        create = node.create_lifecycle_publisher
        self._fused = middleware.output(create, Float32MultiArray, "~/fused", FUSED_DEPTH)
        self._plot = middleware.output(create, JointState, "~/plot", PLOT_DEPTH)
        self._described = create(String, "~/layout", middleware.latched())
        self._media: dict[str, Any] = {
            stream.name: middleware.output(
                create, Image if stream.kind == "image" else PointCloud2, f"~/{stream.name}/aligned", MEDIA_DEPTH
            )
            for stream in spec.media
        }
        self._compressed: dict[str, Any] = {
            stream.name: middleware.output(create, CompressedImage, f"~/{stream.name}/aligned/compressed", MEDIA_DEPTH)
            for stream in spec.media
            if stream.kind == "image"
        }

    def describe(self, *, use_sim_time: bool) -> None:
        """Publish the layout and the clock of the ticks; later subscribers receive them too."""
        if self.ring:
            self.ring.set_clock(use_sim_time=use_sim_time)
        self._described.publish(String(data=self._layout.to_json(use_sim_time=use_sim_time)))

    def publish(self, frames: Frames, wait_until_due: Callable[[int], None] = lambda tick_ns: None) -> None:
        """Publish each tick of the frames; the messages are built before `wait_until_due(tick_ns)` is called."""
        if self.ring and frames.window is not None:
            self.ring.fill(frames, frames.window)
        rows = frames.rows().numpy()
        streams = {stream.name: stream for stream in self._layout.spec.media}
        for index, tick_ns in enumerate(frames.ticks_ns.tolist()):
            window = self._window.push(tick_ns, rows[index])
            if self.ring and frames.window is None:
                self.ring.fill(frames[index : index + 1], torch.from_numpy(window))
            fused = frame_messages.fused_cdr(tick_ns, window)
            # If the spec does not declare a size, a value has no elements until the first message arrives.
            media = [
                (self._media[stream.name], self._media_message(tick_ns, stream, value))
                for stream in streams.values()
                if self._media[stream.name].get_subscription_count()
                and (value := frames.media[stream.name][index]).numel()
            ]
            media += [
                (publisher, message)
                for name, publisher in self._compressed.items()
                if publisher.get_subscription_count()
                and (value := frames.media[name][index]).numel()
                and (message := frame_messages.compressed_message(tick_ns, self._frame_of(streams[name]), value))
            ]
            if self._plot.get_subscription_count():
                media.append((self._plot, frame_messages.plot_message(tick_ns, rows[index], self._layout)))
            wait_until_due(tick_ns)
            if self.ring:
                self.ring.announce()
            self._fused.publish(fused)
            for publisher, message in media:
                publisher.publish(message)

    def counters(self) -> dict[str, int]:
        """Counters of the shared memory ring, by name."""
        return self.ring.counters() if self.ring else {}

    def destroy(self) -> None:
        """Destroy the publishers and the ring."""
        if self.ring:
            self.ring.close()
        for publisher in (self._fused, self._plot, self._described, *self._media.values(), *self._compressed.values()):
            self._node.destroy_lifecycle_publisher(publisher)
        self._media, self._compressed = {}, {}

    def _media_message(self, tick_ns: int, stream: StreamSpec, value: Any) -> Image | PointCloud2:
        frame_id = self._frame_of(stream)
        if stream.voxels:
            return frame_messages.voxel_message(tick_ns, frame_id, value, stream.voxels)
        return frame_messages.image_message(tick_ns, frame_id, value)
