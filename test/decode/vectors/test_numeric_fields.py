"""Numeric fields by path: rounding, ranges, widths and what is refused when the decoder is made."""

from contextlib import nullcontext

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from robocache_ros.alignments import alignment, spec_alignments
from robocache_ros.decode import DecodeError, make_decoder
from robocache_ros.errors import RoboCacheError
from test.decode.conftest import decoded, make_stream, serialize
from test.fuzz.messages import header

ARRAY = "std_msgs/msg/Float64MultiArray"
POSE = "geometry_msgs/msg/PoseStamped"


@pytest.mark.parametrize(
    ("kind", "given", "expected"),
    [
        (ARRAY, [1 + 2.0**-24, 1 + 3 * 2.0**-24, 1 + 2.0**-24 + 2.0**-52], [1, 1 + 2.0**-22, 1 + 2.0**-23]),
        (ARRAY, [1e-60], [0.0]),
        # By way of float64 the last bits would be lost first, and the tie then go to the even neighbour below.
        ("std_msgs/msg/Int64MultiArray", [2**60 + 2**36 + 1], [2**60 + 2**37]),
    ],
)
def test_a_number_is_rounded_once_to_nearest_even(kind, given, expected):
    value = decoded(kind, {"data": given}, dim=len(given)).value
    assert [int(x) if x > 2 else x for x in value.tolist()] == expected


LARGEST = float(np.finfo(np.float32).max)
TOO_LARGE = 2.0**128 - 2.0**103  # halfway to what would be the next float32


@pytest.mark.parametrize("dim", [1, 100])
@pytest.mark.parametrize("large", [1e39, TOO_LARGE, -TOO_LARGE, 1e308])
def test_a_double_beyond_float32_is_refused(large, dim):
    with pytest.raises(DecodeError, match="is too large for float32") as error:
        decoded(ARRAY, {"data": [large] * dim}, dim=dim, align="hold")
    assert error.value.cause == "range"


@pytest.mark.parametrize("dim", [1, 100])
@pytest.mark.parametrize("sign", [1, -1])
def test_the_largest_double_that_rounds_to_float32_is_accepted(sign, dim):
    value = decoded(ARRAY, {"data": [sign * np.nextafter(TOO_LARGE, 0)] * dim}, dim=dim).value
    assert set(value.tolist()) == {sign * LARGEST}


@settings(max_examples=200)
@given(
    numbers=st.lists(st.floats(-1e300, 1e300) | st.floats(-1e39, 1e39) | st.floats(width=32), min_size=3, max_size=3)
)
def test_few_and_many_values_are_rounded_alike(few_and_many, numbers):
    def decode(decoder, values):
        try:
            return decoder.decode_cdr(serialize(ARRAY, {"data": values})).value[:3]
        except DecodeError as error:
            return error.cause

    few, many = few_and_many
    np.testing.assert_array_equal(decode(few, numbers), decode(many, numbers + [0.0] * 97))


@pytest.fixture(scope="module")
def few_and_many():
    return [make_decoder(make_stream(ARRAY, dim=dim)) for dim in (3, 100)]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("align", spec_alignments())
def test_a_value_that_is_not_finite_is_refused(align, bad):
    dim = max(2, alignment(align).group)
    with pytest.raises(DecodeError, match=rf"data: value {dim - 1} is -?(nan|inf)") as error:
        decoded(ARRAY, {"data": [0.0] * (dim - 1) + [bad]}, dim=dim, align=align)
    assert error.value.cause == "not_finite"


@pytest.mark.parametrize(("fill", "expected"), [(7, [7, 2, 7]), ([5, 6, -1], [5, 2, -1])])
def test_values_that_are_not_finite_are_replaced_by_the_fill(fill, expected):
    decoder = make_decoder(make_stream(ARRAY, dim=3, align="hold", fill=fill))
    assert decoder.decode_cdr(serialize(ARRAY, {"data": [np.nan, 2.0, -np.inf]})).value.tolist() == expected
    assert decoder.decode_cdr(serialize(ARRAY, {"data": [1.0, 2.0, 3.0]})).value.tolist() == [1, 2, 3]
    assert decoder.filled == 1


def quaternion(length):
    turn = dict(zip("xyzw", length * np.array([0.48, 0.6, 0, 0.64]), strict=True))
    return decoded(POSE, {"pose": {"orientation": turn}}, field="pose.orientation", align="slerp").value


@pytest.mark.parametrize("length", [0.9001, 0.99, 1.0013, 1.0999, 1, 1 + 4e-7, 1 - 4e-7])
def test_a_quaternion_for_slerp_is_normalised_in_float64_unless_its_length_is_rounded(length):
    given = (length * np.array([0.48, 0.6, 0, 0.64])).astype(np.float32)
    wide = given.astype(np.float64)
    expected = given if abs(length - 1) < 1e-6 else (wide / np.sqrt((wide**2).sum())).astype(np.float32)
    np.testing.assert_array_equal(quaternion(length), expected)


@pytest.mark.parametrize("length", [0, 0.8999, 1.1001])
def test_a_quaternion_for_slerp_that_is_no_rotation_is_refused(length):
    with pytest.raises(DecodeError, match="slerp needs unit quaternions") as error:
        quaternion(length)
    assert error.value.cause == "not_unit"


