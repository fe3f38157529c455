"""The records of a TFRecord file in any order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.extras import need
from robocache_ros.tfrecord.framing import CHECKSUM, HEAD_BYTES, LENGTH, RECORD_BYTES, is_head, masked, read_records
from robocache_ros.untrusted_files import DatasetFile, open_file

MAX_RECORDS = 10_000_000  # of a file


class RecordFile:
    """The records of a file, plain or compressed with gzip, with their checksums verified.

    A plain file is read where a record is. One in gzip is decompressed up to the record, so read it in order.

    Args:
        path: the file.
        limit: maximum size of a record in bytes.

    Errors:
        RoboCacheError: the file is missing; a record is damaged, cut off or larger than `limit`. The message names it.
    """

    def __init__(self, path: DatasetFile, *, limit: int = RECORD_BYTES) -> None:
        self.path, self._limit = path, limit
        self._value: Callable[[bytes], int] = need("google_crc32c", "datasets").value
        try:
            with open_file(path) as file:
                head = file.read(HEAD_BYTES)
        except OSError as error:
            raise _unreadable(path, error) from None
        self._starts = self._find() if is_head(head, self._value) or not head.startswith(b"\x1f\x8b") else None
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
        start, nbytes = self._starts[index]
        if nbytes > self._limit:
            raise RoboCacheError(f"{where}: {nbytes:,} bytes; at most {self._limit:,} are read")
        try:
            with open_file(self.path) as file:
                file.seek(start)
                data = file.read(nbytes)
                checksum = file.read(CHECKSUM.size)
        except OSError as error:
            raise _unreadable(self.path, error) from None
        if len(data) != nbytes or checksum != masked(self._value(data)):
            raise RoboCacheError(f"{where}: its checksum is wrong; get the file again")
        return data

    def _find(self) -> list[tuple[int, int]]:
        """Find the offset and the size of the data of each complete record."""
        size, at = self.path.stat().st_size, 0
        found: list[tuple[int, int]] = []
        with open_file(self.path) as file:
            while is_head(head := file.read(HEAD_BYTES), self._value):
                (nbytes,) = LENGTH.unpack_from(head)
                start, at = at + HEAD_BYTES, at + HEAD_BYTES + nbytes + CHECKSUM.size
                if at > size:
                    break
                if len(found) == MAX_RECORDS:
                    raise RoboCacheError(f"{printable(self.path)}: more than {MAX_RECORDS:,} records; split the file")
                found.append((start, nbytes))
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


def _unreadable(path: Path, error: OSError) -> RoboCacheError:
    reason = error.strerror or type(error).__name__
    return RoboCacheError(f"{printable(path)}: cannot be read ({reason}); get the file")
