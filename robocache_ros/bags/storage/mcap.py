"""Reads MCAP files: complete files by their index, and the remaining data of truncated or damaged files.

A pass over a chunk skips the messages that are not selected. Small messages are copied. Large messages are views of
the chunk if most of it is selected, so that they do not keep other data in memory.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path

import numpy as np

from robocache_ros.bags.log_times import PAUSE_NS, Group, groups_of, joined
from robocache_ros.bags.source import Data, RawMessage, Topic, is_latched
from robocache_ros.bags.storage import mcap_records as mcap
from robocache_ros.bags.storage.mcap_chunk import Messages, indexed_messages, walked_messages
from robocache_ros.bags.storage.mcap_contents import read_contents, sampled_parts
from robocache_ros.bags.storage.mcap_scan import Part, chunk_records, has_checksum, index_records, messages_indexed
from robocache_ros.bags.storage.merge import merged_parts
from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.remote.held_files import StoredFile

READ = ("cdr", "ros1")  # encodings of messages
NOT_ROS = "are not ROS messages (cdr, ros1)"
LARGE_BYTES = 64 << 10


class McapFile:
    """An open MCAP file.

    Args:
        path: the file.
        sampled: give the messages of a few chunks alone; what the index says is that of the whole file.

    Attributes:
        topics: topics with CDR or ROS 1 messages.
        start_ns: lower bound of the log times of all messages.

    Errors:
        RoboCacheError: not MCAP, or no readable data.
    """

    def __init__(self, path: Path, *, sampled: bool = False) -> None:
        self._file = StoredFile(path)
        with self._file.closed_on_error():
            if self._file.read(0, len(mcap.MAGIC)) != mcap.MAGIC:
                raise RoboCacheError("not an MCAP file (wrong first bytes)")
            self._contents = read_contents(self._file)
        found = self._contents
        self._read_notes: dict[str, None] = {}  # found while reading; dict keys, to keep the order
        others = {c.key: c.encoding for c in found.channels.values() if c.encoding not in READ and found.counts[c.key]}
        if others:
            count = sum(found.counts[key] for key in others)
            encodings = printable(", ".join(sorted(set(others.values()))))
            found.notes.append(f"{count:,} messages {NOT_ROS} but {encodings!r}, and were not read")
        self._parts = sampled_parts(found.parts, found.counts.keys()) if sampled and found.parts else found.parts
        self.start_ns = min((part.first_ns for part in found.parts), default=0)
        self.topics = tuple(
            Topic(c.topic, kind, found.counts[c.key], definition, _is_latched(c), c.encoding)
            for c in found.channels.values()
            if c.encoding in READ
            for kind, definition in [found.schemas.get(c.schema, ("", ""))]
        )

    @property
    def share(self) -> float:
        """The share of the chunks that are read."""
        return len(self._parts) / len(self._contents.parts) if self._parts else 1.0

    @property
    def spans(self) -> dict[str, tuple[int, int]]:
        """First and last log time of the chunks with a topic, by topic; without topics whose chunks are not known."""
        found: dict[str, tuple[int, int]] = {}
        for part in self._contents.parts:
            for key in part.channels & self._contents.channels.keys():
                name = self._contents.channels[key].topic
                first_ns, last_ns = found.get(name, (part.first_ns, part.last_ns))
                found[name] = min(first_ns, part.first_ns), max(last_ns, part.last_ns)
        return found

    @property
    def notes(self) -> list[str]:
        """Notes on lost or damaged data; complete after all messages have been read."""
        found = self._contents
        damage = []
        if found.damaged:
            lost = list(found.damaged.values())
            known = sum(n for n in lost if n is not None)
            count = f"{known:,} of {found.total:,}" if None not in lost else "their"
            damage = [f"{len(lost):,} of {found.chunks:,} chunks are damaged; {count} messages could not be read"]
        return [*found.notes, *damage, *self._read_notes]

    @property
    def has_checksums(self) -> bool:
        """Whether checksums cover all messages."""
        found = self._contents
        return found.verified or all(has_checksum(self._file, part) for part in self._parts)

    def log_times(self) -> list[Group]:
        """The log times of the file as groups, separated by long pauses; damage is noted."""
        parts = self._contents.parts
        groups = joined(Group(part.first_ns, part.last_ns, 1) for part in parts)
        if self.share < 1:
            return groups
        if len(groups) == 1 and all(part.last_ns - part.first_ns <= PAUSE_NS for part in parts):
            return [groups[0]._replace(size=max(self._contents.total, 1))]
        times: list[np.ndarray[tuple[int], np.dtype[np.uint64]]] = []
        for part in parts:  # a chunk may contain a wrong time among valid ones, so each message is checked
            content, _ = self._content(part)
            heads = (
                mcap.MESSAGE_HEAD.unpack_from(content, at) for op, at, _ in mcap.records(content) if op == mcap.MESSAGE
            )
            times.append(np.fromiter((log_ns for _, _, log_ns, _ in heads), np.uint64))
        return groups_of(np.concatenate(times)) if times else []

    def messages(self, topics: Collection[str], start_ns: int, stop_ns: int) -> Iterator[RawMessage]:
        """Yield messages in log order. Chunks that overlap in time are merged."""
        found = self._contents
        names = {key: c.topic for key, c in found.channels.items() if c.encoding in READ and c.topic in topics}
        wanted = [part for part in self._parts if not part.channels or names.keys() & part.channels]
        parts = sorted(part for part in wanted if part.last_ns >= start_ns and part.first_ns < stop_ns)
        seen = 0

        def read(part: Part) -> tuple[int, list[RawMessage]]:
            nonlocal seen
            content, listed = self._content(part)
            count, messages = self._messages(content, listed, names, start_ns, stop_ns)
            nbytes = len(content)
            del content  # free it before the next read: each may be 192 MB
            seen += count
            if count != len(messages) and start_ns <= part.first_ns and part.last_ns < stop_ns:
                self._read_notes["some messages were left out: their times differ from those in the index"] = None
            return nbytes, messages

        yield from merged_parts(parts, read, lambda note: self._read_notes.setdefault(note))
        promised = sum(found.counts[key] for key in names)
        if len(parts) == len(wanted) and self.share == 1 and seen != promised and not found.damaged:
            self._read_notes[f"{seen:,} of {promised:,} messages of the selected topics were found"] = None

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _content(self, part: Part) -> tuple[Data, Messages | None]:
        """Return the records of a part, empty if they are damaged, which is noted; and its messages, if it has indexes.

        A chunk without a checksum is damaged if its messages are not exactly those in the indexes after it.
        """
        if not part.is_chunk:
            return self._file.block(part.start, part.stop), None
        try:
            content, verified = chunk_records(self._file, part.start, part.stop)
            if part.index_stop <= part.stop:
                return content, None
            found, exactly = indexed_messages(content, index_records(self._file, part.stop, part.index_stop))
            if not (verified or exactly):
                raise RoboCacheError("its messages are not those in its indexes")
        except RoboCacheError:
            lost = messages_indexed(self._file, part.stop, part.index_stop)
            self._contents.damaged.setdefault(part.start, lost)
            return b"", None
        return content, found

    def _messages(
        self, content: Data, found: Messages | None, names: dict[int, str], low: int, high: int
    ) -> tuple[int, list[RawMessage]]:
        """Return the number of messages of the channels `names`, and the messages within a time range."""
        if found is None:
            found, complete = walked_messages(content)
            if not complete:
                self._read_notes["some messages are truncated inside a chunk and could not be read"] = None
        mine = np.isin(found.channels, list(names))
        chosen = np.flatnonzero(mine & (found.logs_ns >= low) & (found.logs_ns < high))
        starts, stops = found.starts[chosen], found.stops[chosen]
        large = stops - starts >= LARGE_BYTES
        views = large & (2 * int((stops - starts)[large].sum()) >= len(content))
        whole = memoryview(content)
        data = (whole[start:stop] for start, stop in zip(starts.tolist(), stops.tolist(), strict=True))
        if views.any():
            parts = [one if view else bytes(one) for one, view in zip(data, views.tolist(), strict=True)]
        else:
            parts = list(map(bytes, data))
        topics = [names[channel] for channel in found.channels[chosen].tolist()]
        messages = zip(topics, found.logs_ns[chosen].tolist(), parts, strict=True)
        return int(mine.sum()), [RawMessage(*message) for message in messages]


def _is_latched(channel: mcap.Channel) -> bool:
    return is_latched(channel.metadata.get("offered_qos_profiles", "")) or channel.metadata.get("latching") == "1"
