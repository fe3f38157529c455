"""camera_info: the camera of the rectified image, of its window and its binning."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from robocache_ros.decode import DecodeError, make_decoder
from robocache_ros.decode.decoder import Decoder
from robocache_ros.spec import load_spec

TYPE = "sensor_msgs/msg/CameraInfo"
HEADER = {"stamp": {"sec": 5, "nanosec": 7}, "frame_id": "optical"}
K = [500.0, 0, 320.5, 0, 510.0, 240.25, 0, 0, 1]
P = [450.0, 0, 310.0, 0, 0, 460.0, 230.0, 0, 0, 0, 1, 0]
INFO = {"header": HEADER, "height": 480, "width": 640, "distortion_model": "plumb_bob", "d": [0.1, 0, 0, 0, 0], "k": K}


@pytest.fixture(scope="module")
def decoder() -> Decoder:
    voxels = {"origin_m": [0, 0, 0], "size_m": 1, "shape": [1, 1, 1]}
    keys = {"topic": "/d", "type": "sensor_msgs/msg/Image", "camera_info": "/i", "voxels": voxels}
    (info,) = load_spec({"robocache": 1, "streams": {"rgbd": keys}}).stream("rgbd").companions
    return make_decoder(info)


@pytest.mark.parametrize(
    ("changes", "size", "intrinsics"),
    [
        ({}, (640, 480), (500.0, 510.0, 320.5, 240.25)),
        ({"p": P}, (640, 480), (450.0, 460.0, 310.0, 230.0)),  # the rectified image's goes before the raw one's
        ({"binning_x": 2, "binning_y": 2}, (320, 240), (250.0, 255.0, 160.25, 120.125)),
        (
            {"roi": {"x_offset": 100, "y_offset": 40, "height": 200, "width": 300}},
            (300, 200),
            (500.0, 510.0, 220.5, 200.25),
        ),
        (
            {"binning_x": 2, "roi": {"x_offset": 100, "y_offset": 40, "height": 200, "width": 300}},
            (150, 200),
            (250.0, 510.0, 110.25, 200.25),
        ),
    ],
)
def test_the_camera_is_that_of_the_image(
    decoder: Decoder, cdr: Callable[..., bytes], changes: dict[str, Any], size: Any, intrinsics: Any
) -> None:
    sample = decoder.decode_cdr(cdr(TYPE, INFO | changes))
    assert sample.stamp_ns == 5 * 10**9 + 7
    assert (sample.value.width, sample.value.height) == size
    assert sample.value.intrinsics == intrinsics


@pytest.mark.parametrize("changes", [{"k": [0.0] * 9}, {"k": [np.nan, *K[1:]]}, {"k": [-1.0, *K[1:]]}])
def test_a_camera_that_is_not_calibrated_is_refused(
    decoder: Decoder, cdr: Callable[..., bytes], changes: dict[str, Any]
) -> None:
    with pytest.raises(DecodeError, match="calibrate the camera") as caught:
        decoder.decode_cdr(cdr(TYPE, INFO | changes))
    assert caught.value.cause == "uncalibrated"


def test_a_message_cut_anywhere_is_refused(decoder: Decoder, cdr: Callable[..., bytes]) -> None:
    data = cdr(TYPE, INFO)
    for size in range(len(data)):
        with pytest.raises(DecodeError):
            decoder.decode_cdr(data[:size])
