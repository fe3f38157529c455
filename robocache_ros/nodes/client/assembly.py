"""Frames from messages: the window of a tick and its images arrive on separate topics."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from torch import Tensor

from robocache_ros.engine.fused_frame import FusedFrame

AWAITED = 8  # ticks whose images are waited for


class Assembly:
    """Combines the window and the images of each tick.

    Args:
        images: image and voxel streams that a frame waits for if it has them.

    Attributes:
        incomplete: frames dropped because one of their images did not arrive in time.
    """

    def __init__(self, images: Sequence[str]) -> None:
        self.incomplete = 0
        self._waiting: deque[FusedFrame] = deque()
        self._newest_ns: int | None = None  # tick of the newest window
        self._images: dict[str, dict[int, Tensor]] = {name: {} for name in images}

    def add_window(self, frame: FusedFrame) -> list[FusedFrame]:
        """Add a frame without images; returns the frames that are complete now, in order."""
        if self._newest_ns is not None and frame.tick_ns <= self._newest_ns:
            self._restart(frame.tick_ns)
        self._newest_ns = frame.tick_ns
        self._waiting.append(frame)
        return self._pop_complete()

    def add_image(self, name: str, tick_ns: int, image: Tensor) -> list[FusedFrame]:
        """Add the image of a tick; returns the frames that are complete now, in order."""
        kept = self._images[name]
        if kept and tick_ns <= next(reversed(kept)):
            kept.clear()  # the clock has jumped back: a tick with the same time is a different tick
        kept[tick_ns] = image
        while len(kept) > AWAITED:
            del kept[next(iter(kept))]
        return self._pop_complete()

    def clear(self) -> None:
        """Discard the waiting frames."""
        self._waiting.clear()

    def _restart(self, tick_ns: int) -> None:
        """Discard what is not of the new timeline, after the clock has jumped back to a tick."""
        self.incomplete += len(self._waiting)
        self._waiting.clear()
        for kept in self._images.values():
            if kept and next(reversed(kept)) > tick_ns:
                kept.clear()

    def _pop_complete(self) -> list[FusedFrame]:
        """Remove and return the complete frames; a newer complete frame replaces older incomplete ones."""
        complete = [self._is_complete(frame) for frame in self._waiting]
        if not any(complete):
            while len(self._waiting) > AWAITED:
                self._waiting.popleft()
                self.incomplete += 1
            return []
        count = len(complete) - complete[::-1].index(True)
        candidates = [self._waiting.popleft() for _ in range(count)]
        frames = [frame for frame, has_all in zip(candidates, complete, strict=False) if has_all]
        self.incomplete += count - len(frames)
        for frame in frames:
            for name, images in self._images.items():
                if frame.tick_ns in images and name in frame.valid:
                    frame.tensors[name] = images[frame.tick_ns]
        return frames

    def _is_complete(self, frame: FusedFrame) -> bool:
        return all(
            frame.tick_ns in images or not frame.valid[name][-1]
            for name, images in self._images.items()
            if name in frame.valid
        )
