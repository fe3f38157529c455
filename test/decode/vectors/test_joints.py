"""Joints by name: any order, extra joints, missing ones, sets that change."""

import numpy as np
import pytest

from robocache_ros.decode import DecodeError, make_decoder
from robocache_ros.errors import RoboCacheError

TYPE = "sensor_msgs/msg/JointState"


@pytest.fixture(name="decoder")
def make(stream_of):
    return make_decoder(stream_of(TYPE, names=["a", "b", "c"]))


@pytest.fixture(name="joints")
def serialize(cdr):
    def make_message(names, little_endian=True, **values):
        values = values or {"position": [float(ord(name[0]) - ord("a")) for name in names]}
        return cdr(TYPE, {"name": list(names), **values}, little_endian)

    return make_message


@pytest.mark.parametrize("names", ["abc", "cab", "bxac", "xabcy", "xyzcba"])
def test_values_follow_the_streams_order(decoder, joints, names):
    np.testing.assert_array_equal(decoder.decode_cdr(joints(names)).value, np.float32([0, 1, 2]))


def test_orders_may_alternate(decoder, joints):
    for names in ["abc", "cba", "abc", "bca", "cba"] * 3:
        np.testing.assert_array_equal(decoder.decode_cdr(joints(names)).value, np.float32([0, 1, 2]))


def test_one_decoder_takes_both_byte_orders_in_turn(decoder, joints):
    for little in (True, False, True, False):
        np.testing.assert_array_equal(decoder.decode_cdr(joints("cab", little)).value, np.float32([0, 1, 2]))


def test_joints_not_asked_for_are_named(decoder, joints):
    assert decoder.decode_cdr(joints("xabyc")).unmatched == ("x", "y")


def test_a_missing_joint_is_an_error_that_names_it(decoder, joints):
    with pytest.raises(DecodeError, match="names: b missing among a, c, d") as error:
        decoder.decode_cdr(joints("acd"))
    assert error.value.cause == "joint_missing"


def test_a_joint_that_is_named_twice_is_an_error(decoder, joints):
    with pytest.raises(DecodeError, match="b appears twice") as error:
        decoder.decode_cdr(joints("abcb"))
    assert error.value.cause == "joint_twice"


def test_a_message_without_joints_is_an_error(decoder, joints):
    with pytest.raises(DecodeError, match="names: a, b, c missing among none"):
        decoder.decode_cdr(joints(""))


def test_good_messages_pass_after_a_bad_one(decoder, joints):
    with pytest.raises(DecodeError):
        decoder.decode_cdr(joints("ab"))
    np.testing.assert_array_equal(decoder.decode_cdr(joints("abc")).value, np.float32([0, 1, 2]))


def test_another_order_is_no_changed_set(decoder, joints):
    for names in ("abc", "bca", "abc"):
        decoder.decode_cdr(joints(names))
    assert decoder.changed_sets == 0


def test_every_change_of_the_set_is_counted(decoder, joints):
    for names in ("abc", "abc", "abcx", "xcba", "abc"):
        decoder.decode_cdr(joints(names))
    assert decoder.changed_sets == 2


def test_a_set_that_lost_a_joint_is_counted_too(decoder, joints):
    decoder.decode_cdr(joints("abc"))
    with pytest.raises(DecodeError):
        decoder.decode_cdr(joints("ab"))
    assert decoder.changed_sets == 1


def test_an_empty_field_is_an_error_of_its_own(stream_of, joints):
    decoder = make_decoder(stream_of(TYPE, names=["a"], field="velocity"))
    with pytest.raises(DecodeError, match="velocity: empty, the publisher does not set it") as error:
        decoder.decode_cdr(joints("ab"))
    assert error.value.cause == "empty"


def test_values_fewer_than_names_are_an_error(decoder, joints):
    with pytest.raises(DecodeError, match="position: 2 values for 3 joint names") as error:
        decoder.decode_cdr(joints("abc", position=[1.0, 2.0]))
    assert error.value.cause == "dim"


@pytest.mark.parametrize("field", ["header.stamp.sec", "name", "nothing"])
def test_a_field_that_is_not_one_value_a_joint_is_refused(stream_of, field):
    with pytest.raises(RoboCacheError, match=r"^streams\.s\.field: "):
        make_decoder(stream_of(TYPE, names=["a"], field=field))


def test_names_beyond_ascii_are_matched(stream_of, cdr):
    decoder = make_decoder(stream_of(TYPE, names=["größe"]))
    data = cdr(TYPE, {"name": ["x", "größe"], "position": [1.0, 2.0]})
    np.testing.assert_array_equal(decoder.decode_cdr(data).value, np.float32([2]))
