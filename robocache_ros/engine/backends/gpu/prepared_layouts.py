"""The launches of one image or cloud stream, prepared once for each layout of its samples."""

from __future__ import annotations

import math
from typing import TypeAlias

import torch
from torch import Tensor

from robocache_ros.decode.payloads import PlacedLayout
from robocache_ros.engine.backends.gpu.allocation import allocate
from robocache_ros.engine.backends.media_tensors import image_options, sensor_pose, voxelization_of
from robocache_ros.ops.image.formats import PACKED, RESIZE, ImageLayout
from robocache_ros.ops.tick.cloud import prepare_cloud, prepare_depth
from robocache_ros.ops.tick.image import prepare_image
from robocache_ros.ops.tick.prepared import CloudVariant, ImageVariant, Prepared, Variant
from robocache_ros.ops.voxel.depth_layout import DepthImageLayout
from robocache_ros.spec import StreamSpec

Layout: TypeAlias = ImageLayout | PlacedLayout
Key: TypeAlias = tuple[int, Layout]  # the number of bytes, and their layout

LAYOUTS = 32  # maximum number cached: the number of points of a cloud may change every time


def likely_variant(stream: StreamSpec) -> Variant:
    """The kernel variant that a stream needs, unless its images have a rare encoding."""
    if stream.voxels:
        cells, is_depth = math.prod(stream.voxels.shape), int(bool(stream.camera_info))
        return CloudVariant(stream.voxels.reduce, len(stream.voxels.features), cells, is_depth)
    assert stream.image
    return ImageVariant(PACKED, RESIZE[stream.image.resize], 1)


class PreparedLayouts:
    """Checks layouts and caches what to launch for them.

    Args:
        stream: an image or cloud stream.
        normalized: return images as float32.
        device: CUDA device of the scratch memory for reduced features.
    """

    def __init__(self, stream: StreamSpec, normalized: bool, device: torch.device) -> None:
        self._stream = stream
        self._normalized = normalized
        self._by_layout: dict[Key, Prepared] = {}
        self._sums: Tensor | None = None
        if stream.voxels and stream.voxels.features:
            cells = math.prod(stream.voxels.shape)
            sums = allocate(stream.name, "sums", len(stream.voxels.features) + 1, 8 * cells, device)
            self._sums = sums.view(torch.int64)

    @property
    def sums_bytes(self) -> int:
        """Size of the scratch memory in bytes; 0 if the stream needs none."""
        return 0 if self._sums is None else self._sums.nbytes

    def prepare(self, key: Key) -> Prepared:
        """What to launch for a sample with a layout; raises ValueError if the layout is not possible."""
        prepared = self._by_layout.get(key)
        if prepared is None:
            if len(self._by_layout) == LAYOUTS:
                self._by_layout.clear()
            prepared = self._by_layout[key] = self._prepare(*key)
        return prepared

    def _prepare(self, nbytes: int, layout: Layout) -> Prepared:
        if isinstance(layout, ImageLayout):
            return prepare_image(nbytes, layout, image_options(self._stream, self._normalized))
        pose, voxelization = sensor_pose(layout.transform, self._stream), voxelization_of(self._stream)
        if isinstance(layout.layout, DepthImageLayout):
            return prepare_depth(nbytes, layout.layout, pose, voxelization, self._sums)
        return prepare_cloud(nbytes, layout.layout, pose, voxelization, self._sums)
