"""Numeric fields by path: rounding, ranges, widths and what is refused when the decoder is made."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from robocache_ros.alignments import alignment, spec_alignments
from robocache_ros.decode import DecodeError, make_decoder
from robocache_ros.errors import RoboCacheError

ARRAY = "std_msgs/msg/Float64MultiArray"
POSE = "geometry_msgs/msg/PoseStamped"


def test_a_double_is_rounded_once_to_nearest_even(stream_of, cdr):
    halfway = [1 + 2.0**-24, 1 + 3 * 2.0**-24, 1 + 2.0**-24 + 2.0**-52]
    data = cdr(ARRAY, {"data": halfway})
    value = make_decoder(stream_of(ARRAY, dim=3)).decode_cdr(data).value
    np.testing.assert_array_equal(value, np.float32([1, 1 + 2.0**-22, 1 + 2.0**-23]))


def test_a_wide_integer_is_rounded_once(stream_of, cdr):
    # By way of float64 the last bits would be lost first, and the tie then go to the even neighbour below.
    kind = "std_msgs/msg/Int64MultiArray"
    number = 2**60 + 2**36 + 1
    value = make_decoder(stream_of(kind, dim=1)).decode_cdr(cdr(kind, {"data": [number]})).value
    assert int(value[0]) == 2**60 + 2**37


LARGEST = float(np.finfo(np.float32).max)
TOO_LARGE = 2.0**128 - 2.0**103  # halfway to what would be the next float32


@pytest.mark.parametrize("dim", [1, 100])
@pytest.mark.parametrize("large", [1e39, TOO_LARGE, -TOO_LARGE, 1e308])
def test_a_double_beyond_float32_is_refused(stream_of, cdr, large, dim):
    with pytest.raises(DecodeError, match="is too large for float32") as error:
        make_decoder(stream_of(ARRAY, dim=dim, align="hold")).decode_cdr(cdr(ARRAY, {"data": [large] * dim}))
    assert error.value.cause == "range"


@pytest.mark.parametrize("dim", [1, 100])
@pytest.mark.parametrize("sign", [1, -1])
def test_the_largest_double_that_rounds_to_float32_is_accepted(stream_of, cdr, sign, dim):
    data = cdr(ARRAY, {"data": [sign * np.nextafter(TOO_LARGE, 0)] * dim})
    assert set(make_decoder(stream_of(ARRAY, dim=dim)).decode_cdr(data).value.tolist()) == {sign * LARGEST}


@settings(max_examples=200)
@given(
    numbers=st.lists(st.floats(-1e300, 1e300) | st.floats(-1e39, 1e39) | st.floats(width=32), min_size=3, max_size=3)
)
def test_few_and_many_values_are_rounded_alike(stream_of, cdr, numbers):
    def decode(values):
        try:
            return make_decoder(stream_of(ARRAY, dim=len(values))).decode_cdr(cdr(ARRAY, {"data": values})).value[:3]
        except DecodeError as error:
            return error.cause

    np.testing.assert_array_equal(decode(numbers), decode(numbers + [0.0] * 97))


def test_a_double_below_float32_becomes_zero(stream_of, cdr):
    value = make_decoder(stream_of(ARRAY, dim=1)).decode_cdr(cdr(ARRAY, {"data": [1e-60]})).value
    assert value.tolist() == [0.0]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("align", spec_alignments())
def test_a_value_that_is_not_finite_is_refused(stream_of, cdr, align, bad):
    dim = max(2, alignment(align).group)
    decoder = make_decoder(stream_of(ARRAY, dim=dim, align=align))
    with pytest.raises(DecodeError, match=rf"data: value {dim - 1} is -?(nan|inf)") as error:
        decoder.decode_cdr(cdr(ARRAY, {"data": [0.0] * (dim - 1) + [bad]}))
    assert error.value.cause == "not_finite"


@pytest.mark.parametrize(("fill", "expected"), [(7, [7, 2, 7]), ([5, 6, -1], [5, 2, -1])])
def test_values_that_are_not_finite_are_replaced_by_the_fill(stream_of, cdr, fill, expected):
    decoder = make_decoder(stream_of(ARRAY, dim=3, align="hold", fill=fill))
    assert decoder.decode_cdr(cdr(ARRAY, {"data": [np.nan, 2.0, -np.inf]})).value.tolist() == expected
    assert decoder.decode_cdr(cdr(ARRAY, {"data": [1.0, 2.0, 3.0]})).value.tolist() == [1, 2, 3]
    assert decoder.filled == 1


def quaternion(stream_of, cdr, length):
    turn = dict(zip("xyzw", (length * np.array([0.48, 0.6, 0, 0.64])).tolist(), strict=True))
    decoder = make_decoder(stream_of(POSE, field="pose.orientation", align="slerp"))
    return decoder.decode_cdr(cdr(POSE, {"pose": {"orientation": turn}})).value


@pytest.mark.parametrize("length", [0.9001, 0.99, 1.0013, 1.0999])
def test_a_quaternion_for_slerp_is_normalised_in_float64_and_rounded_once(stream_of, cdr, length):
    given = (length * np.array([0.48, 0.6, 0, 0.64])).astype(np.float32).astype(np.float64)
    value = quaternion(stream_of, cdr, length)
    np.testing.assert_array_equal(value, (given / np.sqrt((given**2).sum())).astype(np.float32))


@pytest.mark.parametrize("length", [1, 1 + 4e-7, 1 - 4e-7])
def test_a_quaternion_for_slerp_whose_length_is_rounded_is_not_changed(stream_of, cdr, length):
    given = (length * np.array([0.48, 0.6, 0, 0.64])).astype(np.float32)
    np.testing.assert_array_equal(quaternion(stream_of, cdr, length), given)


@pytest.mark.parametrize("length", [0, 0.8999, 1.1001])
def test_a_quaternion_for_slerp_that_is_no_rotation_is_refused(stream_of, cdr, length):
    with pytest.raises(DecodeError, match="slerp needs unit quaternions") as error:
        quaternion(stream_of, cdr, length)
    assert error.value.cause == "not_unit"


def test_a_signalling_nan_raises_no_warning(stream_of, cdr):
    data = cdr(ARRAY, {"data": [1.0]})[:-8] + (0x7FF0000000000001).to_bytes(8, "little")
    assert make_decoder(stream_of(ARRAY, dim=1, align="hold", fill=7)).decode_cdr(data).value.tolist() == [7]


@pytest.mark.parametrize(("count", "cause"), [(6, "dim"), (8, "dim"), (0, "empty")])
def test_an_array_of_another_length_is_refused(stream_of, cdr, count, cause):
    with pytest.raises(DecodeError, match=f"data: {count} values, the stream has 7") as error:
        make_decoder(stream_of(ARRAY, dim=7)).decode_cdr(cdr(ARRAY, {"data": [0.0] * count}))
    assert error.value.cause == cause


def test_an_element_that_is_not_there_is_refused(stream_of, cdr):
    kind = "trajectory_msgs/msg/JointTrajectory"
    decoder = make_decoder(stream_of(kind, field="points[2].positions", dim=1))
    with pytest.raises(DecodeError, match=r"no element \[2\] among 1") as error:
        decoder.decode_cdr(cdr(kind, {"points": [{"positions": [1.0]}]}))
    assert error.value.cause == "too_short"


def test_the_innermost_header_stamps_the_sample(stream_of, cdr):
    kind = "tf2_msgs/msg/TFMessage"
    transforms = [
        {"header": {"stamp": {"sec": sec, "nanosec": 5}, "frame_id": "map"}, "child_frame_id": f"link_{sec}"}
        for sec in (1, 2, 3)
    ]
    sample = make_decoder(stream_of(kind, field="transforms[1].transform.rotation")).decode_cdr(
        cdr(kind, {"transforms": transforms})
    )
    assert sample.stamp_ns == 2_000_000_005


@pytest.mark.parametrize("little_endian", [True, False])
def test_a_stamp_of_a_second_or_more_in_nanoseconds_is_refused(stream_of, cdr, little_endian):
    data = cdr(POSE, {"header": {"stamp": {"sec": 1, "nanosec": 10**9}}}, little_endian)
    with pytest.raises(DecodeError, match="nanosec 1000000000 is not below") as error:
        make_decoder(stream_of(POSE, field="pose.orientation")).decode_cdr(data)
    assert error.value.cause == "bad_stamp"


def test_seconds_before_the_epoch_are_negative(stream_of, cdr):
    data = cdr(POSE, {"header": {"stamp": {"sec": -1, "nanosec": 1}}})
    assert make_decoder(stream_of(POSE, field="pose.orientation")).decode_cdr(data).stamp_ns == -999_999_999


@pytest.mark.parametrize(
    ("kind", "keys", "problem"),
    [
        (
            POSE,
            {"field": "pose.turn", "dim": 4},
            r"field: geometry_msgs/msg/Pose has no field 'turn'; the fields are pos",
        ),
        (POSE, {"field": "pose.position.x.y"}, r"field: float64 has no field 'y'; it has no fields"),
        (POSE, {"field": "pose", "dim": 6}, r"dim: 6, but pose of geometry_msgs/msg/PoseStamped .* have 7"),
        (POSE, {"field": "header", "dim": 2}, r"field: 'header' is part of the header"),
        (POSE, {"field": "header.stamp.sec", "dim": 1}, r"field: 'header.stamp.sec' is part of the header"),
        (POSE, {"field": "pose[0]", "dim": 7}, r"field: \[0\] of geometry_msgs/msg/Pose, which is not an array"),
        ("std_msgs/msg/String", {"field": "data", "dim": 1}, r"field: string is not numeric"),
        ("sensor_msgs/msg/Imu", {"field": "orientation_covariance[9]", "dim": 1}, r"\[9\] of an array of 9; the last"),
        ("geometry_msgs/msg/Twist", {"field": "linear"}, r"stamp: 'header', but geometry_msgs/msg/Twist has no header"),
        ("my_msgs/msg/Thing", {"field": "x"}, r"type: no definition of my_msgs/msg/Thing; give its .msg file with"),
    ],
)
def test_a_stream_that_cannot_work_is_refused_at_once(stream_of, kind, keys, problem):
    with pytest.raises(RoboCacheError, match=rf"^streams\.s\..*{problem}"):
        make_decoder(stream_of(kind, **keys))


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


def test_joints_not_requested_are_named(decoder, joints):
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
