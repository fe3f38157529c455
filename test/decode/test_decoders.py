"""Bytes of rosbags and of rclpy, in both byte orders, give one and the same sample."""

import numpy as np
import pytest

from robocache_ros.decode import DecodeError, Sample
from robocache_ros.spec import CLOUD_TYPE, IMAGE_TYPES


def test_bytes_decode_to_the_values_written(case, same):
    same(case.decoder.decode_cdr(case.cdr()), Sample(case.stamp_ns, case.expected, case.unmatched))


def test_big_endian_bytes_decode_to_the_same_sample(case, same):
    same(case.decoder.decode_cdr(case.cdr(little_endian=False)), case.decoder.decode_cdr(case.cdr()))


def test_a_memoryview_decodes_to_the_same_sample(case, same):
    decoder = case.decoder
    for _ in range(2):  # the second time, names and fields come out of memory
        same(decoder.decode_cdr(memoryview(case.cdr())), case.decoder.decode_cdr(case.cdr()))


def test_a_second_message_decodes_to_the_same_sample(case, same):
    decoder = case.decoder
    same(decoder.decode_cdr(case.cdr()), decoder.decode_cdr(case.cdr()))


@pytest.mark.ros
def test_bytes_of_rclpy_decode_to_the_same_sample(case, same):
    from rclpy.serialization import serialize_message

    same(case.decoder.decode_cdr(serialize_message(case.ros())), case.decoder.decode_cdr(case.cdr()))


def test_a_message_cut_short_anywhere_is_refused(case):
    decoder, data = case.decoder, case.cdr()
    for size in range(len(data)):
        with pytest.raises(DecodeError):
            decoder.decode_cdr(data[:size])


def test_a_message_cut_short_is_refused_though_its_rest_follows_it_in_memory(case):
    decoder, data = case.decoder, case.cdr()
    for size in range(len(data)):
        with pytest.raises(DecodeError):
            decoder.decode_cdr(memoryview(data)[:size])


def test_bytes_behind_the_message_change_nothing(case, same):
    same(case.decoder.decode_cdr(case.cdr() + bytes(range(1, 25))), case.decoder.decode_cdr(case.cdr()))


def test_a_vector_is_a_copy_that_may_be_written_to(case):
    value = case.decoder.decode_cdr(case.cdr()).value
    if isinstance(value, np.ndarray):
        value[:] = 1


def test_a_payload_is_a_view_of_the_message(case):
    data = case.cdr()
    value = case.decoder.decode_cdr(data).value
    if not isinstance(value, np.ndarray):
        assert np.shares_memory(value.data, np.frombuffer(data, np.uint8))


def test_every_type_that_the_spec_takes_for_an_image_or_a_cloud_becomes_a_payload(stream_of, cases):
    payloads = {case.type for case in cases.values() if not isinstance(case.expected, np.ndarray)}
    assert payloads == {*IMAGE_TYPES, CLOUD_TYPE}
    assert {stream_of(kind).kind for kind in payloads} == {"image", "cloud"}
