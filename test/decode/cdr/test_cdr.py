"""The CDR reader: encapsulations, strings, padding and bounds, on bytes written by hand."""

from types import SimpleNamespace

import numpy as np
import pytest
from rosbags.typesys import Stores, get_typestore

from robocache_ros.decode import DecodeError, make_decoder
from robocache_ros.decode.cdr import read_message
from robocache_ros.decode.definitions import message_type
from test.decode.conftest import make_stream, serialize

STAMPLESS = {"field": "x", "dim": 1, "stamp": "receive", "align": "hold"}


def decode(definition, payload, head="00010000", **keys):
    decoder = make_decoder(make_stream("my_msgs/msg/Thing", **(STAMPLESS | keys)), {"my_msgs/msg/Thing": definition})
    return decoder.decode_cdr(bytes.fromhex(head + payload)).value.tolist()


ENCAPSULATIONS = {"0002": "PL_CDR ", "0003": "PL_CDR ", "0006": "CDR2 ", "0007": "CDR2 ", "0009": "D_CDR2 "}
ENCAPSULATIONS |= {"000b": "PL_CDR2 ", "0101": "0x0101"}


@pytest.mark.parametrize(("head", "name"), ENCAPSULATIONS.items())
def test_other_encapsulations_are_refused_by_name(head, name):
    with pytest.raises(DecodeError, match=f"encapsulation {name}") as error:
        decode("uint8 x", "05", f"{head}0000")
    assert error.value.cause == "encapsulation"


@pytest.mark.parametrize("data", [b"", b"\0", b"\0\1\0"])
def test_bytes_shorter_than_the_encapsulation_are_refused(data):
    with pytest.raises(DecodeError, match="shorter than the encapsulation") as error:
        make_decoder(make_stream("std_msgs/msg/Float64")).decode_cdr(data)
    assert error.value.cause == "truncated"


LINE = "=" * 80
ONE = "000000000000f03f"  # 1.0
STRUCTS = f"string[2] s\nPair[2] p\nuint8 x\n{LINE}\nMSG: my_msgs/Pair\nuint8 a\nuint16[] b"
MIXED = f"Mixed x\n{LINE}\nMSG: my_msgs/Mixed\nuint8 a\nint32 b\nbool c\nfloat32 d"
LONG = f"Mixed[100] m\nuint8 x\n{LINE}\nMSG: my_msgs/Mixed\nuint8 a\nint32 b"
POSES = f"Pose[3] p\n{LINE}\nMSG: my_msgs/Pose\nstring s\nfloat32 v"


@pytest.mark.parametrize(
    ("definition", "payload", "keys", "expected"),
    [
        ("int16 x", "0102", {}, [0x0201]),
        ("int16 x", "0102", {"head": "00000000"}, [0x0102]),  # big endian
        ("uint8 a\nfloat64 x", f"01 00000000000000 {ONE}", {}, [1]),  # aligned to the payload, not to the message
        *(
            ("string s\nfloat64 x", f"{n:02x}000000" + "61" * (n - 1) + "00" + "00" * (-(4 + n) % 8) + ONE, {}, [1])
            for n in range(1, 10)  # padding after a string follows its length
        ),
        ("float64[] a\nuint8 x", "00000000 07", {}, [7]),  # an empty sequence is not padded for its elements
        ("string s\nuint8 x", "00000000 07", {}, [7]),  # a string of length zero is empty
        (STRUCTS, "02000000 6100 0000 01000000 00 01 0000 01000000 0500 02 00 00000000 09", {}, [9]),
        (MIXED, "07 000000 feffffff ff 000000 0000803f", {"dim": 4}, [7, -2, 1, 1]),
        (LONG, "01000000 02000000" * 100 + "09", {}, [9]),  # walked element by element
        (POSES, "".join(f"01000000 00 000000 0000{v}040" for v in "ace"), {"field": "p[2].v"}, [7]),
    ],
    ids=range(18),
)
def test_a_field_is_read_behind_what_stands_before_it(definition, payload, keys, expected):
    assert decode(definition, payload, **keys) == expected


@pytest.mark.parametrize(
    ("definition", "payload", "dim", "cause"),
    [
        ("string s\nuint8 x", "02000000 6161 07", 1, "bad_string"),  # no closing NUL
        ("string<=2 s\nuint8 x", "04000000 61616100 07", 1, "bad_length"),
        ("uint8[<=2] a\nuint8 x", "03000000 010203 07", 1, "bad_length"),
        ("string[<=1] a\nuint8 x", "02000000 0100000000000000 0100000000000000 07", 1, "bad_length"),
        ("uint8[<=2] x", "03000000 010203", 3, "bad_length"),  # also where it is read
        *((f"{kind}\nuint8 x", "ffffffff 07", 1, "truncated")
          for kind in ("string s", "uint8[] a", "string[] a", "float64[] a")),
    ],
)  # fmt: skip
def test_a_length_beyond_its_bound_or_the_message_is_refused(definition, payload, dim, cause):
    with pytest.raises(DecodeError) as error:
        decode(definition, payload, dim=dim)
    assert error.value.cause == cause


def test_a_header_that_ends_within_its_stamp_is_refused_with_both_positions():
    with pytest.raises(DecodeError, match="content up to byte 12, but it ends at 11"):
        make_decoder(make_stream("sensor_msgs/msg/JointState", names=["a"])).decode_cdr(b"\0\1\0\0" + bytes(7))


def test_a_joint_name_that_is_not_utf8_is_refused():
    kind = "sensor_msgs/msg/JointState"
    data = serialize(kind, {"name": ["abc"], "position": [1.0]}).replace(b"abc", b"\xff\xfe\xfd")
    with pytest.raises(DecodeError, match="not UTF-8") as error:
        make_decoder(make_stream(kind, names=["abc"])).decode_cdr(data)
    assert error.value.cause == "bad_string"


def plain(value):
    """A value of either reader as lists, numbers and dicts."""
    if isinstance(value, SimpleNamespace) or hasattr(value, "__msgtype__"):
        return {name: plain(item) for name, item in vars(value).items() if name[0].islower()}
    if isinstance(value, np.ndarray):
        return value.tolist()
    return [plain(item) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize("order", "<>")
def test_a_message_has_the_values_that_rosbags_reads(case, order):
    data = case.cdr(order)
    expected = get_typestore(Stores.ROS2_KILTED).deserialize_cdr(data, case.type)
    np.testing.assert_equal(plain(read_message(message_type(case.type), data)), plain(expected))


def test_a_message_that_is_cut_is_refused_wherever_it_is_cut(case):
    data = case.cdr()
    message = message_type(case.type)
    for stop in range(0, min(len(data) - 8, 200), 3):  # what is behind the last value may be padding
        with pytest.raises(DecodeError):
            read_message(message, data[:stop])
