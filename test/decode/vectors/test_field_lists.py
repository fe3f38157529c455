"""Several fields as one stream, and an offset that is subtracted in float64."""

import struct

import numpy as np
import pytest

from robocache_ros.decode import make_decoder
from robocache_ros.errors import RoboCacheError
from test.decode.conftest import make_stream

KIND = "my_msgs/msg/Rig"
TEXT = "std_msgs/Header header\nfloat64 a\nmy_msgs/Part b\nfloat32[4] d\nmy_msgs/Part[] parts\nint64 count\n"
TEXT += "===\nMSG: my_msgs/Part\nfloat32 c\ngeometry_msgs/Vector3 position\n"
DEFINITIONS = {KIND: TEXT}


def rig(a=1.5, count=7, parts=3):
    data = b"\0\1\0\0" + struct.pack("<iII4x", 5, 6, 1) + struct.pack("<d", a)
    data += struct.pack("<f4x3d", 2.5, 10, 20, 30) + struct.pack("<4f", 0, 1, 2, 3) + struct.pack("<I", parts)
    for index in range(parts):
        data += struct.pack("<f", 100 + index) + bytes(-len(data) % 8) + struct.pack("<3d", index, index, index)
    return data + bytes(-(len(data) - 4) % 8) + struct.pack("<q", count)


def decoder(**keys):
    return make_decoder(make_stream(KIND, **keys), DEFINITIONS)


def values(data, **keys):
    return decoder(**keys).decode_cdr(data).value.tolist()


@pytest.mark.parametrize(
    ("keys", "labels", "expected"),
    [
        ({"field": ["d[3]", "a", "b.c", "d[1]"]}, ("d[3]", "a", "b.c", "d[1]"), [3, 1.5, 2.5, 1]),
        ({"field": ["a", "b.position"]}, ("a", "b.position.x", "b.position.y", "b.position.z"), [1.5, 10, 20, 30]),
        ({"field": ["d", "a"], "dim": 5}, None, [0, 1, 2, 3, 1.5]),
        ({"field": ["parts[2].c", "parts[0].c"]}, None, [102, 100]),
    ],
)
def test_several_fields_become_one_vector_in_the_order_of_the_list(keys, labels, expected):
    stream = make_stream(KIND, **keys)
    assert labels is None or stream.components == labels
    assert stream.dim == len(expected)
    assert values(rig(), **keys) == expected


def test_a_list_of_messages_that_is_too_short_is_refused():
    with pytest.raises(RoboCacheError, match=r"no element \[2\] among 2"):
        values(rig(parts=2), field=["parts[2].c", "parts[0].c"])


def test_numbers_of_different_types_are_each_rounded_once():
    number = 2**60 + 2**36 + 1  # by way of float64 the tie would go to the even neighbour below
    assert values(rig(count=number), field=["count", "a"]) == [2**60 + 2**37, 1.5]


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ({"field": ["a", "a"]}, "is in the list twice"),
        ({"field": ["b.position", "b.position.x"]}, "'b.position' contains another field of the list"),
        ({"field": ["a", "d"]}, "dim: 2, but a, d of my_msgs/msg/Rig .2 fields. have 5 values"),
        ({"field": ["a", "header.stamp.sec"]}, "is part of the header"),
        ({"field": ["a", "nothing"]}, "has no field 'nothing'"),
        ({"field": ["a", "b.c"], "offset": [1]}, "offset: 1 values, but the stream has 2; give one for each"),
        ({"field": "b", "dim": 4, "offset": [1, 1, 1, 1]}, "offset: needs numbers of one type"),
    ],
)
def test_lists_that_cannot_be_read_are_refused(keys, why):
    with pytest.raises(RoboCacheError, match=why):
        decoder(**keys)


def test_an_offset_is_subtracted_before_the_value_is_rounded():
    north = 47.397712345
    assert values(rig(a=north), field="a", dim=1)[0] == np.float32(north)
    (found,) = values(rig(a=north), field="a", dim=1, offset=[47.3977])
    assert found == np.float32(north - 47.3977)
    assert abs(found + 47.3977 - north) < 1e-12


def test_messages_that_are_decoded_together_have_the_offset_too():
    made = decoder(field="a", dim=1, offset=[47.3977])
    messages = [rig(a=47.3977 + k * 1e-7) for k in range(20)]
    first, *expected = [made.decode_cdr(message).value for message in messages]
    np.testing.assert_array_equal(made.decode_alike(messages[0], messages[1:]).values, expected, strict=True)
    assert first[0] == 0


@pytest.mark.parametrize("field", ["latitude", "longitude", ["latitude", "longitude", "altitude"]])
def test_a_latitude_without_an_offset_is_refused(field):
    dim = {"dim": 1} if isinstance(field, str) else {}
    with pytest.raises(RoboCacheError, match=r"offset: missing; float32 rounds l.*itude to about a metre"):
        make_stream("sensor_msgs/msg/NavSatFix", field=field, **dim)
