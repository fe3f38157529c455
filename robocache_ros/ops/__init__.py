"""Tensors in, tensors out."""

from robocache_ros.ops.cuda.cache import enable_jit_cache
from robocache_ros.ops.fusion import fuse, fuse_multimodal_alignment
from robocache_ros.ops.image import convert_image, normalize_image
from robocache_ros.ops.installation import print_installation_info, set_device
from robocache_ros.ops.resample import resample_trajectories
from robocache_ros.ops.rows import blend
from robocache_ros.ops.selftest import self_test
from robocache_ros.ops.streams import Fused, Stream
from robocache_ros.ops.voxel import voxelize_cloud_bytes, voxelize_pointcloud
from robocache_ros.ops.voxel_depth import voxelize_depth
from robocache_ros.ops.voxel_grid import Voxels

__all__ = [
    "Fused",
    "Stream",
    "Voxels",
    "blend",
    "convert_image",
    "enable_jit_cache",
    "fuse",
    "fuse_multimodal_alignment",
    "normalize_image",
    "print_installation_info",
    "resample_trajectories",
    "self_test",
    "set_device",
    "voxelize_cloud_bytes",
    "voxelize_depth",
    "voxelize_pointcloud",
]
