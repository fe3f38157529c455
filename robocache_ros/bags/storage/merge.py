"""Merges the messages and topics of the files of a recording."""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from operator import attrgetter
from typing import Protocol, TypeAlias, TypeVar

from robocache_ros.bags.source import RawMessage, Source, Topic
from robocache_ros.decode.definitions import full_name
from robocache_ros.errors import RoboCacheError, printable

MESSAGE_BYTES = 160  # memory per message in addition to its data
MAX_WAITING = 384 << 20  # bytes of chunks that overlap in time and are in memory together


def merged_messages(
    sources: Sequence[Source], topics: Collection[str], start_ns: int, stop_ns: int
) -> Iterator[RawMessage]:
    """Yield the messages of all sources in log order. A source is read when its first message is due.

    Args:
        sources: in any order; for equal log times, messages follow the order of the sources.
        topics: names of the topics to read.
        start_ns: start of the log times.
        stop_ns: end of the log times, exclusive.
    """
    later = sorted(((source.start_ns, index) for index, source in enumerate(sources)), reverse=True)
    heap: list[tuple[int, int, RawMessage, Iterator[RawMessage]]] = []
    while heap or later:
        while later and (not heap or later[-1][0] <= heap[0][0]):
            _, index = later.pop()
            messages = sources[index].messages(topics, start_ns, stop_ns)
            if (first := next(messages, None)) is not None:
                heapq.heappush(heap, (first.log_ns, index, first, messages))
        if not heap:
            continue
        _, index, message, messages = heap[0]
        is_last = len(heap) == 1
        if is_last and not later:  # nothing is left to merge
            yield message
            yield from messages
            return
        while True:
            yield message
            if (after := next(messages, None)) is None:
                heapq.heappop(heap)
                break
            message = after
            if not is_last or (later and message.log_ns >= later[-1][0]):
                heapq.heapreplace(heap, (message.log_ns, index, message, messages))
                break


Spans: TypeAlias = "Mapping[str, tuple[int, int]]"  # first and last log time by topic


class _Span(Protocol):
    @property
    def first_ns(self) -> int: ...


_Part = TypeVar("_Part", bound=_Span)


def merged_parts(
    parts: Sequence[_Part], read: Callable[[_Part], tuple[int, list[RawMessage]]], note: Callable[[str], None]
) -> Iterator[RawMessage]:
    """Yield the messages of the parts of a file in log order. Parts that overlap in time are in memory together.

    Args:
        parts: in the order of their first log times.
        read: returns the memory size in bytes and the messages of a part.
        note: receives errors in the times of the parts.
    """
    log_ns = attrgetter("log_ns")
    waiting: list[RawMessage] = []
    waiting_bytes = 0
    for part, after in zip_longest(parts, parts[1:]):
        size, messages = read(part)
        size += MESSAGE_BYTES * len(messages)
        waiting += messages
        waiting.sort(key=log_ns)
        if waiting and waiting[0].log_ns < part.first_ns:
            note("the times in its index are wrong; some messages come out of order")
        ready = bisect_left(waiting, after.first_ns, key=log_ns) if after else len(waiting)
        yield from waiting[:ready]
        del waiting[:ready]
        waiting_bytes = waiting_bytes + size if waiting else 0
        if waiting_bytes > MAX_WAITING:
            raise RoboCacheError(f"its chunks overlap in time by more than {MAX_WAITING:,} bytes; sort it first")


def joined_spans(
    one: Mapping[str, tuple[int, int]], other: Mapping[str, tuple[int, int]]
) -> dict[str, tuple[int, int]]:
    """Return the first and last times of topics in two files."""
    both = {name: [spans[name] for spans in (one, other) if name in spans] for name in {**one, **other}}
    return {name: (min(first for first, _ in found), max(last for _, last in found)) for name, found in both.items()}


def merged_topics(sources: Sequence[Source]) -> dict[str, Topic]:
    """Return the topics of all sources by name, with types as `package/msg/Name`; RoboCacheError if types conflict."""
    counts: Counter[str] = Counter()
    found: dict[str, Topic] = {}
    for topic in sorted((_with_full_type(t) for source in sources for t in source.topics), key=lambda t: t.name):
        counts[topic.name] += topic.count
        known = found.setdefault(topic.name, topic)
        if topic.latched:
            found[topic.name] = replace(known, latched=True)
        if known.type != topic.type:
            raise RoboCacheError(
                f"{printable(topic.name)}: is {printable(known.type, 40)} and {printable(topic.type, 40)} "
                "in one recording; it cannot be decoded"
            )
    return {name: replace(topic, count=counts[name]) for name, topic in found.items()}


def _with_full_type(topic: Topic) -> Topic:
    """Return the topic with a type such as `sensor_msgs/msg/Image`; early recorders wrote `sensor_msgs/Image`."""
    return replace(topic, type=full_name(topic.type)) if topic.type.count("/") == 1 else topic
