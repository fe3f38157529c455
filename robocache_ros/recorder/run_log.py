"""Run logs: all that the engine of a node and the runner of a policy took, in their order, and what they computed.

A run log is an MCAP file. Its topics have the messages with their arrivals as log times. `/robocache/engine` has the
calls of the engine: after a head (now_ns, limit, kind), each computed tick with its time, its row (float32), and a
digest of each image and grid. `/robocache/policy` has the events of a runner: a length, a JSON object of that many
bytes, and the arrays that it lists. Log times are those of the clock of the run; the publish time of an event is the
wall clock. The order of the file is that of the engine and of the runner.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
import threading
import time
import zlib
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from robocache_ros.bags.storage import mcap
from robocache_ros.bags.storage.codecs import MAX_BYTES
from robocache_ros.engine import Frames, FusionEngine, Ingest, tick_grid
from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.recorder.episodes import EpisodeWriter, Message, RecordedTopic
from robocache_ros.recorder.mcap import definition_text, read_metadata
from robocache_ros.spec import TF_STATIC, TF_TYPE, FusionSpec, load_spec
from robocache_ros.spec.layout import Layout
from robocache_ros.storage.downloads import StoredFile
from robocache_ros.storage.errors import file_errors

RUN, RUN_END = "robocache_run", "robocache_run_end"  # names of the metadata
CALLS = RecordedTopic("/robocache/engine", "robocache/engine", encoding="robocache_engine")
EVENTS = RecordedTopic("/robocache/policy", "robocache/policy", encoding="robocache_policy")
_HEAD = struct.Struct("<qqB")  # now_ns, limit (-1: none), kind
_ADVANCED, _RESET, _UNCHECKED = 0, 1, 2  # kinds; unchecked: advanced, without the ticks that were computed
_TICK = struct.Struct("<q")
DIGEST_BYTES = 16
MAX_NOTES = 20
MAX_RECENT = 1024  # ticks with which the observations of a policy are compared, besides those of its window
_LENGTH = struct.Struct("<I")
_DTYPES = ("|b1", "|u1", "|i1", "<u2", "<i2", "<i4", "<u4", "<i8", "<u8", "<f2", "<f4", "<f8")  # of an event's arrays
_MAX_DIMENSIONS = 8


class RunLog:
    """Writes the log of a run, in a thread.

    Args:
        path: of the new file.
        spec: of the engine and the runner.
        definitions: of the message types, by name; None: no engine is logged, only the events of a runner.
        options: of the engine, such as `normalized`, for the metadata.

    Errors:
        RoboCacheError: the file exists or cannot be written, or two streams have one topic with different `qos`.
    """

    def __init__(
        self,
        path: Path,
        spec: FusionSpec,
        definitions: Mapping[str, str] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        from robocache_ros import __version__

        self._layout = Layout(spec)
        self._topics: dict[str, RecordedTopic] = {}
        if definitions is not None:
            self._topics = self._topics_of(spec, definitions)
        metadata = {
            "robocache_ros": __version__,
            "spec": json.dumps(spec.to_dict()),
            "options": json.dumps(options or {}),
        }
        declared = (*self._topics.values(), *([] if definitions is None else [CALLS]), EVENTS)
        with file_errors(path):
            self._file = EpisodeWriter(path, metadata, declared, kind=RUN)
        self._lock = threading.Lock()  # static transforms and events come from other threads
        self._engine_ns = self._runner_ns = 0  # the last times of both, which follow the clock in threads of their own

    @staticmethod
    def _topics_of(spec: FusionSpec, definitions: Mapping[str, str]) -> dict[str, RecordedTopic]:
        topics = {TF_STATIC: RecordedTopic(TF_STATIC, TF_TYPE, latched=True)}
        qos: dict[str, Any] = {}
        for feed in spec.feeds:
            if qos.setdefault(feed.topic, (feed.qos, feed.type)) != (feed.qos, feed.type):
                raise RoboCacheError(
                    f"streams.{feed.name}.qos: differs from that of another stream of {printable(feed.topic, 60)}; "
                    "a run is recorded if both are equal"
                )
            text = definition_text(feed.type, definitions) if feed.type in definitions else ""
            topics[feed.topic] = RecordedTopic(feed.topic, feed.type, text)
        return topics

    @property
    def lost(self) -> int:
        """Number of messages and calls that are not in the file."""
        return self._file.lost.total()

    def message(self, topic: str, data: bytes | memoryview, arrival_ns: int) -> None:
        """Log a message that the engine takes next."""
        self._put(self._topics[topic], arrival_ns, bytes(data))  # its memory is used again

    def static_transforms(self, data: bytes) -> None:
        """Log a message of /tf_static that the engine takes next."""
        self._put(self._topics[TF_STATIC], None, bytes(data))

    def advanced(self, now_ns: int, limit: int | None, frames: Frames) -> None:
        """Log a call of `advance` and the ticks that it gave."""
        ticks = b"".join(_ticks(self._layout, frames))
        self._put(CALLS, now_ns, _HEAD.pack(now_ns, -1 if limit is None else limit, _ADVANCED) + ticks)

    def reset(self) -> None:
        """Log that the engine is reset next."""
        self._put(CALLS, None, _HEAD.pack(0, -1, _RESET))

    def event(
        self,
        name: str,
        facts: Mapping[str, Any],
        arrays: Mapping[str, NDArray[Any]] | None = None,
        now_ns: int | None = None,
    ) -> None:
        """Log an event of a runner: values of JSON and arrays of numbers by name, which are copied.

        `now_ns`: time of the run's clock, if it is known.
        """
        self._put(EVENTS, now_ns, pack_event(Event(name, facts, arrays or {})))

    def close(self) -> None:
        """End the file."""
        self._file.end("success")

    def _put(self, topic: RecordedTopic, log_ns: int | None, data: bytes) -> None:
        with self._lock:
            if topic is EVENTS:
                self._runner_ns = log_ns or self._runner_ns or self._engine_ns
                message = Message(topic, self._runner_ns, time.time_ns(), data)
            else:
                self._engine_ns = self._engine_ns if log_ns is None else log_ns
                message = Message(topic, self._engine_ns, self._engine_ns, data)
            self._file.put(message)


class Event(NamedTuple):
    """An event of a runner: its name, and what it has; see `policy.runner`."""

    name: str
    facts: Mapping[str, Any]
    arrays: Mapping[str, NDArray[Any]]


def pack_event(event: Event) -> bytes:
    """Return an event as bytes."""
    listed = [(name, array.dtype.str, array.shape) for name, array in event.arrays.items()]
    head = json.dumps({"event": event.name, "facts": event.facts, "arrays": listed}).encode()
    return b"".join((_LENGTH.pack(len(head)), head, *(array.tobytes() for array in event.arrays.values())))


def read_event(data: bytes) -> Event:
    """Return the event of some bytes.

    Errors:
        ValueError, KeyError, TypeError, struct.error, RecursionError: they are damaged.
    """
    (length,) = _LENGTH.unpack_from(data)
    at = _LENGTH.size + length
    head = json.loads(data[_LENGTH.size : at])
    arrays = {}
    for name, dtype, shape in head["arrays"]:
        if dtype not in _DTYPES or len(shape) > _MAX_DIMENSIONS or any(type(n) is not int or n < 0 for n in shape):
            raise ValueError("an array of another type or shape")
        array = np.frombuffer(data, dtype, math.prod(shape), at) if math.prod(shape) else np.empty(0, dtype)
        arrays[str(name)] = array.reshape(shape).copy()  # aligned, and writable as torch wants it
        at += array.nbytes
    if at != len(data):
        raise ValueError("an event of another length")
    return Event(str(head["event"]), dict(head["facts"]), arrays)


class LoggedEngine(FusionEngine):
    """A fusion engine whose calls of `advance` are logged while `run_log` is set."""

    run_log: RunLog | None = None

    def advance(self, now_ns: int, limit: int | None = None) -> Frames:
        """Compute the ticks that are due, and log them."""
        frames = super().advance(now_ns, limit)
        if self.run_log:
            self.run_log.advanced(now_ns, limit, frames)
        return frames


def _ticks(layout: Layout, frames: Frames) -> Iterator[bytes]:
    """Yield time, row and digests of each tick."""
    rows = frames.rows().numpy() if len(frames) else np.empty((0, layout.row_width), np.float32)
    for index, tick_ns in enumerate(frames.ticks_ns.tolist()):
        yield _TICK.pack(tick_ns) + rows[index].astype("<f4", copy=False).tobytes()
        for stream in layout.spec.media:
            yield media_digest(frames.media[stream.name][index])


def media_digest(value: Tensor) -> bytes:
    """The digest of an image or a grid."""
    array = value.contiguous().cpu().numpy()
    head = repr((array.shape, array.dtype.str)).encode()
    return hashlib.blake2b(head + array.tobytes(), digest_size=DIGEST_BYTES).digest()


class Tick(NamedTuple):
    """A computed tick: its time, its row (C,) and the digests of its media, in the order of the spec."""

    tick_ns: int
    row: NDArray[np.float32]
    digests: tuple[bytes, ...]


@dataclass(frozen=True)
class Difference:
    """Where a replay first differs from the run.

    Attributes:
        tick: index on the tick grid.
        stream, column: what differs; column is `image` or `voxels` for media, and empty if something is missing.
        recorded, computed: the values, or what is missing.
    """

    tick: int
    tick_ns: int
    stream: str
    column: str
    recorded: str
    computed: str

    def __str__(self) -> str:
        what = f"{self.stream}, {self.column}" if self.column else self.stream
        return f"tick {self.tick} ({self.tick_ns} ns), {what}: recorded {self.recorded}, computed {self.computed}"


class Record(NamedTuple):
    """A message of a run log."""

    topic: str
    log_ns: int
    publish_ns: int
    data: bytes


class RunReader:
    """Reads a run log.

    Attributes:
        spec, options: of the engine.
        definitions: of the message types, by name, as far as the file has been read.
        notes: on damage and losses, one line each.

    Errors:
        RoboCacheError: not a run log, or it cannot be read.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        found = read_metadata(self.path)
        head = found.get(RUN)
        if head is None:
            raise RoboCacheError(
                f"{printable(path)}: not a run log; give one that the parameter record_run has written"
            )
        self.metadata = head
        try:
            self.spec = load_spec(json.loads(head["spec"]))
            self.options = dict(json.loads(head["options"]))
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise RoboCacheError(
                f"{printable(path, 60)}: its metadata are damaged ({printable(error, 60)}); copy it again"
            ) from None
        self.layout = Layout(self.spec)
        self.notes: list[str] = []
        ending = found.get(RUN_END)
        if ending is None:
            self.notes.append("the run has no end, as after a crash of the node; all that was written is compared")
        elif ending.get("lost", "{}") != "{}":
            self.notes.append(f"not everything was recorded, because of the disk: {printable(ending['lost'], 100)}")
        self.definitions: dict[str, str] = {}
        self._feeds: dict[str, list[str]] = {}  # by topic
        for feed in self.spec.feeds:
            self._feeds.setdefault(feed.topic, []).append(feed.name)

    def push(self, record: Record, ingest: Ingest) -> None:
        """Push a message as the node did."""
        if record.topic == TF_STATIC and TF_STATIC not in self._feeds:
            ingest.static_transforms(record.data)
        for name in self._feeds.get(record.topic, ()):
            ingest.serialized(name, record.data, record.log_ns)

    def records(self) -> Iterator[Record]:
        """Yield messages and calls in the order of the file; damage is noted, and what can be read is used."""
        names: dict[int, str] = {}
        with closing(StoredFile(self.path)) as file:
            for op, start, stop in mcap.file_records(file, len(mcap.MCAP_MAGIC), file.size):
                with suppress(struct.error, UnicodeDecodeError):
                    if op == mcap.SCHEMA:
                        _, kind, text = mcap.read_schema(file.exact(start, stop))
                        if text:
                            self.definitions[kind] = text
                    elif op == mcap.CHANNEL:
                        channel = mcap.read_channel(file.exact(start, stop))
                        names[channel.key] = channel.topic
                    elif op == mcap.CHUNK:
                        yield from self._chunk(file, start, stop, names)
                    elif op == mcap.DATA_END:
                        break

    def _chunk(self, file: StoredFile, start: int, stop: int, names: Mapping[int, str]) -> Iterator[Record]:
        if stop - start > MAX_BYTES:
            raise RoboCacheError(f"{printable(self.path, 60)}: a chunk of {stop - start:,} bytes; copy the file again")
        body = file.exact(start, stop)
        head = mcap.read_chunk_head(body)
        content = body[head.data_at : head.data_at + head.length]
        if head.compression:
            raise RoboCacheError(f"{printable(self.path, 60)}: it is compressed; decompress it")
        if zlib.crc32(content) != head.checksum:
            self.note(f"the checksum of the chunk at byte {start:,} does not match: it was altered or is damaged")
        for op, at, end in mcap.records(content):
            if op == mcap.MESSAGE and end - at >= mcap.MESSAGE_HEAD.size:
                key, _, log_ns, publish_ns = mcap.MESSAGE_HEAD.unpack_from(content, at)
                if key in names:
                    yield Record(names[key], log_ns, publish_ns, content[at + mcap.MESSAGE_HEAD.size : end])

    def ticks(self, data: bytes) -> list[Tick]:
        """The ticks of a call; struct.error if it is damaged."""
        width, count = 4 * self.layout.row_width, len(self.spec.media)
        size = _TICK.size + width + count * DIGEST_BYTES
        rest = len(data) - _HEAD.size
        if rest % size:
            raise struct.error("a call of another length")
        found = []
        for at in range(_HEAD.size, len(data), size):
            (tick_ns,) = _TICK.unpack_from(data, at)
            row = np.frombuffer(data, "<f4", self.layout.row_width, at + _TICK.size)
            first = at + _TICK.size + width
            places = range(first, first + count * DIGEST_BYTES, DIGEST_BYTES)
            found.append(Tick(tick_ns, row, tuple(data[place : place + DIGEST_BYTES] for place in places)))
        return found

    def events(self) -> Iterator[Event]:
        """Yield the events of the runner in their order; damaged ones are noted and left out."""
        for record in self.records():
            if record.topic == EVENTS.name and (event := self.event(record.data)):
                yield event

    def event(self, data: bytes) -> Event | None:
        """The event of some bytes; None if they are damaged, which is noted."""
        try:
            return read_event(data)
        except (ValueError, KeyError, TypeError, struct.error, RecursionError) as error:
            self.note(f"an event of the policy is damaged and was left out ({printable(error, 60)})")
            return None

    def tick_of(self, tick_ns: int) -> int:
        """The index of a tick on the tick grid."""
        return tick_grid.first_at_or_after(tick_ns, self.spec.rate_hz)

    def note(self, text: str) -> None:
        """Add a note, if it is not one of many."""
        if len(self.notes) < MAX_NOTES:
            self.notes.append(text)


