"""Storage files with individually compressed messages."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from robocache_ros.bags.source import RawMessage, Source
from robocache_ros.bags.storage.codecs import decompress
from robocache_ros.errors import RoboCacheError


class CompressedMessages:
    """A storage file with zstd messages; messages that cannot be decompressed are omitted and noted."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._lost: dict[tuple[str, int], None] = {}
        self.topics = source.topics
        self.start_ns = source.start_ns
        self.log_times = source.log_times
        self.has_checksums = source.has_checksums
        self.close = source.close

    @property
    def notes(self) -> list[str]:
        """Notes of the file reader, and notes on lost messages."""
        lost = [f"{len(self._lost):,} messages cannot be decompressed and were not read"] if self._lost else []
        return [*self._source.notes, *lost]

    def messages(self, topics: Collection[str], start_ns: int, stop_ns: int) -> Iterator[RawMessage]:
        """Yield the decompressed messages of a range of log times."""
        for message in self._source.messages(topics, start_ns, stop_ns):
            try:
                yield message._replace(data=decompress("zstd", message.data))
            except RoboCacheError:
                self._lost[message.topic, message.log_ns] = None
