"""The fusion spec: declarations of the streams of a robot, and the layout of the fused rows."""

from typing import TYPE_CHECKING

from robocache_ros.lazy_names import lazy_names

if TYPE_CHECKING:
    from robocache_ros.spec.fusion import FusionSpec, json_schema, load_spec
    from robocache_ros.spec.layout import Column, Layout
    from robocache_ros.spec.stream import (
        CAMERA_INFO_TYPE,
        CLOUD_TYPE,
        IMAGE_TYPES,
        IMAGENET,
        JOINT_TYPE,
        TF,
        TF_STATIC,
        TF_TYPE,
        VIDEO_TYPES,
        Extrinsic,
        ImageSpec,
        Normalize,
        QosSpec,
        SpecQuality,
        StreamQuality,
        StreamSpec,
        VoxelSpec,
    )
    from robocache_ros.units import NS_PER_MS, NS_PER_S

_HOMES = {
    "fusion": ("FusionSpec", "json_schema", "load_spec"),
    "layout": ("Column", "Layout"),
    "stream": (
        "CAMERA_INFO_TYPE",
        "CLOUD_TYPE",
        "IMAGE_TYPES",
        "IMAGENET",
        "JOINT_TYPE",
        "TF",
        "TF_STATIC",
        "TF_TYPE",
        "VIDEO_TYPES",
        "Extrinsic",
        "ImageSpec",
        "Normalize",
        "QosSpec",
        "SpecQuality",
        "StreamQuality",
        "StreamSpec",
        "VoxelSpec",
    ),
    "robocache_ros.units": ("NS_PER_MS", "NS_PER_S"),
}

__all__ = [
    "CAMERA_INFO_TYPE",
    "CLOUD_TYPE",
    "IMAGENET",
    "IMAGE_TYPES",
    "JOINT_TYPE",
    "NS_PER_MS",
    "NS_PER_S",
    "TF",
    "TF_STATIC",
    "TF_TYPE",
    "VIDEO_TYPES",
    "Column",
    "Extrinsic",
    "FusionSpec",
    "ImageSpec",
    "Layout",
    "Normalize",
    "QosSpec",
    "SpecQuality",
    "StreamQuality",
    "StreamSpec",
    "VoxelSpec",
    "json_schema",
    "load_spec",
]

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
