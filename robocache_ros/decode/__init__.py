"""Decodes messages to samples: CDR bytes to vectors, images and clouds."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from robocache_ros.decode.decoder import Decoder
from robocache_ros.decode.definitions import Struct, definitions_of, full_name, message_type
from robocache_ros.decode.images import CameraDecoder, CompressedImageDecoder, ImageDecoder, decode_compressed
from robocache_ros.decode.numeric_fields import JointDecoder, VectorDecoder
from robocache_ros.decode.payloads import (
    CameraPayload,
    CloudPayload,
    DecodeError,
    DepthPayload,
    ImagePayload,
    Sample,
)
from robocache_ros.decode.point_clouds import CloudDecoder, ScanDecoder
from robocache_ros.decode.video import VideoDecoder
from robocache_ros.errors import RoboCacheError
from robocache_ros.ops.voxel.layouts import PointField
from robocache_ros.spec import VIDEO_TYPES, StreamSpec
from robocache_ros.spec.stream import LASER_TYPE

__all__ = [
    "CameraPayload",
    "CloudPayload",
    "DecodeError",
    "Decoder",
    "DepthPayload",
    "ImagePayload",
    "PointField",
    "Sample",
    "decode_compressed",
    "definitions_of",
    "make_decoder",
]

# Types that become an image or a cloud. For any other type, the stream names a numeric field.
_DECODERS: dict[str, Callable[[StreamSpec, Struct], Decoder]] = {
    "sensor_msgs/msg/Image": ImageDecoder,
    "sensor_msgs/msg/CompressedImage": CompressedImageDecoder,
    **dict.fromkeys(VIDEO_TYPES, VideoDecoder),
    "sensor_msgs/msg/PointCloud2": CloudDecoder,
    LASER_TYPE: ScanDecoder,  # with a grid; without one, its ranges are numbers
}


def make_decoder(stream: StreamSpec, definitions: Mapping[str, str] | None = None) -> Decoder:
    """The decoder for a stream's messages.

    definitions: type -> .msg text (with the types it needs after '=====' and 'MSG:' lines), for types that are not
    common. Bags contain them, and `definitions_of` creates them from an installed message class.
    RoboCacheError if the type is unknown, or has no such numeric field of the stream's width.
    """
    try:
        name = full_name(stream.type)
        message = message_type(name, definitions)
        if name in _DECODERS and (name != LASER_TYPE or stream.voxels):
            return _DECODERS[name](stream, message)
        if stream.name.endswith("/camera_info"):  # completes a depth image; not a stream of intrinsics
            return CameraDecoder(stream, message)
        return (JointDecoder if stream.names else VectorDecoder)(stream, message)
    except RoboCacheError as error:
        raise RoboCacheError(f"streams.{stream.name}.{error}") from None
