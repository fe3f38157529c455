"""TFRecord files and tf.train.Example records, read and written without TensorFlow."""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import IO, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.extras import need
from robocache_ros.formats.read import refusing
from robocache_ros.storage.paths import AnyPath
from robocache_ros.untrusted_files import DatasetFile, open_file

MAX_BYTES = 10  # of a varint of 64 bits


def varint(value: int) -> bytes:
    """Encode a non-negative number."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def read_varint(data: memoryview, at: int) -> tuple[int, int]:
    """Decode the number at an offset; return it and the offset after it. IndexError or ValueError if it is damaged."""
    value = data[at]
    if value < 0x80:
        return value, at + 1
    value &= 0x7F
    for place in range(1, MAX_BYTES):
        byte = data[at + place]
        value |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return value, at + place + 1
    raise ValueError("a number is longer than 10 bytes")


def packed(values: NDArray[np.int64]) -> bytes:
    """Encode (N,) int64 numbers; negative ones take 10 bytes."""
    bits = np.ascontiguousarray(values, np.int64).view(np.uint64)
    lengths = np.ones(len(bits), np.int64)
    for place in range(1, MAX_BYTES):
        lengths += bits >= np.uint64(1 << 7 * place)
    stops = np.cumsum(lengths)
    encoded = np.empty(int(stops[-1]) if len(stops) else 0, np.uint8)
    starts = stops - lengths
    for place in range(int(lengths.max(initial=0))):
        here = lengths > place
        more = (lengths[here] > place + 1).astype(np.uint8) << 7
        encoded[starts[here] + place] = (bits[here] >> np.uint64(7 * place)).astype(np.uint8) & 0x7F | more
    return encoded.tobytes()


def unpacked(data: memoryview) -> NDArray[np.int64]:
    """Decode (N,) int64 numbers. ValueError if they are damaged."""
    encoded = np.frombuffer(data, np.uint8)
    stops = np.flatnonzero(encoded < 0x80) + 1
    if len(encoded) and (not len(stops) or stops[-1] != len(encoded)):
        raise ValueError("a number is cut off")
    if len(stops) == len(encoded):  # the common case: small numbers
        return encoded.astype(np.int64)
    starts = np.concatenate([[0], stops[:-1]])
    lengths = stops - starts
    if lengths.max() > MAX_BYTES:
        raise ValueError("a number is longer than 10 bytes")
    values = np.zeros(len(stops), np.uint64)
    for place in range(int(lengths.max())):
        here = lengths > place
        values[here] |= (encoded[starts[here] + place] & 0x7F).astype(np.uint64) << np.uint64(7 * place)
    return values.view(np.int64)


# Records of the protobuf message tf.train.Example: named lists of bytes, float32 or int64 numbers.
#
#     message Example { Features features = 1; }
#     message Features { map<string, Feature> feature = 1; }
#     message Feature { oneof kind { BytesList bytes_list = 1; FloatList float_list = 2; Int64List int64_list = 3; } }
#
# with `repeated … value = 1` in each list, packed for numbers.


Values: TypeAlias = "list[memoryview] | NDArray[np.float32] | NDArray[np.int64]"
_BYTES, _FLOATS, _INTS = 1, 2, 3
_LENGTH_DELIMITED, _FIXED32, _VARINT = 2, 5, 0  # wire types of protobuf
_FIRST = 1 << 3 | _LENGTH_DELIMITED  # the tag of field 1 with a length: each message above begins its fields with it


@dataclass(frozen=True)
class BytesList:
    """A list of bytes that is read when it is written, one value at a time."""

    values: Sequence[bytes]  # the list; without `sizes`, each value is read twice
    sizes: Sequence[int] | None = None  # number of bytes of each value
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
    """Parse an example. The bytes and floats are views of the record."""
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
            if wire not in (1, _FIXED32):
                raise ValueError(f"wire type {wire}")
            at += 8 if wire == 1 else 4


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


# TFRecord files: records with their length and checksums, plain or in gzip.
#
# A record is its length (uint64, little endian), the checksum of the length, the data and the checksum of the data. A
# checksum is a CRC-32C, rotated and shifted as TensorFlow does it, so that data with checksums can be checksummed
# again.


RECORD_BYTES = (1 << 31) - 1  # limit of a record: protobuf parsers, also TensorFlow's, refuse messages of 2 GiB
LENGTH = struct.Struct("<Q")
CHECKSUM = struct.Struct("<I")
HEAD_BYTES = LENGTH.size + CHECKSUM.size
FRAME_BYTES = HEAD_BYTES + CHECKSUM.size  # of a record, in addition to its data
_READ_BYTES = 1 << 20
GZIP = b"\x1f\x8b"


def write_records(path: AnyPath, records: Iterable[tuple[int, Iterable[bytes]]]) -> int:
    """Write a TFRecord file, given the number of bytes and the chunks of each record; return the bytes of all.

    A record may be larger than the memory: its data are written chunk by chunk.
    """
    extend: Callable[[int, bytes], int] = need("google_crc32c", "export").extend
    total = 0
    with path.open("xb") as file:
        for number, (nbytes, chunks) in enumerate(records):
            length = LENGTH.pack(nbytes)
            file.write(length + masked(extend(0, length)))
            checksum, written = 0, 0
            for chunk in chunks:
                checksum = extend(checksum, chunk)
                written += len(chunk)
                file.write(chunk)
            if written != nbytes:
                raise ValueError(f"{path}: record {number} has {written} bytes, not {nbytes}")
            file.write(masked(checksum))
            total += nbytes
    return total


def read_records(path: DatasetFile, *, limit: int = RECORD_BYTES) -> Iterator[bytes]:
    """Yield the records of a file, plain or compressed with gzip, with their checksums verified.

    Errors:
        RoboCacheError: a record is damaged, cut off or larger than `limit`; the message names the record.
    """
    value: Callable[[bytes], int] = need("google_crc32c", "export").value
    with _opened(path, value) as file:
        for index in count():
            record = _next_record(file, f"{printable(path)}: record {index}", value, limit)
            if record is None:
                return
            yield record


def _next_record(file: IO[bytes], where: str, value: Callable[[bytes], int], limit: int) -> bytes | None:
    """Return the record at the place of a file; None at its end."""
    with refusing(where, "damaged gzip data", errors=(EOFError, zlib.error, gzip.BadGzipFile)):
        if not (head := _read(file, HEAD_BYTES)):
            return None
        if not is_head(head, value):
            raise RoboCacheError(f"{where}: its length is damaged; get the file again")
        (nbytes,) = LENGTH.unpack_from(head)
        if nbytes > limit:
            raise RoboCacheError(f"{where}: {nbytes:,} bytes; at most {limit:,} are read")
        data = _read(file, nbytes)
        checksum = _read(file, CHECKSUM.size)
    if len(data) + len(checksum) != nbytes + CHECKSUM.size:
        raise RoboCacheError(f"{where}: the file ends within it; get the file again")
    if checksum != masked(value(data)):
        raise RoboCacheError(f"{where}: its checksum is wrong; get the file again")
    return data


def _opened(path: DatasetFile, value: Callable[[bytes], int]) -> IO[bytes]:
    with open_file(path) as file:
        head = file.read(HEAD_BYTES)
    compressed = head.startswith(GZIP) and not is_head(head, value)  # a length may begin with these bytes too
    opened: Any = gzip.open(path) if compressed else open_file(path)  # noqa: SIM115 - the caller closes it
    return opened  # type: ignore[no-any-return]


def is_head(head: bytes, value: Callable[[bytes], int]) -> bool:
    """Whether bytes are the length of a record with its checksum, which `value` computes."""
    return len(head) == HEAD_BYTES and head[LENGTH.size :] == masked(value(head[: LENGTH.size]))


def _read(file: IO[bytes], nbytes: int) -> bytes:
    """Read up to `nbytes`, never reserving more memory than the file has data."""
    if nbytes <= _READ_BYTES:
        return file.read(nbytes)
    parts = []
    while nbytes and (part := file.read(min(nbytes, _READ_BYTES))):
        parts.append(part)
        nbytes -= len(part)
    return b"".join(parts)


def masked(checksum: int) -> bytes:
    """Return a checksum as it is stored."""
    return CHECKSUM.pack((((checksum >> 15) | (checksum << 17)) + 0xA282EAD8) & 0xFFFFFFFF)


MAX_RECORDS = 10_000_000  # of a file


class RecordFile:
    """The records of a file, plain or compressed with gzip, with their checksums verified.

    A plain file is read where a record is. One in gzip is decompressed up to the record, so read it in order.
    """

    def __init__(self, path: DatasetFile, *, limit: int = RECORD_BYTES) -> None:
        self.path, self._limit = path, limit
        self._value: Callable[[bytes], int] = need("google_crc32c", "datasets").value
        with refusing(printable(path), "cannot be read", errors=(OSError,)):
            with open_file(path) as file:
                head = file.read(HEAD_BYTES)
            self._starts = self._find() if is_head(head, self._value) or not head.startswith(GZIP) else None
        self._iterator: Iterator[bytes] = iter(())
        self._next = 0

    @property
    def records(self) -> int | None:
        """Number of records; None for gzip. A damaged length ends the file."""
        return None if self._starts is None else len(self._starts)

    def read(self, index: int) -> bytes:
        """Return a record."""
        if self._starts is None:
            return self._read_gzip(index)
        where = f"{printable(self.path)}: record {index}"
        if index >= len(self._starts):
            raise RoboCacheError(f"{where}: the file is damaged or ends before it; get the file again")
        with refusing(printable(self.path), "cannot be read", errors=(OSError,)), open_file(self.path) as file:
            file.seek(self._starts[index])
            return _next_record(file, where, self._value, self._limit) or b""

    def _find(self) -> list[int]:
        """Find where each complete record begins."""
        size, at = self.path.stat().st_size, 0
        found: list[int] = []
        with open_file(self.path) as file:
            while is_head(head := file.read(HEAD_BYTES), self._value):
                (nbytes,) = LENGTH.unpack_from(head)
                start, at = at, at + FRAME_BYTES + nbytes
                if at > size:
                    break
                if len(found) == MAX_RECORDS:
                    raise RoboCacheError(f"{printable(self.path)}: more than {MAX_RECORDS:,} records; split the file")
                found.append(start)
                file.seek(at)
        return found

    def _read_gzip(self, index: int) -> bytes:
        if index < self._next or self._next == 0:
            self._iterator, self._next = read_records(self.path, limit=self._limit), 0
        for record in self._iterator:
            self._next += 1
            if self._next > index:
                return record
        raise RoboCacheError(f"{printable(self.path)}: record {index}: the file ends before it; get the file again")
