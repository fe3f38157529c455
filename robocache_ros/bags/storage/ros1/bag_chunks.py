"""The chunks of a ROS 1 bag: their records, the messages in them, and the index that follows each."""

from __future__ import annotations

import struct
from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from robocache_ros.bags.storage.codecs import decompress
from robocache_ros.bags.storage.mcap_records import StoredFile
from robocache_ros.bags.storage.ros1 import bag_records as ros1
from robocache_ros.units import NS_PER_S

CODECS = {"none": "", "lz4": "lz4", "bz2": "bz2"}
ENTRY = np.dtype([("sec", "<u4"), ("nanosec", "<u4"), ("at", "<u4")])


class Entry(NamedTuple):
    """A message in a chunk."""

    key: int  # of its connection
    log_ns: int
    at: int  # in the chunk's records
    data_at: int = 0
    stop: int = 0


@dataclass
class Chunk:
    """A chunk: where its records are, and the messages that the index behind it lists."""

    start: int
    stop: int
    codec: str
    size: int  # of its records, decompressed
    keys: list[NDArray[np.int64]] = field(default_factory=list)
    times_ns: list[NDArray[np.int64]] = field(default_factory=list)
    places: list[NDArray[np.int64]] = field(default_factory=list)
    listed: int = 0
    is_cut: bool = False  # its end is missing, which is noted

    def list_messages(self, key: int, data: bytes) -> None:
        """Take in an index record; struct.error where it does not fit."""
        if len(data) % ENTRY.itemsize:
            raise struct.error("an index that does not fit")
        entries = np.frombuffer(data, ENTRY)
        self.keys.append(np.full(len(entries), key))
        self.times_ns.append(entries["sec"].astype(np.int64) * NS_PER_S + entries["nanosec"])
        self.places.append(entries["at"].astype(np.int64))
        self.listed += len(entries)

    @property
    def connections(self) -> frozenset[int]:
        """The connections of the messages that are listed."""
        return frozenset(int(keys[0]) for keys in self.keys if len(keys))

    def index(self) -> set[Entry]:
        """The messages that the index lists."""
        parts = [np.concatenate(part) for part in (self.keys, self.times_ns, self.places)] if self.keys else []
        return {Entry(*row) for row in zip(*(part.tolist() for part in parts), strict=True)} if parts else set()


@dataclass
class BagContents:
    """What a bag holds.

    Attributes:
        connections: by their keys.
        chunks: in the order of the file.
        counts: messages by connection.
        notes: what is wrong with the file, less what is found when its chunks are read.
    """

    connections: dict[int, ros1.Connection] = field(default_factory=dict)
    chunks: list[Chunk] = field(default_factory=list)
    counts: Counter[int] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)
    promised: Counter[int] = field(default_factory=Counter)  # by the index at the end
    starts: list[int] = field(default_factory=list)  # of chunks, by the index at the end


def chunk_entries(content: bytes, chunk: Chunk, found: BagContents) -> tuple[list[Entry], bool]:
    """The messages in a chunk's records, and whether they are those that its index lists."""
    entries: list[Entry] = []
    good, at, index = True, 0, None
    while at < len(content):
        try:
            for record in ros1.records(content, at):
                at = record.stop
                if record.op == ros1.MESSAGE:
                    key, log_ns = ros1.u32(record.fields, b"conn"), ros1.time_ns(record.fields, b"time")
                    entries.append(Entry(key, log_ns, record.start, record.data_at, record.stop))
                elif record.op == ros1.CONNECTION:
                    declared = ros1.read_connection(record.fields, content[record.data_at : record.stop])
                    good &= found.connections.setdefault(*declared) == declared[1]
                else:
                    raise struct.error("a record that has no place in a chunk")
        except (struct.error, UnicodeDecodeError):
            good = False
            if index is None:
                index = sorted(entry.at for entry in chunk.index())
            at = next((place for place in index if place > at), len(content))
    if chunk.listed:
        good &= {entry[:3] for entry in entries} == {entry[:3] for entry in chunk.index()}
    return entries, good


def chunk_content(file: StoredFile, chunk: Chunk) -> bytes:
    """The records of a chunk; RoboCacheError where its compressed data is damaged."""
    data = file.read(chunk.start, chunk.stop)
    return decompress(chunk.codec, data, chunk.size if chunk.codec else len(data))
