"""Messages and topics of a recording, and the interface of storage file readers."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias

from robocache_ros.bags.log_times import Group

Data: TypeAlias = "bytes | memoryview"


class RawMessage(NamedTuple):
    """One recorded message in serialized form."""

    topic: str
    log_ns: int  # receive time
    data: Data  # CDR, with the encapsulation header


@dataclass(frozen=True)
class Topic:
    """A topic of a recording."""

    name: str
    type: str
    count: int
    definition: str = ""  # text of the message definition with its dependencies; empty if not in the bag
    latched: bool = False  # a publisher keeps messages for late subscribers (durability transient_local)
    encoding: str = "cdr"  # of the messages in the file: cdr, or ros1, which the reader converts to cdr


class Source(Protocol):
    """One storage file: its topics, and messages of selected topics in log order."""

    topics: tuple[Topic, ...]

    @property
    def notes(self) -> list[str]:
        """Notes on lost or damaged data, one line each; complete after all messages have been read."""

    @property
    def has_checksums(self) -> bool:
        """Whether checksums cover all messages, so that altered messages are detected."""

    @property
    def start_ns(self) -> int:
        """Lower bound of the log times of all messages."""

    def log_times(self) -> list[Group]:
        """The log times of the file as groups, separated by long pauses."""

    def messages(self, topics: Collection[str], start_ns: int, stop_ns: int) -> Iterator[RawMessage]:
        """Yield messages with start_ns <= log time < stop_ns."""

    def close(self) -> None:
        """Release the file."""


def is_latched(profiles: str) -> bool:
    """Whether one of rosbag2's offered_qos_profiles (YAML) is transient_local. Humble stores a number."""
    return bool(re.search(r"^[\s-]*durability:\s*(1|transient_local)\s*$", profiles, re.MULTILINE))
