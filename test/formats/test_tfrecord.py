"""TFRecord files: their framing, and tf.train.Example."""

from __future__ import annotations

import gzip
import re
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from robocache_ros.errors import RoboCacheError
from robocache_ros.formats.rlds.tfrecord import (
    FRAME_BYTES,
    HEAD_BYTES,
    BytesList,
    Feature,
    encode_example,
    parse_example,
    read_records,
    write_records,
)

RECORDS = [b"first", b"", b"third" * 300_000]
STARTS = [0, 21, 37]  # of the records in a file
EDGES = [0, 9, 14, 20, 21, 32, 33, 36, 37, 48, 49, 1_500_048, 1_500_049, 1_500_052]


@pytest.fixture
def written(tmp_path: Path) -> Path:
    path = tmp_path / "records"
    total = write_records(path, ((len(record), [record[:3], record[3:]]) for record in RECORDS))
    assert total == sum(map(len, RECORDS))
    return path


def test_records_are_read_as_they_were_written_and_cost_16_bytes_more_than_their_data(written: Path) -> None:
    assert list(read_records(written)) == RECORDS
    assert written.stat().st_size == sum(map(len, RECORDS)) + FRAME_BYTES * len(RECORDS)
    written.write_bytes(gzip.compress(written.read_bytes()))  # which its first bytes tell
    assert list(read_records(written)) == RECORDS
    written.write_bytes(b"")
    assert list(read_records(written)) == []


def test_a_length_is_written_as_tensorflow_writes_it_and_data_must_have_it(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="record 1 has 2 bytes, not 3"):
        write_records(tmp_path / "records", [(138818, [bytes(138818)]), (3, [b"ab"])])
    # The first bytes of a file of bridge_dataset of Open X-Embodiment.
    assert (tmp_path / "records").read_bytes()[:12] == bytes.fromhex("421e02000000000071db8513")
    # A length that begins as files in gzip do.
    write_records(tmp_path / "like_gzip", [(0x8B1F, [bytes(0x8B1F)])])
    assert list(read_records(tmp_path / "like_gzip")) == [bytes(0x8B1F)]


@pytest.mark.parametrize("flipped", [False, True], ids=["cut", "flipped"])
@pytest.mark.parametrize("compressed", [False, True], ids=["plain", "gzip"])
def test_damage_anywhere_is_named_with_its_record(written: Path, compressed: bool, flipped: bool) -> None:
    data = written.read_bytes()
    if compressed:
        data = gzip.compress(data)
    places = {*(each % len(data) for each in EDGES), *np.random.default_rng(0).integers(0, len(data), 20).tolist()}
    for at in places | ({*range(20), *range(len(data) - 9, len(data))} if compressed else set()):
        written.write_bytes(data[:at] + (bytes([data[at] ^ 1]) + data[at + 1 :] if flipped else b""))
        found, problem = [], ""
        try:
            found.extend(read_records(written))
        except RoboCacheError as error:
            problem = str(error)
        assert found == RECORDS[: len(found)]
        if not problem:
            # Some bytes in the head of gzip do not matter; a file may end after a record.
            assert len(found) == len(RECORDS) if flipped and compressed else not flipped and at in (0, *STARTS)
            continue
        assert re.search(rf"records: record {len(found)}: .*get the file again", problem)
        if not compressed:
            begin, end = [*STARTS, len(data)][len(found) : len(found) + 2]
            assert begin <= at < end
            in_head = at < begin + HEAD_BYTES
            assert ("its length is damaged" in problem) is in_head
            assert ("its checksum is wrong" in problem) is (flipped and not in_head)


def test_a_record_above_the_limit_is_refused_before_it_is_read(written: Path) -> None:
    with pytest.raises(RoboCacheError, match="record 2: 1,500,000 bytes; at most 10 are read"):
        list(read_records(written, limit=10))


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


