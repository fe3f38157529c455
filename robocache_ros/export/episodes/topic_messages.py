"""Reads the messages of a topic that is not a stream: those that begin and end episodes, and those with the task."""

from __future__ import annotations

import re
from dataclasses import dataclass

from robocache_ros.bags.reader import Bag
from robocache_ros.decode import DecodeError
from robocache_ros.decode.cdr.definitions import message_type
from robocache_ros.decode.cdr.whole_message import read_message
from robocache_ros.errors import RoboCacheError, printable

BOOL, STRING = "std_msgs/msg/Bool", "std_msgs/msg/String"
MAX_CHANGES = 100_000
TEXT_LIMIT = 1000  # characters
_WITH_VALUE = re.compile(r"std_msgs/msg/(Bool|String|Byte|Char|U?Int(8|16|32|64))")

Value = bool | int | str | None


@dataclass(frozen=True)
class Changes:
    """The changes of a topic's value, in the order of the log.

    Attributes:
        messages: log time in ns, and value from then on; None for a message without a value: each one is a change.
        note: says which messages were left out; empty if none.
    """

    messages: tuple[tuple[int, Value], ...]
    note: str


def read_changes(bag: Bag, topic: str, option: str, type_: str = "") -> Changes:
    """Read the changes of the value of a topic: a bool, an integer or a text of std_msgs; other messages are events.

    Args:
        bag: the recording.
        topic: its name.
        option: what names it, for errors.
        type_: the type that it must have; empty: any.

    Errors:
        RoboCacheError: the recording does not have the topic, or its value changes too often.
    """
    if topic not in bag.topics:
        names = printable(", ".join(bag.topics), 60)
        raise RoboCacheError(f"{option}: {printable(bag.path, 50)} has no topic {topic}; it has {names}")
    found = bag.topics[topic].type
    if type_ and found != type_:
        raise RoboCacheError(f"{option}: {topic} is {printable(found, 60)}, not {type_}; give another topic")
    message = message_type(found, bag.definitions) if _WITH_VALUE.fullmatch(found) else None
    changes: list[tuple[int, Value]] = []
    bad = 0
    for _, log_ns, data in bag.messages([topic]):
        try:
            raw = read_message(message, data).data if message else None
        except DecodeError:
            bad += 1
            continue
        if isinstance(raw, str) and len(raw) > TEXT_LIMIT:
            raise RoboCacheError(f"{option}: {topic} has a text of more than {TEXT_LIMIT:,} characters; shorten it")
        value = _value(found, raw)
        if value is None or not changes or changes[-1][1] != value:
            changes.append((log_ns, value))
        if len(changes) > MAX_CHANGES:
            raise RoboCacheError(f"{option}: {topic} changes more than {MAX_CHANGES:,} times; give another topic")
    return Changes(tuple(changes), f"{topic}: {bad} messages cannot be decoded and were left out" if bad else "")


def _value(type_: str, data: Value) -> Value:
    """Return a bool as one, and a text as one line with single spaces."""
    if isinstance(data, str):
        return " ".join("".join(c if c.isprintable() else " " for c in data).split())
    return bool(data) if type_ == BOOL else data
