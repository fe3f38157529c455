"""RoboCache ROS: multi-rate robot topics and recordings as one tensor on a fixed tick grid, on the CPU or the GPU.

The names below are loaded when first used, so that a tool that needs only the spec does not wait for torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from robocache_ros.lazy_names import lazy_names

if TYPE_CHECKING:
    from robocache_ros.client import FusedFrame, FusedSubscriber
    from robocache_ros.engine import Frames, FusionEngine, Ingest, Outcome
    from robocache_ros.errors import RoboCacheError
    from robocache_ros.exporter.run import export
    from robocache_ros.ops import (
        Fused,
        Stream,
        Voxels,
        blend,
        convert_image,
        enable_jit_cache,
        fixed_size_cloud,
        fuse,
        fuse_multimodal_alignment,
        normalize_image,
        print_installation_info,
        resample_trajectories,
        self_test,
        set_device,
        voxelize_cloud_bytes,
        voxelize_depth,
        voxelize_pointcloud,
    )
    from robocache_ros.spec import FusionSpec, StreamSpec, load_spec
    from robocache_ros.spec.layout import Layout

__version__ = "0.1.0"

_HOMES = {
    "client": ("FusedFrame", "FusedSubscriber"),
    "engine": ("Frames", "FusionEngine", "Ingest", "Outcome"),
    "errors": ("RoboCacheError",),
    "exporter.run": ("export",),
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

__all__ = [
    "Frames",
    "Fused",
    "FusedFrame",
    "FusedSubscriber",
    "FusionEngine",
    "FusionSpec",
    "Ingest",
    "Layout",
    "Outcome",
    "RoboCacheError",
    "Stream",
    "StreamSpec",
    "Voxels",
    "__version__",
    "blend",
    "convert_image",
    "enable_jit_cache",
    "export",
    "fixed_size_cloud",
    "fuse",
    "fuse_multimodal_alignment",
    "load_spec",
    "normalize_image",
    "print_installation_info",
    "resample_trajectories",
    "self_test",
    "set_device",
    "voxelize_cloud_bytes",
    "voxelize_depth",
    "voxelize_pointcloud",
]

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
