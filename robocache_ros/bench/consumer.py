"""The load's consumer process: records when it has the tensors of each frame."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import torch

from robocache_ros import ipc
from robocache_ros.bench.processes import Columns, leave_result, read_options, say_ready
from robocache_ros.engine.frames import FusedFrame
from robocache_ros.ipc.frame_ring import FrameReader
from robocache_ros.nodes import process
from robocache_ros.nodes.fused_subscriber import FusedSubscriber
from robocache_ros.spec.layout import Layout

WAIT_S = 0.2


def ring_frames(layout: Layout, path: str, ended: threading.Event) -> Iterator[FusedFrame]:
    """Frames directly from the ring."""
    connection = ipc.Connection(path, retry_s=0.05)
    frames: FrameReader | None = None
    source = None
    while not ended.is_set():
        reader = connection.connect()
        if reader is None:
            ended.wait(0.05)
            continue
        if frames is None or reader is not source:
            source, frames = reader, FrameReader(reader, layout)
        frame = frames.next(WAIT_S)
        if frame:
            yield frame
            del frame
    connection.close()


def main() -> None:
    """Run as a child until it is interrupted."""
    options = read_options()
    torch.set_num_threads(1)
    ended = threading.Event()
    signal.signal(signal.SIGINT, lambda *_: ended.set())
    rows = Columns(("tick_ns", "framed_ns", "had_ns", "joints_ns"), options["rows"])
    transport = "auto" if options["via"] == "auto" else "message"
    images = () if options["via"] == "ring" else options["images"]
    places: dict[str, str] = {}

    def note(frame: FusedFrame) -> None:
        framed_ns = time.time_ns()
        if any(tensor.is_cuda for tensor in frame.tensors.values()):
            torch.cuda.current_stream().synchronize()  # the tensors are complete, not only queued
        had_ns = time.time_ns()
        age: Any = frame.age_ns.get("joints_position")
        rows.add(frame.tick_ns, framed_ns, had_ns, frame.tick_ns - int(age[-1]) if age is not None else 0)
        if not places:
            places.update({name: f"{tuple(t.shape)} {t.dtype} {t.device}" for name, t in frame.tensors.items()})

    by_ring = options["via"] == "ring"
    callback = None if by_ring else note
    subscriber = FusedSubscriber(
        images=images, transport=transport, device=options["device"], callback=callback, normalize=True
    )
    layout = subscriber.wait_for_layout(60.0)
    process.freeze_gc()  # a full collection takes 50 to 100 ms in a process that has loaded torch and rclpy
    say_ready()
    if by_ring:
        subscriber.close()
        for frame in ring_frames(layout, str(ipc.socket_path("/fusion_node")), ended):
            note(frame)
    else:
        while not ended.wait(WAIT_S):  # a signal that another thread gets does not end a wait of this one
            pass
        subscriber.close()
    leave_result(options["result"], {"tensors": places, "rows_lost": rows.lost}, rows.to_dict())


if __name__ == "__main__":
    main()
