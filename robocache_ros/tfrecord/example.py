"""Records of the protobuf message tf.train.Example: named lists of bytes, float32 or int64 numbers.

    message Example { Features features = 1; }
    message Features { map<string, Feature> feature = 1; }
    message Feature { oneof kind { BytesList bytes_list = 1; FloatList float_list = 2; Int64List int64_list = 3; } }

with `repeated … value = 1` in each list, packed for numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from robocache_ros.errors import RoboCacheError
from robocache_ros.tfrecord.varints import packed, read_varint, unpacked, varint

Values: TypeAlias = "list[memoryview] | NDArray[np.float32] | NDArray[np.int64]"
_BYTES, _FLOATS, _INTS = 1, 2, 3
_LENGTH_DELIMITED, _FIXED32, _VARINT = 2, 5, 0  # wire types of protobuf
_FIRST = 1 << 3 | _LENGTH_DELIMITED  # the tag of field 1 with a length: each message above begins its fields with it


@dataclass(frozen=True)
class BytesList:
    """A list of bytes that is read when it is written, one value at a time.

    Args:
        values: the list; without `sizes`, each value is read twice.
        sizes: number of bytes of each value.
    """

    values: Sequence[bytes]
    sizes: Sequence[int] | None = None
    nbytes: int = field(init=False)  # of the encoded list

    def __post_init__(self) -> None:
        sizes = self.sizes or (len(self.values[index]) for index in range(len(self.values)))
        object.__setattr__(self, "nbytes", sum(1 + len(varint(size)) + size for size in sizes))

    def chunks(self) -> Iterator[bytes]:
        """Yield the encoded list."""
        for index in range(len(self.values)):
            value = self.values[index]
            yield _prefixed(_BYTES, len(value))
            yield value


Feature: TypeAlias = "BytesList | NDArray[np.float32] | NDArray[np.int64]"


def encode_example(features: Mapping[str, Feature]) -> tuple[int, Iterator[bytes]]:
    """Encode an example; its features are in the order of their names.

    Args:
        features: bytes as a `BytesList`, numbers as arrays of any shape: float32 as floats, others as int64.

    Returns:
        The number of bytes of the record, and its parts. A number is in memory once, bytes one value at a time.
    """
    entries = []
    for name in sorted(features):
        kind, nbytes, chunks = _list_of(features[name])
        list_head = _prefixed(kind, nbytes)
        key = name.encode()
        head = _prefixed(1, len(key)) + key + _prefixed(2, len(list_head) + nbytes) + list_head
        entries.append((_prefixed(1, len(head) + nbytes) + head, nbytes, chunks))
    total = sum(len(head) + nbytes for head, nbytes, _ in entries)
    first = _prefixed(1, total)

    def parts() -> Iterator[bytes]:
        yield first
        for head, _, chunks in entries:
            yield head
            yield from chunks

    return len(first) + total, parts()


def parse_example(record: bytes) -> dict[str, Values]:
    """Parse an example. The bytes and floats are views of the record.

    Errors:
        RoboCacheError: the record is not a tf.train.Example.
    """
    try:
        features: dict[str, Values] = {}
        for _, message in _fields(memoryview(record), {1}):
            for _, entry in _fields(message, {1}):
                parts = dict(_fields(entry, {1, 2}))
                features[bytes(parts.get(1, b"")).decode()] = _values(parts.get(2, memoryview(b"")))
        return features
    except (IndexError, ValueError) as error:
        raise RoboCacheError(f"record: not a tf.train.Example ({error}); check how the file was written") from None


def _list_of(feature: Feature) -> tuple[int, int, Any]:
    """Return the kind of a list, its size in bytes, and its chunks."""
    if isinstance(feature, BytesList):
        return _BYTES, feature.nbytes, feature.chunks()
    if feature.dtype == np.float32:
        data, kind = np.ascontiguousarray(feature, "<f4").tobytes(), _FLOATS
    else:
        data, kind = packed(feature.reshape(-1).astype(np.int64)), _INTS
    head = _prefixed(1, len(data))
    return kind, len(head) + len(data), (head, data)


def _prefixed(number: int, nbytes: int) -> bytes:
    return bytes([number << 3 | _LENGTH_DELIMITED]) + varint(nbytes)


def _fields(data: memoryview, numbers: set[int]) -> Iterator[tuple[int, memoryview]]:
    """Yield the fields of a message that have a length; others of protobuf are skipped if they are not in `numbers`."""
    at, end = 0, len(data)
    while at < end:
        tag, at = data[at], at + 1
        if tag > 0x7F:
            tag, at = read_varint(data, at - 1)
        number, wire = tag >> 3, tag & 7
        if wire == _LENGTH_DELIMITED:
            nbytes, at = data[at], at + 1
            if nbytes > 0x7F:
                nbytes, at = read_varint(data, at - 1)
            if nbytes > end - at:
                raise ValueError("a field is cut off")
            if number in numbers:
                yield number, data[at : at + nbytes]
            at += nbytes
        elif number in numbers:
            raise ValueError(f"field {number} has wire type {wire}")
        elif wire == _VARINT:
            _, at = read_varint(data, at)
        else:
            at += {1: 8, _FIXED32: 4}[wire] if wire in (1, _FIXED32) else _unknown(wire)


def _unknown(wire: int) -> int:
    raise ValueError(f"wire type {wire}")


def _values(feature: memoryview) -> Values:
    """Parse the list of a feature; an empty feature is an empty list of bytes."""
    for number, values in _fields(feature, {_BYTES, _FLOATS, _INTS}):
        if number == _BYTES:
            return _strings(values)
        return _numbers(values, number)
    return []


def _strings(data: memoryview) -> list[memoryview]:
    found = []
    at, end = 0, len(data)
    while at < end:
        if data[at] != _FIRST:
            raise ValueError(f"a list of bytes has the tag {data[at]}")
        nbytes, at = data[at + 1], at + 2
        if nbytes > 0x7F:
            nbytes, at = read_varint(data, at - 1)
        stop = at + nbytes
        if stop > end:
            raise ValueError("bytes are cut off")
        found.append(data[at:stop])
        at = stop
    return found


def _numbers(data: memoryview, kind: int) -> NDArray[Any]:
    """Parse a list of numbers, packed as writers of today do it, or one by one as proto2 does."""
    parts: list[NDArray[Any]] = []
    at, end = 0, len(data)
    while at < end:
        tag = data[at]
        if tag == _FIRST:
            nbytes, at = read_varint(data, at + 1)
            if nbytes > end - at:
                raise ValueError("numbers are cut off")
            part = data[at : at + nbytes]
        elif kind == _FLOATS and tag == 1 << 3 | _FIXED32:
            part, at, nbytes = data[at + 1 : at + 5], at + 1, 4
        elif kind == _INTS and tag == 1 << 3 | _VARINT:
            _, stop = read_varint(data, at + 1)
            part, nbytes, at = data[at + 1 : stop], stop - at - 1, at + 1
        else:
            raise ValueError(f"a list of numbers has the tag {tag}")
        parts.append(np.frombuffer(part, "<f4") if kind == _FLOATS else unpacked(part))
        at += nbytes
    if len(parts) == 1:
        return parts[0]
    return np.concatenate(parts) if parts else np.empty(0, np.float32 if kind == _FLOATS else np.int64)
