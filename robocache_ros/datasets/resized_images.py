"""Images of a stream in another size, by the operation that resizes those of recordings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from robocache_ros.errors import RoboCacheError
from robocache_ros.formats.images import images_at
from robocache_ros.formats.read import Stream, check_image_bytes
from robocache_ros.ops.image.conversion import ImageOptions
from robocache_ros.ops.image.convert import channels_last_layout
from robocache_ros.ops.image.formats import ImageLayout

MAX_SIDE = 16384  # px, as in a fusion spec
RESIZES = ("bilinear", "nearest", "area")


@dataclass(frozen=True)
class ResizedFrames:
    """The images of a stream, decoded and resized when they are asked for.

    Attributes:
        stream: of 8-bit RGB images of any size.
        size: height and width of the results.
        resize: bilinear, nearest or area; see `robocache_ros.convert_image`.
        where: file and record, for errors.
    """

    stream: Stream
    size: tuple[int, int]
    resize: str
    where: str

    def __len__(self) -> int:
        return len(self.stream.values)

    def frames(self, rows: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Return the (n, H, W, 3) images of rising rows.

        Errors:
            DatasetError: an image is damaged or missing.
        """
        images = images_at(self.stream, rows, self.where)
        height, width = images.shape[1:3]
        if (height, width) == self.size:
            return images
        check_image_bytes(len(rows), (*self.size, 3), self.where)
        found = np.empty((len(rows), *self.size, 3), np.uint8)
        layout, options = (
            ImageLayout("rgb8", width, height, 3 * width, False),
            ImageOptions(self.size, None, self.resize),
        )
        for place, image in enumerate(images):
            data = torch.from_numpy(np.require(image, requirements=["C", "W"]).reshape(-1))
            found[place] = channels_last_layout(data, layout, options).permute(1, 2, 0).numpy()
        return found


def resized(stream: Stream, size: tuple[int, int], resize: str, where: str) -> Stream:
    """Return a stream of images with images of another size."""
    return replace(stream, values=ResizedFrames(stream, size, resize, where))


def with_image_size(streams: Mapping[str, Stream], size: tuple[int, int], resize: str, where: str) -> dict[str, Stream]:
    """Return streams with all cameras resized. Depth and voxels stay as they are."""
    return {
        name: resized(stream, size, resize, where) if stream.is_image and stream.modality == "vision" else stream
        for name, stream in streams.items()
    }


def checked_size(key: str, size: Any, resize: str = RESIZES[0]) -> tuple[int, int]:
    """Return a height and a width.

    Errors:
        RoboCacheError: they are not such, or the way of resizing is not known.
    """
    if resize not in RESIZES:
        raise RoboCacheError(f"image_resize: {resize!r} is not one of {', '.join(RESIZES)}; choose one of them")
    if not (
        isinstance(size, Sequence)
        and len(size) == 2
        and all(isinstance(side, int) and 0 < side <= MAX_SIDE for side in size)
    ):
        raise RoboCacheError(f"{key}: {size!r} is not a height and a width from 1 to {MAX_SIDE} px; give (H, W)")
    return int(size[0]), int(size[1])
