"""Reads ROS 1 bags of format 2.0: complete bags, and the remaining data of truncated or damaged bags.

A bag has no checksums of its messages, but each chunk is compared with the index after it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from robocache_ros.bags.log_times import PAUSE_NS, Group, groups_of, joined
from robocache_ros.bags.source import RawMessage, Topic
from robocache_ros.bags.storage.merge import merged_parts
from robocache_ros.bags.storage.ros1.bag_chunks import KEY, TIME, Chunk, chunk_content, chunk_entries
from robocache_ros.bags.storage.ros1.bag_contents import read_contents
from robocache_ros.errors import RoboCacheError
from robocache_ros.remote.held_files import StoredFile

_WALKED = 1 << 16  # bytes per read while chunks are skipped


class _Part(NamedTuple):
    first_ns: int
    last_ns: int
    number: int
    keys: frozenset[int]


class Ros1Bag:
    """An open ROS 1 bag; its messages use the ROS 1 serialization.

    Attributes:
        topics: all topics.
        start_ns: lower bound of the log times of all messages.

    Errors:
        RoboCacheError: not a ROS 1 bag of format 2.0.
    """

    has_checksums = False

    def __init__(self, path: Path) -> None:
        self._file = StoredFile(path, _WALKED)
        with self._file.closed_on_error():
            self._contents = read_contents(self._file)
        self._lost: dict[int, int] = {}  # number of messages of damaged chunks, by start of the chunk
        self._read_notes: dict[str, None] = {}
        self._parts = sorted(
            _Part(int(times.min()), int(times.max()), number, chunk.connections)
            for number, chunk in enumerate(self._contents.chunks)
            if len(times := chunk.listed[:, TIME])
        )
        self.start_ns = min((part.first_ns for part in self._parts), default=0)
        self.topics = tuple(
            Topic(c.topic, c.type, self._contents.counts[key], c.definition, c.latched, "ros1")
            for key, c in self._contents.connections.items()
        )

    @property
    def notes(self) -> list[str]:
        """Notes on lost or damaged data; complete after all messages have been read."""
        lost = []
        if self._lost:
            chunks = f"{len(self._lost):,} of {len(self._contents.chunks):,} chunks are damaged"
            lost.append(f"{chunks}; {sum(self._lost.values()):,} messages could not be read")
        return [*self._contents.notes, *lost, *self._read_notes]

    def log_times(self) -> list[Group]:
        """The log times of the file as groups, separated by long pauses."""
        groups = joined(Group(part.first_ns, part.last_ns, 1) for part in self._parts)
        if len(groups) == 1 and all(part.last_ns - part.first_ns <= PAUSE_NS for part in self._parts):
            return [groups[0]._replace(size=sum(self._contents.counts.values()))]
        times = [part[:, TIME] for chunk in self._contents.chunks for part in chunk.index]
        return groups_of(np.concatenate(times)) if times else []

    def messages(self, topics: Collection[str], start_ns: int, stop_ns: int) -> Iterator[RawMessage]:
        """Yield messages in log order. Chunks that overlap in time are merged."""
        names = {key: c.topic for key, c in self._contents.connections.items() if c.topic in topics}
        wanted = [part for part in self._parts if names.keys() & part.keys]

        def read(part: _Part) -> tuple[int, list[RawMessage]]:
            return self._messages(self._contents.chunks[part.number], names, start_ns, stop_ns)

        parts = [part for part in wanted if part.last_ns >= start_ns and part.first_ns < stop_ns]
        yield from merged_parts(parts, read, lambda note: self._read_notes.setdefault(note))

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _messages(self, chunk: Chunk, names: dict[int, str], low: int, high: int) -> tuple[int, list[RawMessage]]:
        try:
            content = chunk_content(self._file, chunk)
            entries, good = chunk_entries(content, chunk, self._contents)
        except RoboCacheError:
            self._lost[chunk.start] = len(chunk.listed)
            return 0, []
        if not good and not chunk.is_cut:
            self._read_notes["the messages or topics of some chunks are not those in the index"] = None
        times = entries[:, TIME]
        wanted = np.isin(entries[:, KEY], list(names)) & (low <= times) & (times < high)
        found = [
            RawMessage(names[key], log_ns, content[data_at:stop])
            for key, log_ns, _, data_at, stop in entries[wanted].tolist()
        ]
        return len(content), found
