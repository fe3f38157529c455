"""Read ROS 1 bags: records, chunks, indexes, the recovery of damaged files, and their messages as those of ROS 2."""

from __future__ import annotations

import re
import struct
from array import array
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from struct import Struct as Packed
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from robocache_ros.bags.source import PAUSE_NS, ConvertedSource, Group, RawMessage, Source, Topic, groups_of, joined
from robocache_ros.bags.storage.codecs import MAX_BYTES, decompress
from robocache_ros.bags.storage.merge import merged_parts
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
from robocache_ros.storage.downloads import StoredFile
from robocache_ros.storage.paths import AnyPath
from robocache_ros.units import NS_PER_S

ROS1_MAGIC = b"#ROSBAG V2.0\n"  # http://wiki.ros.org/Bags/Format/2.0
ANY_VERSION = b"#ROSBAG V"
MESSAGE, BAG_HEADER, INDEX, CHUNK, CHUNK_INFO, CONNECTION = range(2, 8)
MAX_HEADER = 1 << 20  # bytes of a record's header
INDEX_VERSION = 1
_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")
_TIME = struct.Struct("<II")

Fields = dict[bytes, bytes]
Read = Callable[[int, int], bytes]  # returns the bytes of [start, stop), or fewer at the end of the file


class Record(NamedTuple):
    """One record: op code, fields, and the positions of the record and its data."""

    op: int
    fields: Fields
    start: int
    data_at: int
    stop: int


class Connection(NamedTuple):
    """A connection: the messages of one publisher."""

    topic: str
    type: str  # in ROS 1 form: sensor_msgs/Imu
    definition: str
    latched: bool


def read_record(read: Read, at: int, end: int) -> Record:
    """Read the record at a position; struct.error if it is damaged or ends after `end`."""
    (length,) = _U32.unpack(read(at, at + 4))
    data_at = at + 8 + length
    if length > MAX_HEADER or data_at > end:
        raise struct.error("a header that does not fit")
    header = read(at + 4, data_at)
    fields = read_fields(header[:length])
    (size,) = _U32.unpack(header[length:])
    if data_at + size > end:
        raise struct.error("data that does not fit")
    op = fields.get(b"op", b"")
    if len(op) != 1:
        raise struct.error("a record without its kind")
    return Record(op[0], fields, at, data_at, data_at + size)


def records(content: bytes, at: int = 0) -> Iterator[Record]:
    """Yield the records of a chunk; struct.error if one is damaged or incomplete."""
    end = len(content)
    while at < end:
        record = read_record(lambda start, stop: content[start:stop], at, end)
        yield record
        at = record.stop


def read_fields(header: bytes) -> Fields:
    """Parse the fields of a header; struct.error if it is damaged."""
    found, at, end = {}, 0, len(header)
    while at < end:
        (size,) = _U32.unpack_from(header, at)
        at += 4
        name, equals, value = header[at : at + size].partition(b"=")
        if not equals or at + size > end:
            raise struct.error("a field that does not fit")
        found[name] = value
        at += size
    return found


def u32(fields: Fields, name: bytes) -> int:
    """Return a uint32 field; struct.error if it is missing."""
    return int(_U32.unpack(fields.get(name, b""))[0])


def u64(fields: Fields, name: bytes) -> int:
    """Return a uint64 field; struct.error if it is missing."""
    return int(_U64.unpack(fields.get(name, b""))[0])


def time_ns(fields: Fields, name: bytes) -> int:
    """Return a time in nanoseconds; struct.error if it is missing."""
    seconds, nanoseconds = _TIME.unpack(fields.get(name, b""))
    return int(seconds) * NS_PER_S + int(nanoseconds)


def read_connection(fields: Fields, data: bytes) -> tuple[int, Connection]:
    """Return the key and contents of a connection record; struct.error or UnicodeDecodeError if it is damaged."""
    about = read_fields(data)
    topic = "/" + "/".join(filter(None, fields[b"topic"].decode().split("/"))) if b"topic" in fields else ""
    kind, definition = about.get(b"type", b"").decode(), about.get(b"message_definition", b"")
    if not topic or not kind:
        raise struct.error("a connection without topic or type")
    # Comments in a definition may use any encoding.
    text = definition.decode(errors="replace")
    return u32(fields, b"conn"), Connection(topic, kind, text, about.get(b"latching", b"") == b"1")


