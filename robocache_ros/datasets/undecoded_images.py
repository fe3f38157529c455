"""Images of a sample that are decoded into the batch itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from robocache_ros.formats.images import image_size, is_files, label, write_images
from robocache_ros.formats.read import Stream, check_image_bytes


@dataclass(frozen=True)
class UndecodedImages:
    """The images of C cameras at n ticks: files of jpeg or png, of one size as far as the first of each shows.

    Attributes:
        files: of each camera.
        rows: (n,) int64 of each camera: its file at each tick; -1: a black image.
        where: of each camera, for errors.
        shape: (n, H, W, 3) of one camera, (n, C, H, W, 3) of several.
    """

    files: tuple[Sequence[bytes | memoryview], ...]
    rows: tuple[NDArray[np.int64], ...]
    where: tuple[str, ...]
    shape: tuple[int, ...]
    dtype = np.dtype(np.uint8)

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, ticks: slice) -> UndecodedImages:
        rows = tuple(each[ticks] for each in self.rows)
        return replace(self, rows=rows, shape=(len(rows[0]), *self.shape[1:]))

    def write(self, out: NDArray[np.uint8]) -> None:
        """Decode the images into `out`, of the shape of this.

        Errors:
            DatasetError: an image is damaged, or does not have the size of the others.
        """
        by_camera = out.reshape(len(self), len(self.files), *self.shape[-3:])
        for camera, (files, rows, where) in enumerate(zip(self.files, self.rows, self.where, strict=True)):
            write_images(files, rows, by_camera[:, camera], where)

    def decoded(self) -> NDArray[np.uint8]:
        """Return the images.

        Errors:
            DatasetError: an image is damaged, or does not have the size of the others.
        """
        found = np.empty(self.shape, np.uint8)
        self.write(found)
        return found


def undecoded_images(stream: Stream, rows: NDArray[np.int64], where: str) -> UndecodedImages | None:
    """Return the images of a stream at rows; None if they are not files. For the arguments, see `images_at`.

    Errors:
        DatasetError: the first image is damaged or too large, or the images are too many.
    """
    if not is_files(stream.values):
        return None
    where = label(stream, where)
    shape = (len(rows), *image_size(stream.values, rows, where), 3)
    check_image_bytes(len(rows), shape[1:], where)
    return UndecodedImages((stream.values,), (rows,), (where,), shape)


def side_by_side(cameras: Sequence[UndecodedImages]) -> UndecodedImages:
    """Return the images of cameras of one size as (n, C, H, W, 3)."""
    files, rows, where = (tuple(getattr(each, name)[0] for each in cameras) for name in ("files", "rows", "where"))
    shape = cameras[0].shape
    return UndecodedImages(files, rows, where, (shape[0], len(cameras), *shape[1:]))
