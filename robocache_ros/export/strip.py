"""A strip of frames: a few images of a recording, evenly spread, small enough for a report."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from robocache_ros.engine.frames import Frames
from robocache_ros.spec import FusionSpec

PICTURES = 8


class Strip:
    """Keeps the image of each camera nearest after `PICTURES` evenly spread moments.

    Attributes:
        images: camera -> (tick_ns, (H, W, 3) uint8) pairs, in order.
    """

    def __init__(self, spec: FusionSpec, start_ns: int, stop_ns: int) -> None:
        edges = np.linspace(start_ns, stop_ns, PICTURES + 1)[:-1]
        self._moments = (edges + (stop_ns - start_ns) / PICTURES / 2).astype(np.int64)
        self._rows = {s.name: i for i, s in enumerate(spec.streams) if s.kind == "image"}
        self._next = dict.fromkeys(self._rows, 0)
        self.images: dict[str, list[tuple[int, NDArray[np.uint8]]]] = {name: [] for name in self._rows}

    def watch(self, frames: Frames) -> None:
        """Take what the next moments ask for."""
        for name, row in self._rows.items():
            usable = np.flatnonzero(frames.valid[:, row] > 0)
            while self._next[name] < PICTURES:
                after = usable[frames.ticks_ns[usable] >= self._moments[self._next[name]]]
                if not len(after):
                    break
                tick = int(after[0])
                self.images[name].append((int(frames.ticks_ns[tick]), _picture(frames.media[name][tick].numpy())))
                self._next[name] += 1


def _picture(image: NDArray[np.generic]) -> NDArray[np.uint8]:
    """(C, H, W) of any type -> (H, W, 3) uint8; depth is stretched over the grey levels."""
    if image.dtype != np.uint8:
        finite = np.nan_to_num(image.astype(np.float32), posinf=0, neginf=0)
        image = (255 * finite / max(float(finite.max()), 1e-9)).clip(0, 255).astype(np.uint8)
    return np.ascontiguousarray(np.broadcast_to(image, (3, *image.shape[1:])).transpose(1, 2, 0)).astype(np.uint8)
