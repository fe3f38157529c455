"""RoboCache ROS: multi-rate robot topics and recordings as one tensor on a fixed tick grid, on the CPU or the GPU.

The names below are loaded when first used, so that a tool that needs only the spec does not wait for torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from robocache_ros.lazy_names import lazy_names

if TYPE_CHECKING:
    from robocache_ros.client import FusedFrame as FusedFrame
    from robocache_ros.client import FusedSubscriber as FusedSubscriber
    from robocache_ros.engine import Frames as Frames
    from robocache_ros.engine import FusionEngine as FusionEngine
    from robocache_ros.engine import Ingest as Ingest
    from robocache_ros.engine import Outcome as Outcome
    from robocache_ros.errors import RoboCacheError as RoboCacheError
    from robocache_ros.exporter.job import export as export
    from robocache_ros.ops import Fused as Fused
    from robocache_ros.ops import Stream as Stream
    from robocache_ros.ops import Voxels as Voxels
    from robocache_ros.ops import blend as blend
    from robocache_ros.ops import convert_image as convert_image
    from robocache_ros.ops import enable_jit_cache as enable_jit_cache
    from robocache_ros.ops import fixed_size_cloud as fixed_size_cloud
    from robocache_ros.ops import fuse as fuse
    from robocache_ros.ops import fuse_multimodal_alignment as fuse_multimodal_alignment
    from robocache_ros.ops import normalize_image as normalize_image
    from robocache_ros.ops import print_installation_info as print_installation_info
    from robocache_ros.ops import resample_trajectories as resample_trajectories
    from robocache_ros.ops import self_test as self_test
    from robocache_ros.ops import set_device as set_device
    from robocache_ros.ops import voxelize_cloud_bytes as voxelize_cloud_bytes
    from robocache_ros.ops import voxelize_depth as voxelize_depth
    from robocache_ros.ops import voxelize_pointcloud as voxelize_pointcloud
    from robocache_ros.spec import FusionSpec as FusionSpec
    from robocache_ros.spec import StreamSpec as StreamSpec
    from robocache_ros.spec import load_spec as load_spec
    from robocache_ros.spec.layout import Layout as Layout

__version__ = "1.0.0"

_HOMES = {
    "client": ("FusedFrame", "FusedSubscriber"),
    "engine": ("Frames", "FusionEngine", "Ingest", "Outcome"),
    "errors": ("RoboCacheError",),
    "exporter.job": ("export",),
    "spec.layout": ("Layout",),
    "ops": (
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
        "resample_trajectories",
        "self_test",
        "set_device",
        "voxelize_cloud_bytes",
        "voxelize_depth",
        "voxelize_pointcloud",
    ),
    "spec": ("FusionSpec", "StreamSpec", "load_spec"),
}

__getattr__, __dir__, __all__ = lazy_names(__name__, _HOMES)
__all__ += ["__version__"]