def test_a_signalling_nan_raises_no_warning():
    data = serialize(ARRAY, {"data": [1.0]})[:-8] + (0x7FF0000000000001).to_bytes(8, "little")
    assert make_decoder(make_stream(ARRAY, dim=1, align="hold", fill=7)).decode_cdr(data).value.tolist() == [7]


@pytest.mark.parametrize(("count", "cause"), [(6, "dim"), (8, "dim"), (0, "empty")])
def test_an_array_of_another_length_is_refused(count, cause):
    with pytest.raises(DecodeError, match=f"data: {count} values, the stream has 7") as error:
        decoded(ARRAY, {"data": [0.0] * count}, dim=7)
    assert error.value.cause == cause


def test_an_element_that_is_not_there_is_refused():
    kind = "trajectory_msgs/msg/JointTrajectory"
    with pytest.raises(DecodeError, match=r"no element \[2\] among 1") as error:
        decoded(kind, {"points": [{"positions": [1.0]}]}, field="points[2].positions", dim=1)
    assert error.value.cause == "too_short"


def test_the_innermost_header_stamps_the_sample():
    kind = "tf2_msgs/msg/TFMessage"
    transforms = [{"header": header(sec * 10**9 + 5, "map"), "child_frame_id": f"link_{sec}"} for sec in (1, 2, 3)]
    sample = decoded(kind, {"transforms": transforms}, field="transforms[1].transform.rotation")
    assert sample.stamp_ns == 2_000_000_005


@pytest.mark.parametrize("order", "<>")
def test_a_stamp_of_a_second_or_more_in_nanoseconds_is_refused(order):
    data = serialize(POSE, {"header": {"stamp": {"sec": 1, "nanosec": 10**9}}}, order)
    with pytest.raises(DecodeError, match="nanosec 1000000000 is not below") as error:
        make_decoder(make_stream(POSE, field="pose.orientation")).decode_cdr(data)
    assert error.value.cause == "bad_stamp"


def test_seconds_before_the_epoch_are_negative():
    assert decoded(POSE, {"header": header(-999_999_999)}, field="pose.orientation").stamp_ns == -999_999_999


@pytest.mark.parametrize(
    ("kind", "keys", "problem"),
    [
        (
            POSE,
            {"field": "pose.turn", "dim": 4},
            "field: geometry_msgs/msg/Pose has no field 'turn'; the fields are pos",
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
def test_a_stream_that_cannot_work_is_refused_at_once(kind, keys, problem):
    with pytest.raises(RoboCacheError, match=rf"^streams\.s\..*{problem}"):
        make_decoder(make_stream(kind, **keys))


TYPE = "sensor_msgs/msg/JointState"


@pytest.fixture
def decoder():
    return make_decoder(make_stream(TYPE, names=["a", "b", "c"]))


def joints(names, order="<", **values):
    values = values or {"position": [ord(name) - ord("a") for name in names]}
    return serialize(TYPE, {"name": list(names), **values}, order)


def test_values_follow_the_streams_order_whatever_the_order_and_byte_order_of_a_message(decoder):
    for number, names in enumerate(["abc", "cab", "bxac", "xabcy", "xyzcba", "cba", "cba", "cab"] * 2):
        sample = decoder.decode_cdr(joints(names, "<>"[number % 3 == 0]))
        np.testing.assert_array_equal(sample.value, np.float32([0, 1, 2]))
        assert sample.unmatched == tuple(sorted(set(names) - set("abc")))


@pytest.mark.parametrize(
    ("names", "values", "cause", "message"),
    [
        ("acd", {}, "joint_missing", "names: b missing among a, c, d"),
        ("abcb", {}, "joint_twice", "b appears twice"),
        ("", {}, "joint_missing", "names: a, b, c missing among none"),
        ("abc", {"velocity": [1.0]}, "empty", "position: empty, the publisher does not set it"),
        ("abc", {"position": [1.0, 2.0]}, "dim", "position: 2 values for 3 joint names"),
    ],
)
def test_joints_that_cannot_be_read_are_refused_and_the_next_message_is_not(decoder, names, values, cause, message):
    with pytest.raises(DecodeError, match=message) as error:
        decoder.decode_cdr(joints(names, **values))
    assert error.value.cause == cause
    np.testing.assert_array_equal(decoder.decode_cdr(joints("abc")).value, np.float32([0, 1, 2]))


@pytest.mark.parametrize(
    ("sent", "changes"), [(["abc", "bca", "abc"], 0), (["abc", "abc", "abcx", "xcba", "abc"], 2), (["abc", "ab"], 1)]
)
def test_every_change_of_the_set_of_joints_is_counted(decoder, sent, changes):
    for names in sent:
        with pytest.raises(DecodeError) if names == "ab" else nullcontext():
            decoder.decode_cdr(joints(names))
    assert decoder.changed_sets == changes


@pytest.mark.parametrize("field", ["header.stamp.sec", "name", "nothing"])
def test_a_field_that_is_not_one_value_a_joint_is_refused(field):
    with pytest.raises(RoboCacheError, match=r"^streams\.s\.field: "):
        make_decoder(make_stream(TYPE, names=["a"], field=field))


def test_names_beyond_ascii_are_matched():
    assert decoded(TYPE, {"name": ["x", "größe"], "position": [1.0, 2.0]}, names=["größe"]).value.tolist() == [2]
