"""What a recording holds, and what reads one storage file of it."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from robocache_ros.bags.log_times import Group


class RawMessage(NamedTuple):
    """One recorded message, as its bytes went over the wire."""

    topic: str
    log_ns: int  # receive time
    data: bytes  # CDR, with its encapsulation header


@dataclass(frozen=True)
class Topic:
    """A topic of a recording."""

    name: str
    type: str
    count: int
    definition: str = ""  # text of the message definition with everything it needs; empty where the bag has none
    latched: bool = False  # a publisher keeps messages for late subscribers (durability transient_local)
    encoding: str = "cdr"  # of its messages as the file has them: cdr, or ros1, which is read as cdr


class Source(Protocol):
    """One storage file: its topics and the messages of some of them in log order."""

    topics: tuple[Topic, ...]

    @property
    def notes(self) -> list[str]:
        """What is lost or damaged, one line each; complete once the messages have been read."""

    @property
    def has_checksums(self) -> bool:
        """Whether checksums cover all messages, so that an altered one is noticed."""

    @property
    def start_ns(self) -> int:
        """A log time that no message is before."""

    def log_times(self) -> list[Group]:
        """The log times of the file, as groups that are far from each other."""

    def messages(self, topics: Collection[str], start_ns: int, stop_ns: int) -> Iterator[RawMessage]:
        """Messages with start_ns <= log time < stop_ns."""

    def close(self) -> None:
        """Release the file."""


def is_latched(profiles: str) -> bool:
    """Whether one of rosbag2's offered_qos_profiles (YAML) is transient_local; a number in Humble."""
    return bool(re.search(r"^[\s-]*durability:\s*(1|transient_local)\s*$", profiles, re.MULTILINE))
