"""TFRecord files: records with their length and checksums, plain or in gzip.

A record is its length (uint64, little endian), the checksum of the length, the data and the checksum of the data. A
checksum is a CRC-32C, rotated and shifted as TensorFlow does it, so that data with checksums can be checksummed
again.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any

from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.extras import need
from robocache_ros.untrusted_files import DatasetFile, open_file

RECORD_BYTES = (1 << 31) - 1  # limit of a record: protobuf parsers, also TensorFlow's, refuse messages of 2 GiB
LENGTH = struct.Struct("<Q")
CHECKSUM = struct.Struct("<I")
HEAD_BYTES = LENGTH.size + CHECKSUM.size
FRAME_BYTES = HEAD_BYTES + CHECKSUM.size  # of a record, in addition to its data
_READ_BYTES = 1 << 20
GZIP = b"\x1f\x8b"


class RecordWriter:
    """Writes a TFRecord file. A record may be larger than the memory: its data are written chunk by chunk."""

    def __init__(self, path: Path) -> None:
        self._extend: Callable[[int, bytes], int] = need("google_crc32c", "export").extend
        self._file = path.open("xb")
        self.path = path
        self.records = 0

    def write(self, nbytes: int, chunks: Iterable[bytes]) -> None:
        """Write the next record: `chunks` of `nbytes` in all."""
        length = LENGTH.pack(nbytes)
        self._file.write(length + masked(self._extend(0, length)))
        checksum, written = 0, 0
        for chunk in chunks:
            checksum = self._extend(checksum, chunk)
            written += len(chunk)
            self._file.write(chunk)
        if written != nbytes:
            raise ValueError(f"{self.path}: record {self.records} has {written} bytes, not {nbytes}")
        self._file.write(masked(checksum))
        self.records += 1

    @property
    def nbytes(self) -> int:
        """Size of the file."""
        return self._file.tell()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_records(path: DatasetFile, *, limit: int = RECORD_BYTES) -> Iterator[bytes]:
    """Yield the records of a file, plain or compressed with gzip, with their checksums verified.

    Args:
        path: the file.
        limit: maximum size of a record in bytes.

    Errors:
        RoboCacheError: a record is damaged, cut off or larger than `limit`; the message names the record.
    """
    value: Callable[[bytes], int] = need("google_crc32c", "export").value
    with _opened(path, value) as file:
        for index in range(2**63):
            where = f"{printable(path)}: record {index}"
            try:
                head = _read(file, HEAD_BYTES)
                if not head:
                    return
                if not is_head(head, value):
                    raise RoboCacheError(f"{where}: its length is damaged; get the file again")
                (nbytes,) = LENGTH.unpack_from(head)
                if nbytes > limit:
                    raise RoboCacheError(f"{where}: {nbytes:,} bytes; at most {limit:,} are read")
                data = _read(file, nbytes)
                checksum = _read(file, CHECKSUM.size)
            except (EOFError, zlib.error, gzip.BadGzipFile) as error:
                raise RoboCacheError(f"{where}: damaged gzip data ({error}); get the file again") from None
            if len(data) + len(checksum) != nbytes + CHECKSUM.size:
                raise RoboCacheError(f"{where}: the file ends within it; get the file again")
            if checksum != masked(value(data)):
                raise RoboCacheError(f"{where}: its checksum is wrong; get the file again")
            yield data


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