def spec_of_run(path: Path) -> FusionSpec | None:
    """Return the spec of a run log; None for a file of another kind. RoboCacheError: it cannot be read."""
    return RunReader(path).spec if RUN in read_metadata(path) else None


class Call(NamedTuple):
    """A call of `advance`: the ticks that the run logged (None: they are not compared), and those of the replay."""

    recorded: list[Tick] | None
    computed: list[Tick]


def unchecked_call(data: bytes) -> bytes:
    """Return a call of `advance` without the ticks that the run logged; other calls as they are."""
    now_ns, limit, kind = _HEAD.unpack_from(data)
    return _HEAD.pack(now_ns, limit, _UNCHECKED) if kind == _ADVANCED else data


class EngineReplay:
    """Recomputes the ticks of a run on the CPU.

    Attributes:
        messages: number of replayed messages.
        ticks: the newest computed ticks that are compared, by their index on the tick grid.
    """

    def __init__(self, run: RunReader) -> None:
        self.messages = 0
        self.ticks: OrderedDict[int, Tick] = OrderedDict()
        self._run = run
        self._engine: FusionEngine | None = None

    def take(self, record: Record) -> Call | None:
        """Replay a record of the run, in the order of the file; returns what a call of `advance` has computed."""
        run = self._run
        if self._engine is None:  # the definitions are complete now
            self._engine = FusionEngine(run.spec, "cpu", normalized=bool(run.options.get("normalized")))
            self._ingest = Ingest(run.spec, self._engine, run.definitions)
        if record.topic == CALLS.name:
            return self._call(self._engine, record)
        self.messages += 1
        run.push(record, self._ingest)
        return None

    def _call(self, engine: FusionEngine, record: Record) -> Call | None:
        run = self._run
        try:
            now_ns, limit, kind = _HEAD.unpack_from(record.data)
            recorded = None if kind == _UNCHECKED else run.ticks(record.data)
        except struct.error:
            run.note("a call of the engine is damaged and was left out")
            return None
        if kind == _RESET:
            engine.reset("as in the run")
            self.ticks.clear()
            return None
        frames = engine.advance(now_ns, None if limit < 0 else limit)
        computed = run.ticks(bytes(_HEAD.size) + b"".join(_ticks(run.layout, frames)))
        for tick in computed if recorded is not None else ():
            index = run.tick_of(tick.tick_ns)
            if self.ticks and index <= next(reversed(self.ticks)):
                self.ticks.clear()  # the clock went back
            self.ticks[index] = tick
            if len(self.ticks) > run.spec.horizon + MAX_RECENT:
                self.ticks.popitem(last=False)
        return Call(recorded, computed)


