"""Bytes of rosbags and of rclpy, in both byte orders, give one and the same sample: also of clouds and scans."""

from __future__ import annotations

import math

import numpy as np
import pytest

from robocache_ros.decode import DecodeError, Sample, make_decoder
from robocache_ros.engine.backends.media import voxel_tensor
from robocache_ros.errors import RoboCacheError
from robocache_ros.spec import CLOUD_TYPE, IMAGE_TYPES, load_spec
from test.decode.conftest import CASES, assert_same, build_ros, decoded, make_stream, serialize


def test_bytes_decode_to_the_values_written(case):
    decoder, expected = case.decoder, Sample(case.stamp_ns, case.expected, case.unmatched)
    for order in "<><":  # the second time, names and fields come out of memory
        data = case.cdr(order)
        for form in (data, memoryview(data), data + bytes(range(1, 25))):
            assert_same(decoder.decode_cdr(form), expected)


def test_a_vector_is_a_copy_that_may_be_written_to_and_a_payload_a_view_of_the_message(case):
    data = case.cdr()
    value = case.decoder.decode_cdr(data).value
    if isinstance(value, np.ndarray):
        value[:] = 1
    else:
        assert np.shares_memory(value.data, np.frombuffer(data, np.uint8))


@pytest.mark.ros
def test_bytes_of_rclpy_decode_to_the_same_sample(case):
    from rclpy.serialization import serialize_message

    data = serialize_message(build_ros(case.type, case.values))
    assert_same(case.decoder.decode_cdr(data), case.decoder.decode_cdr(case.cdr()))


def test_a_message_cut_short_is_refused_though_its_rest_follows_it_in_memory(case):
    decoder, data = case.decoder, case.cdr()
    for size in range(len(data)):
        with pytest.raises(DecodeError):
            decoder.decode_cdr(memoryview(data)[:size])


def test_every_type_that_the_spec_takes_for_an_image_or_a_cloud_becomes_a_payload():
    payloads = {case.type for case in CASES if not isinstance(case.expected, np.ndarray)}
    assert payloads == {*IMAGE_TYPES, CLOUD_TYPE}
    assert {make_stream(kind).kind for kind in payloads} == {"image", "cloud"}


TYPE = "sensor_msgs/msg/CameraInfo"
HEADER = {"stamp": {"sec": 5, "nanosec": 7}, "frame_id": "optical"}
K = [500.0, 0, 320.5, 0, 510.0, 240.25, 0, 0, 1]
P = [450.0, 0, 310.0, 0, 0, 460.0, 230.0, 0, 0, 0, 1, 0]
ROI = {"x_offset": 100, "y_offset": 40, "height": 200, "width": 300}
INFO = {"header": HEADER, "height": 480, "width": 640, "distortion_model": "plumb_bob", "d": [0.1, 0, 0, 0, 0], "k": K}


@pytest.fixture(scope="module")
def decoder():
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
        ({"roi": ROI}, (300, 200), (500.0, 510.0, 220.5, 200.25)),
        ({"binning_x": 2, "roi": ROI}, (150, 200), (250.0, 510.0, 110.25, 200.25)),
    ],
)
def test_the_camera_is_that_of_the_image(decoder, changes, size, intrinsics):
    sample = decoder.decode_cdr(serialize(TYPE, INFO | changes))
    assert sample.stamp_ns == 5 * 10**9 + 7
    assert (sample.value.width, sample.value.height) == size
    assert sample.value.intrinsics == intrinsics


@pytest.mark.parametrize("k", [[0.0] * 9, [np.nan, *K[1:]], [-1.0, *K[1:]]])
def test_a_camera_that_is_not_calibrated_is_refused(decoder, k):
    with pytest.raises(DecodeError, match="calibrate the camera") as caught:
        decoder.decode_cdr(serialize(TYPE, INFO | {"k": k}))
    assert caught.value.cause == "uncalibrated"


def test_camera_info_cut_anywhere_is_refused(decoder):
    data = serialize(TYPE, INFO)
    for size in range(len(data)):
        with pytest.raises(DecodeError):
            decoder.decode_cdr(data[:size])


SCAN = "sensor_msgs/msg/LaserScan"
GRID = {"origin_m": [-2, -2, -1], "size_m": 1.0, "shape": [4, 4, 2]}
VALUES = {"angle_min": -math.pi / 2, "angle_increment": math.pi / 2, "range_min": 0.5, "range_max": 10.0}
VALUES |= {"ranges": [1.25, 1.5, 1.75]}


def points(payload):
    return payload.data.view(np.float32).reshape(payload.width, -1)


def scanned(**values):
    return decoded(SCAN, {**VALUES, **values}, voxels=GRID).value


def test_the_points_of_a_scan_lie_at_its_angles_and_fill_their_voxels():
    payload = scanned()
    # The angles are float32 on the wire; 1e-6 of 2 m is their rounding.
    np.testing.assert_allclose(points(payload), [[0, -1.25, 0], [1.5, 0, 0], [0, 1.75, 0]], atol=2e-6)
    assert int(np.asarray(voxel_tensor(payload, make_stream(SCAN, voxels=GRID))).sum()) == 3


@pytest.mark.parametrize("far", [0.1, 11.0, math.inf, math.nan, -1.0])
def test_a_range_outside_of_the_limits_is_no_point(far):
    found = points(scanned(ranges=[1, far, 1]))
    assert np.isnan(found[1, :2]).all()
    assert np.isfinite(found[[0, 2]]).all()


def test_intensities_are_a_field_of_the_points():
    payload = scanned(intensities=[7, 8, 9])
    assert [field.name for field in payload.fields] == ["x", "y", "z", "intensity"]
    assert points(payload)[:, 3].tolist() == [7, 8, 9]


def test_without_a_grid_a_scan_is_its_ranges():
    assert decoded(SCAN, VALUES, field="ranges", dim=3, align="hold").value.tolist() == [1.25, 1.5, 1.75]


def test_a_scan_without_field_or_grid_is_refused():
    with pytest.raises(RoboCacheError, match="field: missing"):
        make_stream(SCAN)


def test_a_scan_whose_angles_are_not_finite_is_dropped():
    with pytest.raises(DecodeError, match="angle_min, angle_increment"):
        scanned(angle_increment=math.nan)
