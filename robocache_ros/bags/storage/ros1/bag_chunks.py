"""The chunks of a ROS 1 bag: records, messages, and the index after each chunk."""

from __future__ import annotations

import struct
from array import array
from collections import Counter
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from robocache_ros.bags.storage.codecs import MAX_BYTES, decompress
from robocache_ros.bags.storage.ros1 import bag_records as ros1
from robocache_ros.errors import RoboCacheError
from robocache_ros.remote.held_files import StoredFile
from robocache_ros.units import NS_PER_S

CODECS = {"none": "", "lz4": "lz4", "bz2": "bz2"}
ENTRY = np.dtype([("sec", "<u4"), ("nanosec", "<u4"), ("at", "<u4")])


MAX_MESSAGES = 250_000  # per chunk; a chunk of the usual size of 768 KB has at most 16,000
MAX_DATA = 64 << 20  # bytes of a record other than a chunk

Int64 = NDArray[np.int64]
KEY, TIME, PLACE, DATA, STOP = range(5)  # connection, log time in ns, record, start and end of data


@dataclass
class Chunk:
    """A chunk: position of its records, and the messages listed in the index after it."""

    start: int
    stop: int
    codec: str
    size: int  # decompressed size of the records
    index: list[Int64] = field(default_factory=list)  # (N, 3) each: KEY, TIME, PLACE
    is_cut: bool = False  # the end of the chunk is missing, which is noted

    def list_messages(self, key: int, data: bytes) -> None:
        """Add an index record; struct.error if it does not match its length."""
        if len(data) % ENTRY.itemsize:
            raise struct.error("an index that does not fit")
        entries = np.frombuffer(data, ENTRY)
        times = entries["sec"].astype(np.int64) * NS_PER_S + entries["nanosec"]
        self.index.append(np.stack([np.full(len(entries), key), times, entries["at"].astype(np.int64)], axis=1))

    @property
    def listed(self) -> Int64:
        """(N, 3) the messages listed in the index."""
        return np.concatenate(self.index) if self.index else np.empty((0, 3), np.int64)

    @property
    def connections(self) -> frozenset[int]:
        """The connections of the listed messages."""
        return frozenset(key for part in self.index for key in np.unique(part[:, KEY]).tolist())


@dataclass
class BagContents:
    """Contents of a bag.

    Attributes:
        connections: by their keys.
        chunks: in file order.
        counts: number of messages by connection.
        notes: errors of the file, except those found when chunks are read.
        unread: chunks without an index that cannot be read. cut: messages of each incomplete chunk.
        skipped: number of bytes of each damaged range.
    """

    connections: dict[int, ros1.Connection] = field(default_factory=dict)
    chunks: list[Chunk] = field(default_factory=list)
    counts: Counter[int] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)
    unread: int = 0
    cut: list[int] = field(default_factory=list)
    skipped: list[int] = field(default_factory=list)
    promised: Counter[int] = field(default_factory=Counter)  # messages according to the index at the end
    starts: list[int] = field(default_factory=list)  # starts of chunks according to the index at the end


def chunk_entries(content: bytes, chunk: Chunk, found: BagContents) -> tuple[Int64, bool]:
    """Return the messages in the records of a chunk, and whether they match its index.

    Returns:
        (N, 5): KEY, TIME, PLACE, DATA, STOP.
    """
    entries = array("q")
    good, at = True, 0
    places = np.sort(chunk.listed[:, PLACE])
    while at < len(content):
        try:
            for record in ros1.records(content, at):
                at = record.stop
                if record.op == ros1.MESSAGE:
                    key, log_ns = ros1.u32(record.fields, b"conn"), ros1.time_ns(record.fields, b"time")
                    entries.extend((key, log_ns, record.start, record.data_at, record.stop))
                elif record.op == ros1.CONNECTION:
                    declared = ros1.read_connection(record.fields, content[record.data_at : record.stop])
                    good &= found.connections.setdefault(*declared) == declared[1]
                else:
                    raise struct.error("a record that has no place in a chunk")
                if len(entries) > 5 * MAX_MESSAGES:
                    raise RoboCacheError(f"more than {MAX_MESSAGES:,} messages in a chunk")
        except (struct.error, UnicodeDecodeError):
            good = False
            after = np.searchsorted(places, at, side="right")
            at = int(places[after]) if after < len(places) else len(content)
    rows = np.frombuffer(entries, np.int64).reshape(-1, 5)
    if len(places):
        good &= np.array_equal(_sorted(rows[:, :3]), _sorted(chunk.listed))
    return rows, good


def chunk_content(file: StoredFile, chunk: Chunk) -> bytes:
    """Return the records of a chunk; RoboCacheError if its compressed data is damaged or too long."""
    if chunk.stop - chunk.start > MAX_BYTES:
        raise RoboCacheError(f"{chunk.stop - chunk.start:,} bytes in a chunk, the limit is {MAX_BYTES:,}")
    data = file.read(chunk.start, chunk.stop)
    return bytes(decompress(chunk.codec, data, chunk.size if chunk.codec else len(data)))


def record_data(file: StoredFile, record: ros1.Record) -> bytes:
    """Return the data of a record other than a chunk; struct.error if it is too long."""
    if record.stop - record.data_at > MAX_DATA:
        raise struct.error("data of many megabytes")
    return file.read(record.data_at, record.stop)


def _sorted(rows: Int64) -> Int64:
    order = np.lexsort((rows[:, TIME], rows[:, KEY], rows[:, PLACE]))
    ordered: Int64 = rows[order]
    return ordered
