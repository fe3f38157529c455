"""A depth image and what completes it: camera_info and, where declared, the image registered to it.

What is paired is a function of the messages in the order of their arrival, like all that a tick sees, so a bag pairs as
the robot did. A depth image takes the colour image of the nearest stamp, within `pair_ms`; it waits until the colour
topic has shown its stamp or a later one, as no nearer one can come then. Of the intrinsics the newest count.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Iterator
from typing import Any

import numpy as np

from robocache_ros.decode import CameraPayload, DecodeError, DepthPayload, ImagePayload, Sample, decode_compressed
from robocache_ros.engine.engine import JUMP_BACK_NS
from robocache_ros.spec import StreamSpec

log = logging.getLogger(__name__)

WAITING = 8  # images of each kind that are kept
COLOR_ALIGNMENT = 16


class Pairer:
    """Pairs the images of one depth stream.

    `counters`: `unpaired`, depth images that were given up, and `unpaired:<key>` by what they lacked.
    """

    def __init__(self, stream: StreamSpec) -> None:
        self.name = stream.name
        self.counters: Counter[str] = Counter()
        self._stream = stream
        self._camera: CameraPayload | None = None
        self._depth: deque[Sample] = deque()
        self._color: deque[tuple[int, ImagePayload]] = deque(maxlen=WAITING)
        self._newest: dict[str, int] = {}

    def take(self, feed: str, sample: Sample) -> Iterator[Sample]:
        """The samples that one more message completes; `feed` is the stream's name or that of a companion.

        Taking them raises DecodeError where the images and the camera are not of one size, or cannot be read.
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
                    self._give_up(self._depth.popleft())
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
                    continue  # a nearer one may come
                nearest, color = min(self._color, key=lambda one: (abs(one[0] - stamp_ns), one[0]))
                if abs(nearest - stamp_ns) > self._stream.pair_ns:
                    self._depth.remove(depth)
                    self._give_up(depth)
                    continue
            self._depth.remove(depth)
            assert camera
            yield depth._replace(value=_made(depth.value, camera, color))

    def _restart(self) -> None:
        """The clock jumped back: what waits is of the time before."""
        while self._depth:
            self._give_up(self._depth.popleft())
        self._color.clear()
        self._newest.clear()

    def _give_up(self, depth: Sample) -> None:
        lacking = "color" if self._camera else "camera_info"
        if not self.counters[f"unpaired:{lacking}"]:
            topic = getattr(self._stream, lacking)
            log.warning("%s: a depth image is given up: nothing on %s goes with it", self.name, topic)
        self.counters["unpaired"] += 1
        self.counters[f"unpaired:{lacking}"] += 1


def _made(value: Any, camera: CameraPayload, color: ImagePayload | None) -> DepthPayload:
    depth = decode_compressed(value)
    for name, wide, high in (
        ("camera_info", camera.width or depth.width, camera.height or depth.height),
        *([("color", color.width, color.height)] if color else []),
    ):
        if (wide, high) != (depth.width, depth.height):
            raise DecodeError(
                f"{name}_size",
                f"{name}: is of {wide}x{high} pixels where depth has {depth.width}x{depth.height}; give the topic that "
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