def test_features_are_encoded_as_protobuf_does_in_the_order_of_their_names() -> None:
    floats, texts = np.array([[1.0], [-2.0]], np.float32), BytesList([b"xy", b""])
    assert encoded({"a": np.array([1, 300])}) == ENCODED
    assert encoded({"a": floats}) == bytes.fromhex("0a130a110a0161120c120a0a080000803f000000c0")
    assert encoded({"a": texts}) == bytes.fromhex("0a0f0a0d0a016112080a060a0278790a00")
    assert encoded({"b": floats, "a": texts}) == encoded({"a": texts, "b": floats})


def test_numbers_of_every_length_are_read_as_they_were_written() -> None:
    powers = [sign * 2**bits for sign in (1, -1) for bits in range(63)]
    values = [*powers, *(power - 1 for power in powers), -(2**63), 2**63 - 1]
    assert plain(parse_example(encoded({"a": np.array(values)}))["a"]) == values


def test_numbers_that_are_not_packed_are_read() -> None:
    ints = bytes.fromhex("0a100a0e0a016112091a07080108ac020807")
    floats = bytes.fromhex("0a130a110a0161120c120a0d0000803f0d000000c0")
    assert plain(parse_example(ints)["a"]) == [1, 300, 7]
    assert plain(parse_example(floats)["a"]) == [1.0, -2.0]


INTS = st.lists(INT64, max_size=9).map(partial(np.array, dtype=np.int64))
FLOATS = st.lists(st.floats(width=32, allow_nan=False), min_size=1).map(partial(np.array, dtype=np.float32))
TEXTS = st.lists(st.binary(), min_size=1, max_size=3).map(BytesList)


@settings(max_examples=30)
@given(st.dictionaries(st.text(max_size=8), INTS | FLOATS | TEXTS))
def test_features_are_read_as_they_were_written(features: dict[str, Feature]) -> None:
    found = parse_example(encoded(features))
    assert {name: plain(values) for name, values in found.items()} == {
        name: plain(each.values if isinstance(each, BytesList) else each) for name, each in features.items()
    }


SMALL = {"a": np.arange(9), "b": np.ones(4, np.float32), "c": BytesList([b"xy", b"z"])}


@given(st.binary(max_size=60) | st.tuples(st.integers(1, 100), st.integers(0, 255)))
def test_any_bytes_and_a_damaged_example_are_an_example_or_refused(given: bytes | tuple[int, int]) -> None:
    record = bytearray(given if isinstance(given, bytes) else encoded(SMALL))
    if isinstance(given, tuple):
        record[given[0] % len(record)] = given[1]
    with suppress(RoboCacheError):
        parse_example(bytes(record))


@pytest.mark.parametrize(
    ("example", "problem"),
    [
        (ENCODED[:-1], "a field is cut off"),
        (ENCODED[:-1] + b"\x82", "a number is cut off"),
        (ENCODED[:-4] + b"\x04" + ENCODED[-3:], "numbers are cut off"),
        (ENCODED[:-5] + b"\x12" + ENCODED[-4:], "a list of numbers has the tag 18"),
        (bytes.fromhex("0a0f0a0d0a016112080a06120278790a00"), "a list of bytes has the tag 18"),
        (bytes.fromhex("0a0f0a0d0a016112080a060a0778790a00"), "bytes are cut off"),
        (bytes.fromhex("0a160a140a016112" + "0f1a0d0a0b" + "80" * 10 + "01"), "a number is longer than 10 bytes"),
    ],
)
def test_what_is_not_an_example_is_refused(example: bytes, problem: str) -> None:
    with pytest.raises(RoboCacheError, match=rf"record: not a tf.train.Example \({problem}\); check how"):
        parse_example(example)


def test_a_real_dataset_is_written_again_with_the_same_values(real: Path) -> None:
    (shard,) = real.glob("rlds_bridge/*/*/*.tfrecord*")
    records = list(read_records(shard))
    assert len(records) == 25
    for record in records:
        features = parse_example(record)
        again = encoded({name: BytesList(v) if isinstance(v, list) else v for name, v in features.items()})
        assert len(again) == len(record)
        assert {n: plain(v) for n, v in parse_example(again).items()} == {n: plain(v) for n, v in features.items()}
