"""Operations on tensors: resampling, images, voxels. The CPU and CUDA backends give the same bits.

The names below load when first used, so that a reader of a table such as `image.formats` does not wait for torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from robocache_ros.lazy_names import lazy_names

if TYPE_CHECKING:
    from robocache_ros.ops.cuda.kernels import enable_jit_cache
    from robocache_ros.ops.image.convert import convert_image, normalize_image
    from robocache_ros.ops.installation import print_installation_info, self_test, set_device
    from robocache_ros.ops.resample.inputs import Fused, Stream
    from robocache_ros.ops.resample.resample import (
        blend,
        fuse,
        fuse_multimodal_alignment,
        resample_from_host,
        resample_trajectories,
    )
    from robocache_ros.ops.voxel.grid import Voxels
    from robocache_ros.ops.voxel.voxelize import (
        FixedSizeCloud,
        fixed_size_cloud,
        voxelize_cloud_bytes,
        voxelize_depth,
        voxelize_pointcloud,
    )

_HOMES = {
    "cuda.kernels": ("enable_jit_cache",),
    "image.convert": ("convert_image", "normalize_image"),
    "installation": ("print_installation_info", "self_test", "set_device"),
    "resample.resample": ("blend", "fuse", "fuse_multimodal_alignment", "resample_from_host", "resample_trajectories"),
    "resample.inputs": ("Fused", "Stream"),
    "voxel.grid": ("Voxels",),
    "voxel.voxelize": (
        *("FixedSizeCloud", "fixed_size_cloud"),
        *("voxelize_cloud_bytes", "voxelize_depth", "voxelize_pointcloud"),
    ),
}

__all__ = [
    "FixedSizeCloud",
    "Fused",
    "Stream",
    "Voxels",
    "blend",
    "convert_image",
    "enable_jit_cache",
    "fixed_size_cloud",
    "fuse",
    "fuse_multimodal_alignment",
    "normalize_image",
    "print_installation_info",
    "resample_from_host",
    "resample_trajectories",
    "self_test",
    "set_device",
    "voxelize_cloud_bytes",
    "voxelize_depth",
    "voxelize_pointcloud",
]

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