CODECS = {"none": "", "lz4": "lz4", "bz2": "bz2"}
ENTRY = np.dtype([("sec", "<u4"), ("nanosec", "<u4"), ("at", "<u4")])


MAX_MESSAGES = 250_000  # per chunk; a chunk of the usual size of 768 KB has at most 16,000
MAX_DATA = 64 << 20  # bytes of a record other than a chunk

Int64 = NDArray[np.int64]
KEY, TIME, PLACE, DATA, STOP = range(5)  # connection, log time in ns, record, start and end of data


@dataclass
class Chunk:
    """A chunk: position of its records, and the messages listed in the index after it."""

    start: int
    stop: int
    codec: str
    size: int  # decompressed size of the records
    index: list[Int64] = field(default_factory=list)  # (N, 3) each: KEY, TIME, PLACE
    is_cut: bool = False  # the end of the chunk is missing, which is noted

    def list_messages(self, key: int, data: bytes) -> None:
        """Add an index record; struct.error if it does not match its length."""
        if len(data) % ENTRY.itemsize:
            raise struct.error("an index that does not fit")
        entries = np.frombuffer(data, ENTRY)
        times = entries["sec"].astype(np.int64) * NS_PER_S + entries["nanosec"]
        self.index.append(np.stack([np.full(len(entries), key), times, entries["at"].astype(np.int64)], axis=1))

    @property
    def listed(self) -> Int64:
        """(N, 3) the messages listed in the index."""
        return np.concatenate(self.index) if self.index else np.empty((0, 3), np.int64)

    @property
    def connections(self) -> frozenset[int]:
        """The connections of the listed messages."""
        return frozenset(key for part in self.index for key in np.unique(part[:, KEY]).tolist())


@dataclass
class BagContents:
    """Contents of a bag.

    Attributes:
        connections: by their keys.
        chunks: in file order.
        counts: number of messages by connection.
        notes: errors of the file, except those found when chunks are read.
        unread: chunks without an index that cannot be read. cut: messages of each incomplete chunk.
        skipped: number of bytes of each damaged range.
    """

    connections: dict[int, Connection] = field(default_factory=dict)
    chunks: list[Chunk] = field(default_factory=list)
    counts: Counter[int] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)
    unread: int = 0
    cut: list[int] = field(default_factory=list)
    skipped: list[int] = field(default_factory=list)
    promised: Counter[int] = field(default_factory=Counter)  # messages according to the index at the end
    starts: list[int] = field(default_factory=list)  # starts of chunks according to the index at the end


def chunk_entries(content: bytes, chunk: Chunk, found: BagContents) -> tuple[Int64, bool]:
    """Return the messages in the records of a chunk, and whether they match its index.

    Returns:
        (N, 5): KEY, TIME, PLACE, DATA, STOP.
    """
    entries = array("q")
    good, at = True, 0
    places = np.sort(chunk.listed[:, PLACE])
    while at < len(content):
        try:
            for record in records(content, at):
                at = record.stop
                if record.op == MESSAGE:
                    key, log_ns = u32(record.fields, b"conn"), time_ns(record.fields, b"time")
                    entries.extend((key, log_ns, record.start, record.data_at, record.stop))
                elif record.op == CONNECTION:
                    declared = read_connection(record.fields, content[record.data_at : record.stop])
                    good &= found.connections.setdefault(*declared) == declared[1]
                else:
                    raise struct.error("a record that has no place in a chunk")
                if len(entries) > 5 * MAX_MESSAGES:
                    raise RoboCacheError(f"more than {MAX_MESSAGES:,} messages in a chunk")
        except (struct.error, UnicodeDecodeError):
            good = False
            after = np.searchsorted(places, at, side="right")
            at = int(places[after]) if after < len(places) else len(content)
    rows = np.frombuffer(entries, np.int64).reshape(-1, 5)
    if len(places):
        good &= np.array_equal(_sorted(rows[:, :3]), _sorted(chunk.listed))
    return rows, good


