"""Camera intrinsics: sensor_msgs CameraInfo to the pinhole camera of its rectified image."""

from __future__ import annotations

import math
from typing import Any

from robocache_ros.decode.cdr.numbers import numbers
from robocache_ros.decode.cdr.types import Struct
from robocache_ros.decode.cdr.values import scalar
from robocache_ros.decode.decoder import Decoder
from robocache_ros.decode.payloads import CameraPayload, DecodeError, Sample
from robocache_ros.spec import StreamSpec


class CameraDecoder(Decoder):
    """A sensor_msgs/msg/CameraInfo as CameraPayload: P, or K if P is not set, of the binned region of interest.

    P is the camera of the rectified image, as in depth_image_proc. The distortion of the raw image is not read.
    """

    def __init__(self, stream: StreamSpec, message: Struct) -> None:
        scalars = [(("height",), scalar), (("width",), scalar), (("binning_x",), scalar), (("binning_y",), scalar)]
        window = [(("roi", name), scalar) for name in ("x_offset", "y_offset", "height", "width")]
        super().__init__(stream, message, [*scalars, *window, (("k",), numbers), (("p",), numbers)])

    def _sample(self, stamp_ns: int | None, /, *values: Any) -> Sample:
        height, width, bin_x, bin_y, left, top, rows, columns, k, p = values
        fx, fy, cx, cy = (p[0], p[5], p[2], p[6]) if p[0] else (k[0], k[4], k[2], k[5])
        bin_x, bin_y = max(bin_x, 1), max(bin_y, 1)
        camera = (float(fx) / bin_x, float(fy) / bin_y, (float(cx) - left) / bin_x, (float(cy) - top) / bin_y)
        if not all(map(math.isfinite, camera)) or camera[0] <= 0 or camera[1] <= 0:
            raise DecodeError("uncalibrated", f"camera_info: fx, fy, cx, cy = {camera}; calibrate the camera")
        return Sample(stamp_ns, CameraPayload((columns or width) // bin_x, (rows or height) // bin_y, camera))
