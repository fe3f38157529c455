"""The ring of frames at both of its ends: the node that offers it, the subscriber that follows it."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable

import torch
from rclpy.node import Node

from robocache_ros import ipc
from robocache_ros.engine import Frames
from robocache_ros.errors import RoboCacheError
from robocache_ros.frame import FusedFrame
from robocache_ros.ipc.frames import FrameWriter, next_frame
from robocache_ros.layout import Layout
from robocache_ros.spec import load_spec

log = logging.getLogger(__name__)

WAIT_S = 0.2  # how often a follower looks whether it shall stop


class RingOutput:
    """Offers each tick's frame to the consumers of this machine and user; the topics go out all the same.

    Args:
        node: whose name the consumers know.
        layout: columns of a row.
        device: where the engine makes its frames.
        slots: frames that the ring holds.
    """

    def __init__(self, node: Node, layout: Layout, device: torch.device, slots: int) -> None:
        self._writer: FrameWriter | None = None
        try:
            path = ipc.socket_path(node.get_fully_qualified_name())
            self._writer = FrameWriter(path, layout, device, slots=slots)
        except RoboCacheError as error:
            self._give_up(error)

    def fill(self, frames: Frames, window: torch.Tensor) -> None:
        """Put the frame of one tick into the ring; `window` are the (horizon, C) rows that end with it."""
        if self._writer:
            try:
                self._writer.fill(frames, window)
            except RoboCacheError as error:
                self._give_up(error)

    def announce(self) -> None:
        """Tell the consumers of the frame that was filled."""
        if self._writer:
            self._writer.announce()

    def counters(self) -> dict[str, int]:
        """`ring_readers` connected, and frames `ring_overtaken` while a reader held them."""
        writer = self._writer
        return {"ring_readers": writer.readers, "ring_overtaken": writer.overtaken} if writer else {}

    def close(self) -> None:
        """Send the readers away."""
        if self._writer:
            self._writer.close()

    def _give_up(self, error: RoboCacheError) -> None:
        log.warning("frames go out as messages alone: %s", error)
        self.close()
        self._writer = None


class RingFollower:
    """Hands out each newest frame of a node's ring, from a thread of its own.

    Args:
        node: fully qualified name of the fusion node.
        deliver: called with each frame and the layout that it goes by.
    """

    def __init__(self, node: str, deliver: Callable[[FusedFrame, Layout], None]) -> None:
        self._link = ipc.Link(ipc.socket_path(node))
        self._deliver = deliver
        self._stopped = threading.Event()
        self._said = ""
        self.connected = False
        self._thread = threading.Thread(target=self._follow, name="robocache-ring", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop following."""
        self._stopped.set()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _follow(self) -> None:
        while not self._stopped.is_set():
            reader = self._link.connect()
            if reader is None:
                self._say(f"frames come as messages: {self._link.why}")
                self._stopped.wait(WAIT_S)
                continue
            self._say("frames come from shared memory")
            layout = Layout(load_spec(json.loads(reader.meta)["spec"]))
            self.connected = True
            newest = None
            while reader.alive and not self._stopped.is_set():
                frame = next_frame(reader, layout, WAIT_S, newest)
                if frame:
                    newest = frame.tick_ns
                    self._deliver(frame, layout)
                    del frame  # its tensors hold the slot
            self.connected = False
        self._link.close()

    def _say(self, text: str) -> None:
        if text != self._said:
            self._said = text
            log.info(text)