def chunk_content(file: StoredFile, chunk: Chunk) -> bytes:
    """Return the records of a chunk; RoboCacheError if its compressed data is damaged or too long."""
    if chunk.stop - chunk.start > MAX_BYTES:
        raise RoboCacheError(f"{chunk.stop - chunk.start:,} bytes in a chunk, the limit is {MAX_BYTES:,}")
    data = file.read(chunk.start, chunk.stop)
    return bytes(decompress(chunk.codec, data, chunk.size if chunk.codec else len(data)))


def record_data(file: StoredFile, record: Record) -> bytes:
    """Return the data of a record other than a chunk; struct.error if it is too long."""
    if record.stop - record.data_at > MAX_DATA:
        raise struct.error("data of many megabytes")
    return file.read(record.data_at, record.stop)


def _sorted(rows: Int64) -> Int64:
    order = np.lexsort((rows[:, TIME], rows[:, KEY], rows[:, PLACE]))
    ordered: Int64 = rows[order]
    return ordered


# Finds the contents of a ROS 1 bag by a scan of its records. Chunks that are followed by an index are skipped.
#
# The index at the end of a bag lists the connections, and positions from which to continue after damage. It is compared
# with the data found. After a crash of the recorder, a bag has no index, and its last chunk is incomplete.


def read_contents(file: StoredFile) -> BagContents:
    """Return the contents of a file; RoboCacheError if it is not a bag of format 2.0."""
    magic = file.read(0, len(ROS1_MAGIC))
    if not magic.startswith(ANY_VERSION):
        raise RoboCacheError("not a ROS 1 bag (wrong first bytes); give a recording")
    if magic != ROS1_MAGIC:
        version = printable(magic[len(ANY_VERSION) :].decode(errors="replace").strip(), 10)
        raise RoboCacheError(f"a ROS 1 bag of format {version}, not 2.0; migrate it with 'rosbag reindex' of ROS 1")
    found = BagContents()
    index_at, promised = _read_header(file, found)
    indexed = _read_index(file, found, index_at)
    _walk(file, found, index_at if indexed else file.size)
    for chunk in found.chunks:
        if not chunk.index:
            _list_by_reading(file, found, chunk)
        elif not found.connections.keys() >= chunk.connections:
            _find_connections(file, found, chunk)
        for part in chunk.index:
            keys, counts = np.unique(part[:, KEY], return_counts=True)
            found.counts.update(dict(zip(keys.tolist(), counts.tolist(), strict=True)))
    _compare(found, *promised, indexed)
    return found


def _compare(found: BagContents, connections: int, chunks: int, indexed: bool) -> None:
    """Note lost data, and differences between the file and its header and index."""
    if found.unread:
        found.notes.append(f"{found.unread:,} chunks without an index are damaged and could not be read")
    if found.cut:
        found.notes.append(f"{len(found.cut):,} chunks are incomplete; {sum(found.cut):,} messages were recovered")
    if found.skipped:
        places = f"{len(found.skipped):,} place{'s' if len(found.skipped) > 1 else ''}"
        found.notes.append(f"{sum(found.skipped):,} bytes in {places} are damaged and were not read")
    if indexed and (chunks != len(found.chunks) or connections != len(found.connections)):
        found.notes.append(
            f"{len(found.chunks):,} of {chunks:,} chunks and {len(found.connections):,} of {connections:,} "
            "connections were found"
        )
    if indexed and found.promised != found.counts:
        promised_count = sum(found.promised.values())
        found.notes.append(f"{sum(found.counts.values()):,} of {promised_count:,} messages were found")
    unknown = sum(count for key, count in found.counts.items() if key not in found.connections)
    if unknown:
        found.notes.append(f"{unknown:,} messages belong to no declared topic")


