"""The fusion spec: declarations of the streams of a robot, and the layout of the fused rows."""

from typing import TYPE_CHECKING

from robocache_ros.lazy_names import lazy_names

if TYPE_CHECKING:
    from robocache_ros.spec.fusion import FusionSpec as FusionSpec
    from robocache_ros.spec.fusion import json_schema as json_schema
    from robocache_ros.spec.fusion import load_spec as load_spec
    from robocache_ros.spec.layout import Column as Column
    from robocache_ros.spec.layout import Layout as Layout
    from robocache_ros.spec.stream import CAMERA_INFO_TYPE as CAMERA_INFO_TYPE
    from robocache_ros.spec.stream import CLOUD_TYPE as CLOUD_TYPE
    from robocache_ros.spec.stream import IMAGE_TYPES as IMAGE_TYPES
    from robocache_ros.spec.stream import IMAGENET as IMAGENET
    from robocache_ros.spec.stream import JOINT_TYPE as JOINT_TYPE
    from robocache_ros.spec.stream import TF as TF
    from robocache_ros.spec.stream import TF_STATIC as TF_STATIC
    from robocache_ros.spec.stream import TF_TYPE as TF_TYPE
    from robocache_ros.spec.stream import VIDEO_TYPES as VIDEO_TYPES
    from robocache_ros.spec.stream import Extrinsic as Extrinsic
    from robocache_ros.spec.stream import ImageSpec as ImageSpec
    from robocache_ros.spec.stream import Normalize as Normalize
    from robocache_ros.spec.stream import QosSpec as QosSpec
    from robocache_ros.spec.stream import SpecQuality as SpecQuality
    from robocache_ros.spec.stream import StreamQuality as StreamQuality
    from robocache_ros.spec.stream import StreamSpec as StreamSpec
    from robocache_ros.spec.stream import VoxelSpec as VoxelSpec
    from robocache_ros.units import NS_PER_MS as NS_PER_MS
    from robocache_ros.units import NS_PER_S as NS_PER_S

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

__getattr__, __dir__, __all__ = lazy_names(__name__, _HOMES)
