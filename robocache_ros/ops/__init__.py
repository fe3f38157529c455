"""Tensors in, tensors out."""

from robocache_ros.ops.blend import blend
from robocache_ros.ops.image import convert_image, normalize_image
from robocache_ros.ops.voxel import voxelize_cloud_bytes, voxelize_pointcloud
from robocache_ros.ops.voxel_grid import Voxels

__all__ = ["Voxels", "blend", "convert_image", "normalize_image", "voxelize_cloud_bytes", "voxelize_pointcloud"]