def _read_header(file: StoredFile, found: BagContents) -> tuple[int, tuple[int, int]]:
    """Return the position of the index (0: none), and the numbers of connections and chunks."""
    try:
        record = read_record(file.read, len(ROS1_MAGIC), file.size)
        if record.op != BAG_HEADER:
            raise struct.error("another record")
        if record.fields.get(b"encryptor"):
            raise RoboCacheError("an encrypted ROS 1 bag; decrypt it with 'rosbag decrypt' of ROS 1")
        fields = record.fields
        return u64(fields, b"index_pos"), (u32(fields, b"conn_count"), u32(fields, b"chunk_count"))
    except struct.error:
        found.notes.append("its header is damaged, so its records were read one by one")
        return 0, (0, 0)


def _read_index(file: StoredFile, found: BagContents, at: int) -> bool:
    """Read the index at the end of a bag; return whether it is complete."""
    if not at:
        if not found.notes:
            found.notes.append("has no index, as after a crash of the recorder; its records were read one by one")
        return False
    try:
        if not len(ROS1_MAGIC) < at <= file.size:
            raise struct.error("an index outside of the file")
        while at < file.size:
            record = read_record(file.read, at, file.size)
            data = record_data(file, record)
            if record.op == CONNECTION:
                found.connections.setdefault(*read_connection(record.fields, data))
            elif record.op == CHUNK_INFO:
                if u32(record.fields, b"ver") != INDEX_VERSION or len(data) % 8:
                    raise struct.error("chunk information that does not fit")
                for key, count in struct.iter_unpack("<II", data):
                    found.promised[key] += count
                found.starts.append(u64(record.fields, b"chunk_pos"))
            else:
                raise struct.error("a record that has no place in an index")
            at = record.stop
    except (struct.error, UnicodeDecodeError):
        why = "is truncated" if at >= file.size else "is damaged"
        found.notes.append(f"its index {why}, so its records were read one by one")
        return False
    return True


def _walk(file: StoredFile, found: BagContents, end: int) -> None:
    """Find the chunks between the header and `end`. After damage, continue at the next chunk listed in the index."""
    at, starts = len(ROS1_MAGIC), sorted(found.starts)
    while at < end:
        try:
            at = _take(file, found, read_record(file.read, at, end))
            continue
        except (struct.error, UnicodeDecodeError):
            after = next((start for start in starts if at < start < end), None)
        if after is None:
            found.notes.append(f"its last {end - at:,} bytes are damaged or incomplete and were not read")
            return
        found.skipped.append(after - at)
        at = after


def _take(file: StoredFile, found: BagContents, record: Record) -> int:
    """Add one record; return the position of the next. struct.error or UnicodeDecodeError if it is damaged."""
    if record.op == CHUNK:
        codec = record.fields.get(b"compression", b"").decode()
        if codec not in CODECS:
            raise struct.error("another compression")
        size, stop = u32(record.fields, b"size"), record.stop
        if record.data_at == stop and not size and codec == "none":  # the recorder crashed before it wrote the length
            stop = file.size
        found.chunks.append(Chunk(record.data_at, stop, CODECS[codec], size))
        return stop
    if record.op == INDEX:
        count = u32(record.fields, b"count")
        if not found.chunks or u32(record.fields, b"ver") != INDEX_VERSION:
            raise struct.error("an index without its chunk")
        if record.stop - record.data_at != count * ENTRY.itemsize:
            raise struct.error("an index that does not fit")
        data = record_data(file, record)
        found.chunks[-1].list_messages(u32(record.fields, b"conn"), data)
    elif record.op == CONNECTION:
        found.connections.setdefault(*read_connection(record.fields, record_data(file, record)))
    elif record.op not in (BAG_HEADER, CHUNK_INFO):
        raise struct.error("a record that has no place outside of a chunk")
    return record.stop


def _list_by_reading(file: StoredFile, found: BagContents, chunk: Chunk) -> None:
    """List the messages of a chunk without an index by reading it."""
    try:
        entries, good = chunk_entries(chunk_content(file, chunk), chunk, found)
    except RoboCacheError:
        found.unread += 1
        return
    if not good:
        chunk.is_cut = True
        found.cut.append(len(entries))
    if len(entries):
        chunk.index.append(entries[:, : PLACE + 1])


