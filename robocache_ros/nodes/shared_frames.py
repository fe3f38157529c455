"""The ring of frames in shared memory: the node's side, which writes it, and the subscriber's side, which reads it."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable
from functools import partial

import torch
from rclpy.node import Node

from robocache_ros import ipc
from robocache_ros.engine import Frames
from robocache_ros.engine.frames import FusedFrame
from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.ipc.frame_ring import FrameReader, FrameWriter
from robocache_ros.spec import load_spec
from robocache_ros.spec.layout import Layout

log = logging.getLogger(__name__)

WAIT_S = 0.2  # period at which a follower checks whether it is closed
RETRY_S = 10.0  # time until the node tries again to create a ring


class RingOutput:
    """Provides each tick's frame to consumers of the same machine and user, in addition to the topics.

    If the ring cannot be created, or fails, a warning is logged once, frames are published as messages only, and
    another attempt follows every `retry_s`.
    """

    def __init__(
        self, node: Node, layout: Layout, device: torch.device, slots: int, *, retry_s: float = RETRY_S
    ) -> None:
        self._name = node.get_fully_qualified_name()
        self._layout = layout
        self._device = device
        self._slots = slots
        self._retry_s = retry_s
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
        path = ipc.socket_path(self._name)
        self._writer = FrameWriter(path, self._layout, self._device, slots=self._slots, use_sim_time=self._use_sim_time)

    def _guarded(self, step: Callable[[], None]) -> bool:
        """Run a step and return whether it succeeds; an error in shared memory never stops the ticks."""
        try:
            step()
        except (RoboCacheError, OSError) as error:
            if not self._failed:
                log.warning(
                    "frames are published as messages only; shared memory is tried again every %g s: %s",
                    self._retry_s,
                    printable(error, 160),
                )
            self._failed = True
            self._next_try = time.monotonic() + self._retry_s
            self.close()
            return False
        return True


class RingFollower:
    """Delivers each newest frame of a node's ring, in a separate thread.

    Args:
        node: fully qualified name of the fusion node.
        deliver: called with each frame that is made from now on, and the layout of its columns.
        on_layout: called at each connection with the layout, and whether the ticks are times of /clock.
        report: called with a line of text when the transport of the frames changes.

    Attributes:
        connected: whether frames are read from the ring.

    Raises:
        IpcUnavailableError: there is no folder for the socket that only this user can enter.
    """

    def __init__(
        self,
        node: str,
        deliver: Callable[[FusedFrame, Layout], None],
        on_layout: Callable[[Layout, bool], object],
        report: Callable[[str], object] = log.info,
    ) -> None:
        self._connection = ipc.Connection(ipc.socket_path(node))
        self._deliver = deliver
        self._on_layout = on_layout
        self._report = report
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
            self._stopped.wait(WAIT_S)
        self._connection.close()

    def _follow(self) -> None:
        """Deliver frames until the connection ends."""
        while not self._stopped.is_set() and (reader := self._connection.connect()):
            described = json.loads(reader.meta)
            layout = Layout(load_spec(described["spec"]))
            frames = FrameReader(reader, layout)
            self._on_layout(layout, described.get("use_sim_time") is True)
            self.connected = True
            self._report_once("frames come from shared memory")
            while reader.alive and not self._stopped.is_set():
                frame = frames.next(WAIT_S)
                if frame:
                    self._deliver(frame, layout)
                    del frame  # its tensors keep the lease of the slot

    def _report_once(self, text: str) -> None:
        if text != self._reported and not self._stopped.is_set():
            self._reported = text
            self._report(text)
