"""What a recording holds, and what reads a storage of it."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol


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
    latched: bool = False  # a publisher kept messages for those who came later (durability transient_local)


class Source(Protocol):
    """One storage: its topics and the messages of some of them in log order."""

    topics: tuple[Topic, ...]
    start_ns: int  # log time of the first message
    stop_ns: int  # past the log time of the last one

    def messages(self, topics: Collection[str], start_ns: int | None, stop_ns: int | None) -> Iterator[RawMessage]:
        """Messages with start_ns <= log time < stop_ns."""

    def close(self) -> None:
        """Release the files."""