def _find_connections(file: StoredFile, found: BagContents, chunk: Chunk) -> None:
    """Read the connections declared in a chunk, if there is no index."""
    with suppress(RoboCacheError):
        chunk_entries(chunk_content(file, chunk), chunk, found)


# Reads ROS 1 bags of format 2.0: complete bags, and the remaining data of truncated or damaged bags.
#
# A bag has no checksums of its messages, but each chunk is compared with the index after it.

_WALKED = 1 << 16  # bytes per read while chunks are skipped


class _Part(NamedTuple):
    first_ns: int
    last_ns: int
    number: int
    keys: frozenset[int]


class Ros1Bag:
    """An open ROS 1 bag; its messages use the ROS 1 serialization.

    Attributes:
        topics: all topics.
        start_ns: lower bound of the log times of all messages.

    Errors:
        RoboCacheError: not a ROS 1 bag of format 2.0.
    """

    has_checksums = False

    def __init__(self, path: AnyPath) -> None:
        self._file = StoredFile(path, _WALKED)
        with self._file.closed_on_error():
            self._contents = read_contents(self._file)
        self._lost: dict[int, int] = {}  # number of messages of damaged chunks, by start of the chunk
        self._read_notes: dict[str, None] = {}
        self._parts = sorted(
            _Part(int(times.min()), int(times.max()), number, chunk.connections)
            for number, chunk in enumerate(self._contents.chunks)
            if len(times := chunk.listed[:, TIME])
        )
        self.start_ns = min((part.first_ns for part in self._parts), default=0)
        self.topics = tuple(
            Topic(c.topic, c.type, self._contents.counts[key], c.definition, c.latched, "ros1")
            for key, c in self._contents.connections.items()
        )

    @property
    def notes(self) -> list[str]:
        """Notes on lost or damaged data; complete after all messages have been read."""
        lost = []
        if self._lost:
            chunks = f"{len(self._lost):,} of {len(self._contents.chunks):,} chunks are damaged"
            lost.append(f"{chunks}; {sum(self._lost.values()):,} messages could not be read")
        return [*self._contents.notes, *lost, *self._read_notes]

    def log_times(self) -> list[Group]:
        """The log times of the file as groups, separated by long pauses."""
        groups = joined(Group(part.first_ns, part.last_ns, 1) for part in self._parts)
        if len(groups) == 1 and all(part.last_ns - part.first_ns <= PAUSE_NS for part in self._parts):
            return [groups[0]._replace(size=sum(self._contents.counts.values()))]
        times = [part[:, TIME] for chunk in self._contents.chunks for part in chunk.index]
        return groups_of(np.concatenate(times)) if times else []

    def messages(self, topics: Collection[str], start_ns: int, stop_ns: int) -> Iterator[RawMessage]:
        """Yield messages in log order. Chunks that overlap in time are merged."""
        names = {key: c.topic for key, c in self._contents.connections.items() if c.topic in topics}
        wanted = [part for part in self._parts if names.keys() & part.keys]

        def read(part: _Part) -> tuple[int, list[RawMessage]]:
            return self._messages(self._contents.chunks[part.number], names, start_ns, stop_ns)

        parts = [part for part in wanted if part.last_ns >= start_ns and part.first_ns < stop_ns]
        yield from merged_parts(parts, read, lambda note: self._read_notes.setdefault(note))

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _messages(self, chunk: Chunk, names: dict[int, str], low: int, high: int) -> tuple[int, list[RawMessage]]:
        try:
            content = chunk_content(self._file, chunk)
            entries, good = chunk_entries(content, chunk, self._contents)
        except RoboCacheError:
            self._lost[chunk.start] = len(chunk.listed)
            return 0, []
        if not good and not chunk.is_cut:
            self._read_notes["the messages or topics of some chunks are not those in the index"] = None
        times = entries[:, TIME]
        wanted = np.isin(entries[:, KEY], list(names)) & (low <= times) & (times < high)
        found = [
            RawMessage(names[key], log_ns, content[data_at:stop])
            for key, log_ns, _, data_at, stop in entries[wanted].tolist()
        ]
        return len(content), found


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
