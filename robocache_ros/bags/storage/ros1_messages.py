"""ROS 1 messages as ROS 2 messages: types and CDR."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from struct import Struct as Packed
from typing import TypeAlias

from robocache_ros.bags.source import ConvertedSource, RawMessage, Source, Topic
from robocache_ros.decode.cdr import PADDING, check_count, truncated
from robocache_ros.decode.definitions import (
    EMPTY_FIELD,
    HEADER,
    Array,
    Primitive,
    Sequence,
    Struct,
    Text,
    Type,
    describe,
    full_name,
    message_type,
    runs,
    split_definitions,
)
from robocache_ros.errors import RoboCacheError, printable

_RENAMED = {"tf/msg/tfMessage": "tf2_msgs/msg/TFMessage"}
_TIMES = {"time": "builtin_interfaces/Time", "duration": "builtin_interfaces/Duration"}
_OTHER_NAMES = {"byte": "int8", "char": "uint8", **_TIMES}
_HEADER = "builtin_interfaces/Time stamp\nstring frame_id"  # without seq, which ROS 2 does not have
_LOWER_CASE = "sensor_msgs/msg/CameraInfo"  # D K R P in ROS 1, d k r p in ROS 2
_FIELD = re.compile(r"\s*([A-Za-z][\w/]*)((?:\[\d*\])?)\s+([A-Za-z]\w*)\s*(=?)")


def ros2_type(name: str) -> str:
    """`sensor_msgs/Imu` -> `sensor_msgs/msg/Imu`."""
    full = full_name(name)
    return _RENAMED.get(full, full)


def ros2_definition(name: str, text: str) -> str:
    """Convert a definition and its dependencies to ROS 2 form; comments and constants are omitted.

    Errors:
        RoboCacheError: the text is not a message definition, or is too long.
    """
    first, *others = split_definitions(name, text).items()
    parts = [_translated(*first), *(f"{'=' * 80}\nMSG: {key}\n{_translated(key, body)}" for key, body in others)]
    return "\n".join(parts)


def _translated(name: str, text: str) -> str:
    if name == HEADER:
        return _HEADER
    lines = []
    for line in text.splitlines():
        match = _FIELD.match(line.partition("#")[0])
        if match is None:
            if line.partition("#")[0].strip():
                lines.append(line)  # the parser of the definition reports the error
            continue
        kind, array, field, constant = match.groups()
        if not constant:
            field = field.lower() if name == _LOWER_CASE else field
            lines.append(f"{_OTHER_NAMES.get(kind, kind)}{array} {field}")
    return "\n".join(lines)


# Converts messages from ROS 1 serialization to CDR: with padding, NUL-terminated strings, headers without `seq`.
#
# ROS 1 writes the same values in the same order, little endian, without padding.

# Reads from a position of a message, appends to the CDR, and returns the end position.
Step: TypeAlias = "Callable[[bytes, int, bytearray], int]"

_ENCAPSULATION = b"\0\1\0\0"  # CDR, little endian
_SEQ_BYTES = 4
_COUNT = Packed("<I")
_ZEROS = [bytes(size) for size in range(8)]


class ToCdr:
    """Converts the messages of one type.

    Attributes:
        rest: maximum number of bytes after the end of a message according to its definition; they are omitted.
            librealsense writes four bytes after an image that are not in the definition.

    Args:
        message: the ROS 2 type.
    """

    def __init__(self, message: Struct) -> None:
        self._steps = tuple(_steps(message))
        self.rest = 0

    def __call__(self, data: bytes) -> bytes:
        """Return the message in CDR; RoboCacheError if it does not match its type."""
        out, at = bytearray(_ENCAPSULATION), 0
        for step in self._steps:
            at = step(data, at, out)
        if at > len(data):
            raise truncated(at, len(data))
        self.rest = max(self.rest, len(data) - at)
        return bytes(out)


def _steps(t: Type) -> Iterator[Step]:
    if isinstance(t, Primitive):
        yield _numbers(t, 1)
    elif isinstance(t, Text):
        yield _text
    elif isinstance(t, Struct):
        if t.name == HEADER:
            yield lambda data, at, out: at + _SEQ_BYTES
        for name, field in t.fields:
            yield from (_empty,) if name == EMPTY_FIELD else _steps(field)
    elif isinstance(t, (Array, Sequence)):
        yield _elements(t)
    else:
        raise RoboCacheError(f"type: {describe(t)} is not a type of ROS 1")


def _numbers(primitive: Primitive, count: int) -> Step:
    padding, size = PADDING[primitive.size], primitive.size * count

    def step(data: bytes, at: int, out: bytearray) -> int:
        stop = at + size
        if stop > len(data):
            raise truncated(stop, len(data))
        out += _ZEROS[padding[len(out) & 7]]
        out += data[at:stop]
        return stop

    return step


def _text(data: bytes, at: int, out: bytearray) -> int:
    size, at = _count(data, at)
    if at + size > len(data):
        raise truncated(at + size, len(data))
    out += _ZEROS[PADDING[4][len(out) & 7]]
    out += _COUNT.pack(size + 1)
    out += data[at : at + size]
    out += b"\0"
    return at + size


def _empty(_data: bytes, at: int, out: bytearray) -> int:
    out += b"\0"  # an empty message has one byte in ROS 2, none in ROS 1
    return at


def _elements(t: Array | Sequence) -> Step:
    one_kind = None if _has_empty(t.element) else runs(t.element)
    block = one_kind[0] if one_kind is not None and len(one_kind) == 1 else None
    if isinstance(t, Array) and block:
        return _numbers(block[0], block[1] * t.length)
    inner = () if block else tuple(_steps(t.element))

    def step(data: bytes, at: int, out: bytearray) -> int:
        if isinstance(t, Array):
            count = t.length
        else:
            count, at = _count(data, at)
            out += _ZEROS[PADDING[4][len(out) & 7]]
            out += _COUNT.pack(count)
        if block:
            return _numbers(block[0], block[1] * count)(data, at, out) if count else at
        if isinstance(t, Sequence):
            check_count(count, t, at, len(data))
        for _ in range(count):
            for one in inner:
                at = one(data, at, out)
        return at

    return step


def _has_empty(t: Type) -> bool:
    if isinstance(t, Struct):
        return any(name == EMPTY_FIELD or _has_empty(field) for name, field in t.fields)
    return isinstance(t, (Array, Sequence)) and _has_empty(t.element)


def _count(data: bytes, at: int) -> tuple[int, int]:
    if at + 4 > len(data):
        raise truncated(at + 4, len(data))
    return int(_COUNT.unpack_from(data, at)[0]), at + 4


class AsRos2(ConvertedSource):
    """Converts the ROS 1 messages of a storage file to CDR. Mismatched messages are omitted and noted.

    Args:
        source: the storage file.
    """

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        self._lost: dict[str, dict[int, None]] = {}  # log times, by topic
        self._unread: Counter[str] = Counter()  # number of messages, by type with an invalid definition
        self._converters: dict[str, ToCdr] = {}
        self.topics = tuple(filter(None, map(self._converted, source.topics)))

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
