"""Thumbnails of a recording: a few images of each camera, evenly spaced, as small JPEG files."""

from __future__ import annotations

import io

import numpy as np
from numpy.typing import NDArray

from robocache_ros.engine.frames import Frames
from robocache_ros.extras import need
from robocache_ros.spec import FusionSpec

COUNT = 8  # per camera
HEIGHT = 112
MAX_WIDTH = 1120


class Thumbnails:
    """Keeps the first image of each camera at or after each of `COUNT` evenly spaced times.

    Attributes:
        images: camera -> (tick_ns, JPEG file) pairs, in order.
    """

    def __init__(self, spec: FusionSpec, start_ns: int, stop_ns: int) -> None:
        edges = np.linspace(start_ns, stop_ns, COUNT + 1)[:-1]
        self._moments = (edges + (stop_ns - start_ns) / COUNT / 2).astype(np.int64)
        self._rows = {s.name: i for i, s in enumerate(spec.streams) if s.kind == "image"}
        self._next = dict.fromkeys(self._rows, 0)
        self.images: dict[str, list[tuple[int, bytes]]] = {name: [] for name in self._rows}

    def watch(self, frames: Frames) -> None:
        """Keep the images at the next thumbnail times."""
        for name, row in self._rows.items():
            usable = np.flatnonzero(frames.valid[:, row] > 0)
            while self._next[name] < COUNT:
                after = usable[frames.ticks_ns[usable] >= self._moments[self._next[name]]]
                if not len(after):
                    break
                tick = int(after[0])
                self.images[name].append((int(frames.ticks_ns[tick]), _jpeg(frames.media[name][tick].numpy())))
                self._next[name] += 1


def _jpeg(image: NDArray[np.generic]) -> bytes:
    """Encode a (C, H, W) image of any type as a small JPEG file; depth is scaled to the range of gray levels."""
    if image.dtype != np.uint8:
        finite = np.nan_to_num(image.astype(np.float32), posinf=0, neginf=0)
        image = (255 * finite / max(float(finite.max()), 1e-9)).clip(0, 255).astype(np.uint8)
    rgb = np.ascontiguousarray(np.broadcast_to(image, (3, *image.shape[1:])).transpose(1, 2, 0)).astype(np.uint8)
    picture = need("PIL.Image", "export").fromarray(rgb)
    scale = min(1.0, HEIGHT / picture.height, MAX_WIDTH / picture.width)
    if scale < 1:
        picture = picture.resize((max(1, round(picture.width * scale)), max(1, round(picture.height * scale))))
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=82)
    return file.getvalue()
