"""The images or clouds of one stream of a recording of the fused stream."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from robocache_ros.bags.source import Data
from robocache_ros.decode.cdr.definitions import message_type
from robocache_ros.decode.cdr.whole_message import read_message
from robocache_ros.export.formats.mcap.plot_messages import CLOUD_TYPE, COMPRESSED_TYPE, IMAGE_TYPE
from robocache_ros.export.validate.array_values import image_size
from robocache_ros.export.validate.findings import Findings
from robocache_ros.spec import StreamSpec
from robocache_ros.units import NS_PER_S


class MediaMessages:
    """Checks the messages of an image or voxel stream, which are at the ticks with a new image or grid.

    Args:
        findings: collects what is wrong.
        where: the recording and the topic.
        stream: the stream.
        kind: the type of the messages.

    Attributes:
        accepted: whether the stream may have messages of this type.
    """

    def __init__(self, findings: Findings, where: str, stream: StreamSpec, kind: str) -> None:
        self._findings, self._where, self._type = findings, where, kind
        self.accepted = kind in ((CLOUD_TYPE,) if stream.voxels else (COMPRESSED_TYPE, IMAGE_TYPE))
        self._stamps: dict[int, int] = {}  # tick -> stamp of the header
        self._shape: tuple[Any, ...] = ()  # of the first image

    def add(self, log_ns: int, data: Data) -> None:
        """Check the contents of a message."""
        where = f"{self._where}, tick {log_ns}"
        with self._findings.reading(where, ValueError):
            message = read_message(message_type(self._type), data)
            self._stamps[log_ns] = message.header.stamp.sec * NS_PER_S + message.header.stamp.nanosec
            if self._type == CLOUD_TYPE:
                self._check_cloud(where, message)
            else:
                self._check_image(where, message)

    def check(self, ticks: NDArray[np.int64], stamps: NDArray[np.int64], valid: NDArray[np.uint8]) -> None:
        """Check that there is a message, with the stamp of the sample, at each tick with a new one."""
        new = (valid > 0) & (np.diff(np.where(valid > 0, stamps, -1), prepend=-1) != 0)
        wanted = dict(zip(ticks[new].tolist(), stamps[new].tolist(), strict=True))
        missing, other = sorted(wanted.keys() - self._stamps.keys()), sorted(self._stamps.keys() - wanted.keys())
        text = f"{len(missing)} ticks with a new sample have no message, the first is {missing[:1]}"
        self._findings.check(not missing, self._where, text)
        text = f"{len(other)} messages are at ticks without a new sample, the first at {other[:1]}"
        self._findings.check(not other, self._where, text)
        differ = [tick for tick, stamp in wanted.items() if self._stamps.get(tick, stamp) != stamp]
        text = f"{len(differ)} stamps are not those of the status, the first at {differ[:1]}"
        self._findings.check(not differ, self._where, text)

    def _check_image(self, where: str, message: Any) -> None:
        if self._type == COMPRESSED_TYPE:
            shape: tuple[Any, ...] = image_size(message.data.tobytes(), decode=self._findings.decode)
        else:
            shape = (message.height, message.width, message.encoding, message.step)
            size = message.height * message.step
            self._findings.check(len(message.data) == size, where, f"{len(message.data)} bytes of pixels, not {size}")
        self._shape = self._shape or shape
        self._findings.check(shape == self._shape, where, f"is {shape}; the first image is {self._shape}")
        self._findings.counted["images"] += 1

    def _check_cloud(self, where: str, message: Any) -> None:
        names = [field.name for field in message.fields]
        step, size = 4 * len(names), 4 * len(names) * message.width
        right = names[:3] == ["x", "y", "z"] and (message.height, message.point_step) == (1, step)
        self._findings.check(right, where, f"is not a row of points with float32 fields from x, y, z, but {names}")
        if self._findings.check(len(message.data) == size, where, f"{len(message.data)} bytes of points, not {size}"):
            finite = bool(np.isfinite(message.data.view("<f4")).all())
            self._findings.check(finite, where, "NaN or infinite")
        self._findings.counted["clouds"] += 1
