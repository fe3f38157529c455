"""A depth image and what completes it: camera_info and, where declared, the image registered to it.

What is paired is a function of the messages in the order of their arrival, like all that a tick sees, so a bag pairs as
the robot did. Depth and colour belong together if their stamps are the same, as RGB-D drivers give them; of the
intrinsics the newest count.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from robocache_ros.decode import DecodeError, DepthPayload, ImagePayload, Sample
from robocache_ros.spec import StreamSpec

WAITING = 8  # images of each kind that wait for their other half
COLOR_ALIGNMENT = 16


class Pairer:
    """Pairs the images of one depth stream."""

    def __init__(self, stream: StreamSpec) -> None:
        self.name = stream.name
        self.unpaired = 0  # images that were given up: their other half has not come
        self._colored = bool(stream.color)
        self._intrinsics: tuple[float, ...] | None = None
        self._depth: dict[int, ImagePayload] = {}  # by stamp, in the order of arrival
        self._color: dict[int, ImagePayload] = {}

    def take(self, feed: str, sample: Sample) -> list[Sample]:
        """The samples that one more message completes; `feed` is the stream's name or that of a companion."""
        value: Any = sample.value
        if feed.endswith("/camera_info"):
            self._intrinsics = tuple(float(value[i]) for i in (0, 4, 2, 5))
            stamps = list(self._depth)
        elif sample.stamp_ns is None:
            return []
        else:
            waiting = self._color if feed.endswith("/color") else self._depth
            waiting[sample.stamp_ns] = value
            if len(waiting) > WAITING:
                del waiting[next(iter(waiting))]
                self.unpaired += 1
            stamps = [sample.stamp_ns]
        if self._intrinsics is None:
            return []
        return [
            Sample(stamp, self._made(stamp, self._intrinsics))
            for stamp in stamps
            if stamp in self._depth and (stamp in self._color or not self._colored)
        ]

    def _made(self, stamp_ns: int, intrinsics: tuple[float, ...]) -> DepthPayload:
        depth, color = self._depth.pop(stamp_ns), self._color.pop(stamp_ns, None)
        layout = (depth.encoding, depth.width, depth.height, depth.step, depth.big_endian, intrinsics)
        if color is None:
            return DepthPayload(depth.data, *layout)
        if (color.width, color.height) != (depth.width, depth.height):
            raise DecodeError(
                "color_size",
                f"color: {color.width}x{color.height} where depth is {depth.width}x{depth.height}; give the topic of "
                f"the image that is registered to depth",
            )
        offset = -(-depth.data.nbytes // COLOR_ALIGNMENT) * COLOR_ALIGNMENT
        data = np.zeros(offset + color.data.nbytes, np.uint8)
        data[: depth.data.nbytes] = depth.data
        data[offset:] = color.data
        return DepthPayload(data, *layout, color.encoding, color.step, offset)
