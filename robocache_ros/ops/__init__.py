"""Operations on tensors: resampling, images, voxels. The CPU and CUDA backends give the same bits.

The names below load when first used, so that a reader of a table such as `image.formats` does not wait for torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from robocache_ros.lazy_names import lazy_names

if TYPE_CHECKING:
    from robocache_ros.ops.cuda.kernels import enable_jit_cache as enable_jit_cache
    from robocache_ros.ops.image.convert import convert_image as convert_image
    from robocache_ros.ops.image.convert import normalize_image as normalize_image
    from robocache_ros.ops.installation import print_installation_info as print_installation_info
    from robocache_ros.ops.installation import self_test as self_test
    from robocache_ros.ops.installation import set_device as set_device
    from robocache_ros.ops.resample.inputs import Fused as Fused
    from robocache_ros.ops.resample.inputs import Stream as Stream
    from robocache_ros.ops.resample.resample import blend as blend
    from robocache_ros.ops.resample.resample import fuse as fuse
    from robocache_ros.ops.resample.resample import fuse_multimodal_alignment as fuse_multimodal_alignment
    from robocache_ros.ops.resample.resample import resample_from_host as resample_from_host
    from robocache_ros.ops.resample.resample import resample_trajectories as resample_trajectories
    from robocache_ros.ops.voxel.grid import Voxels as Voxels
    from robocache_ros.ops.voxel.voxelize import FixedSizeCloud as FixedSizeCloud
    from robocache_ros.ops.voxel.voxelize import fixed_size_cloud as fixed_size_cloud
    from robocache_ros.ops.voxel.voxelize import voxelize_cloud_bytes as voxelize_cloud_bytes
    from robocache_ros.ops.voxel.voxelize import voxelize_depth as voxelize_depth
    from robocache_ros.ops.voxel.voxelize import voxelize_pointcloud as voxelize_pointcloud

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

__getattr__, __dir__, __all__ = lazy_names(__name__, _HOMES)
