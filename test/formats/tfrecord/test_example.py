from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from robocache_ros.errors import RoboCacheError
from robocache_ros.formats.rlds.tfrecord import (
    BytesList,
    Feature,
    encode_example,
    packed,
    parse_example,
    read_records,
    unpacked,
)

INT64 = st.integers(-(2**63), 2**63 - 1)
# features { feature { key: "a" value { int64_list { value: 1 value: 300 } } } }
ENCODED = bytes.fromhex("0a0e0a0c0a0161" + "12071a050a0301ac02")


def encoded(features: dict[str, Feature]) -> bytes:
    nbytes, chunks = encode_example(features)
    record = b"".join(chunks)
    assert len(record) == nbytes
    return record


def plain(values: Any) -> list[Any]:
    return [bytes(value) for value in values] if isinstance(values, list) else values.tolist()


def test_numbers_are_encoded_as_protobuf_does() -> None:
    assert encoded({"a": np.array([1, 300])}) == ENCODED


def test_floats_are_encoded_as_protobuf_does() -> None:
    record = encoded({"a": np.array([[1.0], [-2.0]], np.float32)})
    assert record == bytes.fromhex("0a130a110a0161120c120a0a080000803f000000c0")


def test_bytes_are_encoded_as_protobuf_does() -> None:
    assert encoded({"a": BytesList([b"xy", b""])}) == bytes.fromhex("0a0f0a0d0a016112080a060a0278790a00")


def test_features_are_in_the_order_of_their_names() -> None:
    one, other = np.array([1]), BytesList([b"x"])
    assert encoded({"b": one, "a": other}) == encoded({"a": other, "b": one})


def test_numbers_that_are_not_packed_are_read() -> None:
    ints = bytes.fromhex("0a100a0e0a016112091a07080108ac020807")
    floats = bytes.fromhex("0a130a110a0161120c120a0d0000803f0d000000c0")
    assert plain(parse_example(ints)["a"]) == [1, 300, 7]
    assert plain(parse_example(floats)["a"]) == [1.0, -2.0]


@given(st.lists(INT64, max_size=40))
def test_every_int64_is_read_as_it_was_written(values: list[int]) -> None:
    assert unpacked(memoryview(packed(np.array(values, np.int64)))).tolist() == values


@settings(max_examples=30)
@given(
    st.dictionaries(
        st.text(max_size=8), st.lists(INT64, max_size=9) | st.lists(st.floats(width=32, allow_nan=False), min_size=1)
    )
)
def test_features_are_read_as_they_were_written(features: dict[str, list[Any]]) -> None:
    arrays: dict[str, Feature] = {
        name: np.array(v, np.float32 if v and isinstance(v[0], float) else np.int64) for name, v in features.items()
    }
    assert {name: plain(v) for name, v in parse_example(encoded(arrays)).items()} == {
        name: plain(v) for name, v in arrays.items()
    }


@given(st.binary(max_size=60))
def test_any_bytes_are_an_example_or_refused(record: bytes) -> None:
    with suppress(RoboCacheError):
        parse_example(record)


@given(st.integers(1, 100), st.integers(0, 255))
def test_a_damaged_example_is_an_example_or_refused(at: int, byte: int) -> None:
    record = bytearray(encoded({"a": np.arange(9), "b": np.ones(4, np.float32), "c": BytesList([b"xy", b"z"])}))
    record[at % len(record)] = byte
    with suppress(RoboCacheError):
        parse_example(bytes(record))


def test_what_is_not_an_example_is_refused() -> None:
    with pytest.raises(RoboCacheError, match=r"record: not a tf.train.Example \(a field is cut off\); check how"):
        parse_example(ENCODED[:-1])


def test_a_real_dataset_is_written_again_with_the_same_values() -> None:
    folder = os.environ.get("ROBOCACHE_RECORDINGS")
    if not folder:
        pytest.skip("ROBOCACHE_RECORDINGS is not set")
    (shard,) = Path(folder).glob("rlds_bridge/*/*/*.tfrecord*")
    records = list(read_records(shard))
    assert len(records) == 25
    for record in records:
        features = parse_example(record)
        written: dict[str, Feature] = {
            name: BytesList([bytes(value) for value in values]) if isinstance(values, list) else values
            for name, values in features.items()
        }
        again = encoded(written)
        assert len(again) == len(record)
        assert {n: plain(v) for n, v in parse_example(again).items()} == {n: plain(v) for n, v in features.items()}
