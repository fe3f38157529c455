"""Joins a depth image with its camera_info and, where declared, with the colour image registered to it.

The pairs depend only on the messages and the order of their arrival, so a recording gives the same pairs as the robot.
A depth image is paired with the colour image of the nearest stamp, within `pair_ms`. It waits until a colour image with
its stamp or a later one has arrived, because no later message can be nearer. The newest intrinsics are used.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Iterator
from typing import Any

import numpy as np

from robocache_ros.decode import CameraPayload, DecodeError, DepthPayload, ImagePayload, Sample, decode_compressed
from robocache_ros.engine.backends.decode_thread import DecodeThread, warm_up
from robocache_ros.engine.backends.interface import TooSlowError
from robocache_ros.engine.tick_grid import JUMP_BACK_NS
from robocache_ros.spec import StreamSpec

log = logging.getLogger(__name__)

WAITING = 8  # maximum number of images kept, for depth and for color each
COLOR_ALIGNMENT = 16


class DepthSynchronizer:
    """Pairs the images of one depth stream.

    `counters`: `unpaired` counts dropped depth images, and `unpaired:<key>` counts them by the missing part.

    Args:
        stream: the depth stream.
        live: decompress in a separate thread, and drop an image that takes longer than a tick may wait.
    """

    def __init__(self, stream: StreamSpec, *, live: bool = False) -> None:
        self.name = stream.name
        self.counters: Counter[str] = Counter()
        self._stream = stream
        self._camera: CameraPayload | None = None
        self._depth: deque[Sample] = deque()
        self._color: deque[tuple[int, ImagePayload]] = deque(maxlen=WAITING)
        self._newest: dict[str, int] = {}
        compressed = live and stream.type.endswith("/CompressedImage")
        self._thread = DecodeThread(stream.name, decode_compressed, _decoded_bytes) if compressed else None
        if compressed:
            warm_up(decode_compressed)

    def accepts_unstamped(self, sample: Sample) -> bool:
        """Whether a message without a header stamp can be used: intrinsics, or depth by receive time without colour."""
        by_arrival = self._stream.stamp in ("receive", "header_or_receive")
        return isinstance(sample.value, CameraPayload) or (by_arrival and not self._stream.color)

    def add(self, feed: str, sample: Sample) -> Iterator[Sample]:
        """Add a message; yields the samples that are now complete.

        Args:
            feed: name of the stream or of its companion.
            sample: the decoded message.

        Raises:
            DecodeError: during iteration, if the sizes of images and camera differ or an image is corrupt.
        """
        value: Any = sample.value
        stamp_ns = sample.stamp_ns
        if isinstance(value, CameraPayload):
            self._camera = value
        elif stamp_ns is not None:
            if stamp_ns < self._newest.get(feed, stamp_ns) - JUMP_BACK_NS:
                self._restart()
            self._newest[feed] = stamp_ns
            if feed == self.name:
                self._depth.append(sample)
                if len(self._depth) > WAITING:
                    self._drop(self._depth.popleft())
            else:
                self._color.append((stamp_ns, value))
        return self._complete()

    def _complete(self) -> Iterator[Sample]:
        camera = self._camera
        for depth in list(self._depth) if camera else ():
            color = None
            if self._stream.color:
                stamp_ns = depth.stamp_ns or 0
                if all(stamp < stamp_ns for stamp, _ in self._color):
                    continue  # a nearer image may arrive
                nearest, color = min(self._color, key=lambda one: (abs(one[0] - stamp_ns), one[0]))
                if abs(nearest - stamp_ns) > self._stream.pair_ns:
                    self._depth.remove(depth)
                    self._drop(depth)
                    continue
            self._depth.remove(depth)
            assert camera
            yield depth._replace(value=_join(self._decoded(depth.value), camera, color))

    def _decoded(self, image: Any) -> ImagePayload:
        if self._thread is None:
            return decode_compressed(image)
        self._thread.end_tick()  # each image may take as long as a tick may wait
        job = self._thread.submit(image)
        try:
            found: ImagePayload = self._thread.result(job)
        except TooSlowError as error:
            self._thread.discard(job)
            raise DecodeError("too_slow", str(error)) from None
        return found

    def _restart(self) -> None:
        """Drop all waiting images: they are from before the clock jumped back."""
        while self._depth:
            self._drop(self._depth.popleft())
        self._color.clear()
        self._newest.clear()

    def _drop(self, depth: Sample) -> None:
        missing = "color" if self._camera else "camera_info"
        if not self.counters[f"unpaired:{missing}"]:
            topic = getattr(self._stream, missing)
            log.warning("%s: a depth image is dropped: no message on %s matches it", self.name, topic)
        self.counters["unpaired"] += 1
        self.counters[f"unpaired:{missing}"] += 1


def _decoded_bytes(image: ImagePayload) -> int:
    return int(image.data.nbytes)


def _join(depth: ImagePayload, camera: CameraPayload, color: ImagePayload | None) -> DepthPayload:
    for name, wide, high in (
        ("camera_info", camera.width or depth.width, camera.height or depth.height),
        *([("color", color.width, color.height)] if color else []),
    ):
        if (wide, high) != (depth.width, depth.height):
            raise DecodeError(
                f"{name}_size",
                f"{name}: has {wide}x{high} pixels, but depth has {depth.width}x{depth.height}; name the topic that "
                f"belongs to the depth image",
            )
    layout = (depth.encoding, depth.width, depth.height, depth.step, depth.big_endian, camera.intrinsics)
    if color is None:
        return DepthPayload(depth.data, *layout)
    offset = -(-depth.data.nbytes // COLOR_ALIGNMENT) * COLOR_ALIGNMENT
    data = np.zeros(offset + color.data.nbytes, np.uint8)
    data[: depth.data.nbytes] = depth.data
    data[offset:] = color.data
    return DepthPayload(data, *layout, color.encoding, color.step, offset)
