"""Messages and topics of a recording, the interface of its files, and outliers among log times."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from robocache_ros.errors import RoboCacheError
from robocache_ros.units import NS_PER_S

# Detects outliers among the log times of a recording, which a wrong clock or damage can cause.
#
# An export writes a row for every tick between the first and the last message. One wrong log time would make it
# endless. The rule applies to all files of a recording together:
#
# 1. Sorted log times are split into groups where two neighbors are more than PAUSE_NS apart.
# 2. The group with the most messages is kept. Outward from it, each next group at most REACH_NS away is kept.
# 3. Small groups at both ends of the kept groups are excluded: groups of at most MAX_SMALL_GROUP messages, and
#    at most 1 / SMALL_GROUP_SHARE of the messages of the largest group.
# 4. Log times that do not fit into 63 bits are always excluded.
#
# A recording with a pause of less than half an hour loses no messages. With a pause of up to a day, it loses at most
# small groups at its ends. The recording's notes give the number and the times of excluded messages.

PAUSE_NS = 1800 * NS_PER_S
REACH_NS = 24 * 3600 * NS_PER_S
SMALL_GROUP_SHARE = 20  # see rule 3
MAX_SMALL_GROUP = 100
LIMIT_NS = 2**63 - 1  # exclusive upper limit of valid log times
_SHOWN = 4


class Group(NamedTuple):
    """Consecutive log times without a long pause."""

    first_ns: int
    last_ns: int
    size: int  # number of messages


@dataclass(frozen=True)
class Window:
    """The range of log times of a recording that is used.

    Attributes:
        start_ns, stop_ns: the first log time, and the exclusive end.
        outside: the excluded groups.
    """

    start_ns: int
    stop_ns: int
    outside: tuple[Group, ...]

    @property
    def note(self) -> str:
        """Describe the excluded messages; empty if there are none."""
        if not self.outside:
            return ""
        count = sum(group.size for group in self.outside)
        times = [_shown(group.first_ns) for group in self.outside[:_SHOWN]]
        more = f" and {len(self.outside) - _SHOWN} more" if len(self.outside) > _SHOWN else ""
        whose = "message is" if count == 1 else "messages are"
        return f"{count:,} {whose} left out: logged at {', '.join(times)}{more}, far from all others"


def groups_of(times_ns: NDArray[np.uint64] | NDArray[np.int64]) -> list[Group]:
    """Split (N,) log times, in any order, into groups."""
    if not len(times_ns):
        return []
    times = np.sort(times_ns)
    # The difference of two sorted neighbors fits into uint64, also between a negative and a positive time.
    cuts = np.flatnonzero(np.diff(times.view(np.uint64)) > np.uint64(PAUSE_NS)) + 1
    return [Group(int(part[0]), int(part[-1]), len(part)) for part in np.split(times, cuts)]


def joined(groups: Iterable[Group]) -> list[Group]:
    """Merge the groups of several files, in any order, into groups of one recording."""
    found: list[Group] = []
    for group in sorted(groups):
        if found and group.first_ns - found[-1].last_ns <= PAUSE_NS:
            last = found[-1]
            found[-1] = Group(last.first_ns, max(last.last_ns, group.last_ns), last.size + group.size)
        else:
            found.append(group)
    return found


def window_of(groups: Sequence[Group]) -> Window:
    """Return the log times to use, by the rule above; RoboCacheError if none is valid."""
    valid = [group for group in groups if group.first_ns >= 0 and group.last_ns < LIMIT_NS]
    if not valid:
        raise RoboCacheError("none of its messages has a valid log time")
    main = max(range(len(valid)), key=lambda index: (valid[index].size, -index))
    few = min(MAX_SMALL_GROUP, valid[main].size // SMALL_GROUP_SHARE)
    low = high = main
    while low and valid[low].first_ns - valid[low - 1].last_ns <= REACH_NS:
        low -= 1
    while high + 1 < len(valid) and valid[high + 1].first_ns - valid[high].last_ns <= REACH_NS:
        high += 1
    while low < main and valid[low].size <= few:
        low += 1
    while high > main and valid[high].size <= few:
        high -= 1
    kept = set(valid[low : high + 1])
    return Window(valid[low].first_ns, valid[high].last_ns + 1, tuple(group for group in groups if group not in kept))


def _shown(time_ns: int) -> str:
    if not 0 <= time_ns < 2**62:
        return f"{time_ns} ns"
    return datetime.fromtimestamp(time_ns // NS_PER_S, timezone.utc).strftime("%Y-%m-%d %H:%M:%S")


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


class ConvertedSource:
    """What the sources have in common that convert the messages of another one."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self.topics = source.topics
        self.start_ns = source.start_ns
        self.log_times = source.log_times
        self.has_checksums = source.has_checksums
        self.close = source.close


def is_latched(profiles: str) -> bool:
    """Whether one of rosbag2's offered_qos_profiles (YAML) is transient_local. Humble stores a number."""
    return bool(re.search(r"^[\s-]*durability:\s*(1|transient_local)\s*$", profiles, re.MULTILINE))
