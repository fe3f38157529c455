"""Converts ROS 1 topics and messages, from a bag or an MCAP file, to ROS 2."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import replace

from robocache_ros.bags.source import RawMessage, Source, Topic
from robocache_ros.bags.storage.ros1.ros1_types import ros2_definition, ros2_type
from robocache_ros.bags.storage.ros1.to_cdr import ToCdr
from robocache_ros.decode.cdr.definitions import message_type
from robocache_ros.errors import RoboCacheError, printable


class AsRos2:
    """Converts the ROS 1 messages of a storage file to CDR. Mismatched messages are omitted and noted.

    Args:
        source: the storage file.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._lost: dict[str, dict[int, None]] = {}  # log times, by topic
        self._unread: Counter[str] = Counter()  # number of messages, by type with an invalid definition
        self._converters: dict[str, ToCdr] = {}
        self.topics = tuple(filter(None, map(self._converted, source.topics)))
        self.start_ns = source.start_ns
        self.log_times = source.log_times
        self.has_checksums = source.has_checksums
        self.close = source.close

    @property
    def notes(self) -> list[str]:
        """Notes of the file reader, and notes on lost messages."""
        unread = [
            f"{count:,} messages of type {printable(kind, 60)} were not read: its definition cannot be parsed"
            for kind, count in self._unread.items()
        ]
        lost = [
            f"{printable(topic, 60)}: {len(times):,} messages do not match their definition and were not read"
            for topic, times in self._lost.items()
        ]
        longer = [
            f"{printable(topic, 60)}: its messages are up to {convert.rest} bytes longer than their definition, "
            "and these bytes were not read"
            for topic, convert in self._converters.items()
            if convert.rest
        ]
        return [*self._source.notes, *unread, *lost, *longer]

    def messages(self, topics: Collection[str], start_ns: int, stop_ns: int) -> Iterator[RawMessage]:
        """Yield the messages of a range of log times as CDR."""
        for message in self._source.messages(topics, start_ns, stop_ns):
            convert = self._converters.get(message.topic)
            try:
                yield message if convert is None else message._replace(data=convert(bytes(message.data)))
            except RoboCacheError:
                self._lost.setdefault(message.topic, {})[message.log_ns] = None

    def _converted(self, topic: Topic) -> Topic | None:
        if topic.encoding != "ros1":
            return topic
        kind = ros2_type(topic.type)
        try:
            definition = ros2_definition(topic.type, topic.definition) if topic.definition.strip() else ""
            message = message_type(kind, {kind: definition} if definition else {})
            self._converters.setdefault(topic.name, ToCdr(message))
        except RoboCacheError:
            self._unread[topic.type] += topic.count
            return None
        return replace(topic, type=kind, definition=definition, encoding="cdr")