def tick_difference(layout: Layout, recorded: Tick | None, computed: Tick | None) -> Difference | None:
    """The first difference of two ticks."""
    there = recorded or computed
    assert there
    where = tick_grid.first_at_or_after(there.tick_ns, layout.spec.rate_hz), there.tick_ns
    if recorded is None or computed is None or recorded.tick_ns != computed.tick_ns:
        words = [f"tick {each.tick_ns} ns" if each else "no tick" for each in (recorded, computed)]
        return Difference(*where, "the tick", "", *words)
    wrong = np.flatnonzero(recorded.row.view("<u4") != computed.row.view("<u4"))
    if len(wrong):
        column = layout.columns[wrong[0]]
        return Difference(*where, column.stream, column.name, *shown(recorded.row[wrong[0]], computed.row[wrong[0]]))
    for stream, one, other in zip(layout.spec.media, recorded.digests, computed.digests, strict=True):
        if one != other:
            return Difference(*where, stream.name, stream.kind, one.hex(), other.hex())
    return None


def shown(*values: np.float32) -> list[str]:
    """Return numbers as text, with their bits if the text is the same."""
    texts = [repr(float(value)) for value in values]
    return (
        texts
        if len(set(texts)) > 1
        else [f"{text} (0x{value.tobytes()[::-1].hex()})" for text, value in zip(texts, values, strict=True)]
    )
