"""Frames from messages: the window of a tick and the images of the same tick come on topics of their own."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from torch import Tensor

from robocache_ros.frame import FusedFrame

AWAITED = 8  # ticks whose images are waited for


class Assembly:
    """Brings windows and images of one tick together.

    Args:
        images: image and voxel streams that a frame waits for where it has them.

    Attributes:
        incomplete: frames given up because an image of theirs did not come in time.
    """

    def __init__(self, images: Sequence[str]) -> None:
        self.incomplete = 0
        self._waiting: deque[FusedFrame] = deque()
        self._images: dict[str, dict[int, Tensor]] = {name: {} for name in images}

    def add_window(self, frame: FusedFrame) -> list[FusedFrame]:
        """Take in a frame without images; returns the frames that are whole now, in order."""
        self._waiting.append(frame)
        return self._take_whole()

    def add_image(self, name: str, tick_ns: int, image: Tensor) -> list[FusedFrame]:
        """Take in the image of a tick; returns the frames that are whole now, in order."""
        kept = self._images[name]
        kept[tick_ns] = image
        for old in sorted(kept)[:-AWAITED]:
            del kept[old]
        return self._take_whole()

    def clear(self) -> None:
        """Forget the frames that wait."""
        self._waiting.clear()

    def _take_whole(self) -> list[FusedFrame]:
        """An older frame without its images is given up for a newer one with them."""
        whole = [self._is_whole(frame) for frame in self._waiting]
        if not any(whole):
            while len(self._waiting) > AWAITED:
                self._waiting.popleft()
                self.incomplete += 1
            return []
        count = len(whole) - whole[::-1].index(True)
        frames = [self._waiting.popleft() for _ in range(count)]
        taken = [frame for frame, is_whole in zip(frames, whole, strict=False) if is_whole]
        self.incomplete += count - len(taken)
        for frame in taken:
            for name, images in self._images.items():
                if frame.tick_ns in images and name in frame.valid:
                    frame.tensors[name] = images[frame.tick_ns]
        return taken

    def _is_whole(self, frame: FusedFrame) -> bool:
        return all(
            frame.tick_ns in images or not frame.valid[name][-1]
            for name, images in self._images.items()
            if name in frame.valid
        )
