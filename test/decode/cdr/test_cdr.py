"""The CDR reader: encapsulations, strings, padding and bounds, on bytes written by hand."""

from types import SimpleNamespace

import numpy as np
import pytest

from robocache_ros.decode import DecodeError, make_decoder
from robocache_ros.decode.cdr import read_message
from robocache_ros.decode.definitions import message_type
from test.decode.conftest import STORE

STAMPLESS = {"field": "x", "dim": 1, "stamp": "receive", "align": "hold"}


def decode(stream_of, definition, payload, head="00010000", **keys):
    stream = stream_of("my_msgs/msg/Thing", **(STAMPLESS | keys))
    return (
        make_decoder(stream, {"my_msgs/msg/Thing": definition}).decode_cdr(bytes.fromhex(head + payload)).value.tolist()
    )


@pytest.mark.parametrize(
    ("head", "name"),
    [
        ("00020000", "PL_CDR "),
        ("00030000", "PL_CDR "),
        ("00060000", "CDR2 "),
        ("00070000", "CDR2 "),
        ("00090000", "D_CDR2 "),
        ("000b0000", "PL_CDR2 "),
        ("01010000", "0x0101"),
    ],
)
def test_other_encapsulations_are_refused_by_name(stream_of, head, name):
    with pytest.raises(DecodeError, match=f"encapsulation {name}") as error:
        decode(stream_of, "uint8 x", "05", head)
    assert error.value.cause == "encapsulation"


@pytest.mark.parametrize("data", [b"", b"\0", b"\0\1\0"])
def test_bytes_shorter_than_the_encapsulation_are_refused(stream_of, data):
    with pytest.raises(DecodeError, match="shorter than the encapsulation") as error:
        make_decoder(stream_of("std_msgs/msg/Float64")).decode_cdr(data)
    assert error.value.cause == "truncated"


def test_byte_order_follows_the_encapsulation(stream_of):
    assert decode(stream_of, "int16 x", "0102", "00010000") == [0x0201]
    assert decode(stream_of, "int16 x", "0102", "00000000") == [0x0102]


def test_doubles_are_aligned_to_the_payload_and_not_to_the_message(stream_of):
    assert decode(stream_of, "uint8 a\nfloat64 x", "01 00000000000000 000000000000f03f") == [1.0]


@pytest.mark.parametrize("length", range(1, 10))
def test_padding_after_a_string_follows_its_length(stream_of, length):
    text = f"{length:02x}000000" + "61" * (length - 1) + "00"
    padding = "00" * (-(4 + length) % 8)
    assert decode(stream_of, "string s\nfloat64 x", text + padding + "000000000000f03f") == [1.0]


def test_an_empty_sequence_is_not_padded_for_its_elements(stream_of):
    assert decode(stream_of, "float64[] a\nuint8 x", "00000000 07") == [7]


def test_a_string_of_length_zero_is_empty(stream_of):
    assert decode(stream_of, "string s\nuint8 x", "00000000 07") == [7]


def test_a_string_without_its_closing_nul_is_refused(stream_of):
    with pytest.raises(DecodeError, match="has no closing NUL") as error:
        decode(stream_of, "string s\nuint8 x", "02000000 6161 07")
    assert error.value.cause == "bad_string"


def test_a_joint_name_that_is_not_utf8_is_refused(stream_of, cdr):
    kind = "sensor_msgs/msg/JointState"
    data = cdr(kind, {"name": ["abc"], "position": [1.0]}).replace(b"abc", b"\xff\xfe\xfd")
    with pytest.raises(DecodeError, match="not UTF-8") as error:
        make_decoder(stream_of(kind, names=["abc"])).decode_cdr(data)
    assert error.value.cause == "bad_string"


@pytest.mark.parametrize(
    ("definition", "payload"),
    [
        ("string<=2 s\nuint8 x", "04000000 61616100 07"),
        ("uint8[<=2] a\nuint8 x", "03000000 010203 07"),
        ("string[<=1] a\nuint8 x", "02000000 0100000000000000 0100000000000000 07"),
    ],
)
def test_more_than_a_bound_allows_is_refused(stream_of, definition, payload):
    with pytest.raises(DecodeError) as error:
        decode(stream_of, definition, payload)
    assert error.value.cause == "bad_length"


def test_a_bounded_sequence_longer_than_its_bound_is_refused_where_it_is_read(stream_of):
    with pytest.raises(DecodeError) as error:
        decode(stream_of, "uint8[<=2] x", "03000000 010203", dim=3)
    assert error.value.cause == "bad_length"


def test_a_length_beyond_the_message_is_refused(stream_of):
    for definition in ("string s\nuint8 x", "uint8[] a\nuint8 x", "string[] a\nuint8 x", "float64[] a\nuint8 x"):
        with pytest.raises(DecodeError) as error:
            decode(stream_of, definition, "ffffffff 07")
        assert error.value.cause == "truncated"


def test_arrays_of_strings_and_of_mixed_structs_are_walked(stream_of):
    definition = "string[2] s\nPair[2] p\nuint8 x\n" + "=" * 80 + "\nMSG: my_msgs/Pair\nuint8 a\nuint16[] b"
    texts = "02000000 6100 0000 01000000 00 "
    pairs = "01 0000 01000000 0500 02 00 00000000 "
    assert decode(stream_of, definition, texts + pairs + "09") == [9]


def test_numbers_of_several_kinds_become_one_vector(stream_of):
    definition = "Mixed x\n" + "=" * 80 + "\nMSG: my_msgs/Mixed\nuint8 a\nint32 b\nbool c\nfloat32 d"
    payload = "07 000000 feffffff ff 000000 0000803f"
    assert decode(stream_of, definition, payload, dim=4) == [7.0, -2.0, 1.0, 1.0]


def test_long_arrays_of_mixed_structs_are_walked_element_by_element(stream_of):
    definition = "Mixed[100] m\nuint8 x\n" + "=" * 80 + "\nMSG: my_msgs/Mixed\nuint8 a\nint32 b"
    assert decode(stream_of, definition, "01000000 02000000" * 100 + "09") == [9]


def test_an_element_of_a_fixed_array_can_be_named(stream_of):
    definition = "Pose[3] p\n" + "=" * 80 + "\nMSG: my_msgs/Pose\nstring s\nfloat32 v"
    poses = "".join(f"01000000 00 000000 {np.float32(i).tobytes().hex()}" for i in (5, 6, 7))
    assert decode(stream_of, definition, poses, field="p[2].v") == [7.0]


def plain(value):
    """A value of either reader as lists, numbers and dicts."""
    if isinstance(value, SimpleNamespace) or hasattr(value, "__msgtype__"):
        return {name: plain(item) for name, item in vars(value).items() if name[0].islower()}
    if isinstance(value, np.ndarray):
        return value.tolist()
    return [plain(item) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize("little_endian", [True, False])
def test_a_message_has_the_values_that_rosbags_reads(case, little_endian):
    data = case.cdr(little_endian)
    if case.type not in STORE.fielddefs:
        pytest.skip("a type of its own")
    found = plain(read_message(message_type(case.type), data))
    expected = plain(STORE.deserialize_cdr(data, case.type))
    np.testing.assert_equal(found, expected)


def test_a_message_that_is_cut_is_refused_wherever_it_is_cut(case):
    data = case.cdr()
    message = message_type(case.type)
    for stop in range(0, min(len(data) - 8, 200), 3):  # what is behind the last value may be padding
        with pytest.raises(DecodeError):
            read_message(message, data[:stop])
