"""PointCloud2: layouts, padding, byte order, and fields that reach where they must not."""

from dataclasses import asdict

import pytest

from robocache_ros.decode import DecodeError, PointField, make_decoder
from test.decode.conftest import make_stream, serialize

TYPE = "sensor_msgs/msg/PointCloud2"
XYZ = [("x", 0, 7, 1), ("y", 4, 7, 1), ("z", 8, 7, 1)]


@pytest.fixture
def decode():
    decoder = make_decoder(make_stream(TYPE))

    def decode(fields=XYZ, **values):
        named = [asdict(PointField(*one)) for one in fields]
        usual = {"height": 1, "width": 2, "point_step": 12, "row_step": 24, "data": bytes(24), "fields": named}
        return decoder.decode_cdr(serialize(TYPE, usual | values)).value

    return decode


@pytest.mark.parametrize(
    ("fields", "point_step"),
    [
        (XYZ, 12),
        ([*XYZ, ("intensity", 16, 7, 1), ("ring", 20, 4, 1), ("time", 24, 8, 1)], 32),
        ([("z", 0, 8, 1), ("y", 8, 8, 1), ("x", 16, 8, 1)], 24),
        ([("normal", 0, 7, 3), *((name, offset + 12, kind, n) for name, offset, kind, n in XYZ)], 24),
        ([("x", 1, 3, 1), ("y", 3, 3, 1), ("z", 5, 3, 1)], 7),
        ([("x", 0, 7, 0), ("y", 4, 7, 0), ("z", 8, 7, 0)], 12),
    ],
)
def test_any_layout_is_carried_as_it_is(decode, fields, point_step):
    cloud = decode(fields, point_step=point_step, row_step=2 * point_step, data=bytes(2 * point_step))
    assert cloud.fields == tuple(PointField(*one) for one in fields)
    assert cloud.point_step == point_step


def test_rows_may_be_padded_and_bytes_may_follow_the_last(decode):
    cloud = decode(height=2, row_step=30, data=bytes(64))
    assert (cloud.width, cloud.height, cloud.row_step, len(cloud.data)) == (2, 2, 30, 54)


def test_the_row_step_of_a_single_row_does_not_matter(decode):
    assert len(decode(row_step=0).data) == 24


@pytest.mark.parametrize("big_endian", [False, True])
def test_the_byte_order_of_the_points_is_carried(decode, big_endian):
    assert decode(is_bigendian=big_endian).big_endian is big_endian


@pytest.mark.parametrize("values", [{"width": 0, "row_step": 0}, {"height": 0}])
def test_an_empty_cloud_is_a_cloud(decode, values):
    cloud = decode(**values, data=b"")
    assert cloud.width * cloud.height == 0
    assert len(cloud.data) == 0


@pytest.mark.parametrize(
    "values",
    [
        {"height": 2, "row_step": 23, "data": bytes(64)},
        {"height": 2},
        {"height": 2, "row_step": 30, "data": bytes(53)},
        {"data": bytes(23)},
        {"width": 0xFFFFFFFF, "row_step": 0xFFFFFFFF},
        {"point_step": 0xFFFFFFFF},
        {"height": 0xFFFFFFFF, "row_step": 0xFFFFFFFF},
    ],
)
def test_sizes_that_do_not_fit_the_data_are_refused(decode, values):
    with pytest.raises(DecodeError) as error:
        decode(**values)
    assert error.value.cause == "cloud_size"


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ([], "x is missing among none"),
        (XYZ[:2], "z is missing among x, y"),
        ([*XYZ, XYZ[0]], "x is duplicated"),
        ([*XYZ, ("a", 12, 7, 1)], "a at 12 reaches past point_step 12"),
        ([*XYZ, ("a", 8, 7, 2)], "a at 8 reaches past point_step 12"),
        ([*XYZ, ("a", 0xFFFFFFFF, 7, 1)], "reaches past point_step 12"),
        ([*XYZ, ("a", 0, 7, 0xFFFFFFFF)], "reaches past point_step 12"),
        ([*XYZ, ("a", 0, 0, 1)], "a has datatype 0"),
        ([*XYZ, ("a", 0, 9, 1)], "a has datatype 9"),
    ],
)
def test_fields_that_cannot_be_are_refused(decode, fields, problem):
    with pytest.raises(DecodeError, match=problem) as error:
        decode(fields)
    assert error.value.cause == "bad_fields"


def test_fields_are_checked_again_when_the_points_become_shorter(decode):
    decode()
    with pytest.raises(DecodeError, match="z at 8 reaches past point_step 11"):
        decode(point_step=11)
