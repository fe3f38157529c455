"""Run logs: all that the engine of a node took, in its order, and what it computed; replayed to the bit.

A run log is an MCAP file. Its topics have the messages with their arrivals as log times. `/robocache/engine` has the
calls of the engine: after a head (now_ns, limit, kind), each computed tick with its time, its row (float32), and a
digest of each image and grid. The order of the file is that of the engine.
"""

from __future__ import annotations

import hashlib
import json
import struct
import threading
import zlib
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from robocache_ros.bags.storage import mcap
from robocache_ros.bags.storage.codecs import MAX_BYTES
from robocache_ros.engine import Frames, FusionEngine, Ingest, tick_grid
from robocache_ros.engine.offline import reach_ns
from robocache_ros.errors import RoboCacheError, number_of, printable
from robocache_ros.recorder.episodes import EpisodeWriter, Message, RecordedTopic
from robocache_ros.recorder.mcap import McapWriter, definition_text, read_metadata
from robocache_ros.spec import TF_STATIC, TF_TYPE, FusionSpec, load_spec
from robocache_ros.spec.layout import Layout
from robocache_ros.storage.downloads import StoredFile
from robocache_ros.units import NS_PER_S

RUN, RUN_END = "robocache_run", "robocache_run_end"  # names of the metadata
CALLS = RecordedTopic("/robocache/engine", "robocache/engine", encoding="robocache_engine")
_HEAD = struct.Struct("<qqB")  # now_ns, limit (-1: none), kind
_ADVANCED, _RESET, _UNCHECKED = 0, 1, 2  # kinds; unchecked: advanced, without the ticks that were computed
_TICK = struct.Struct("<q")
DIGEST_BYTES = 16
MAX_NOTES = 20


class RunLog:
    """Writes the log of a run, in a thread.

    Args:
        path: of the new file.
        spec: of the engine.
        definitions: of the message types, by name.
        options: of the engine, such as `normalized`, for the metadata.

    Errors:
        RoboCacheError: the file exists or cannot be written, or two streams have one topic with different `qos`.
    """

    def __init__(
        self, path: Path, spec: FusionSpec, definitions: Mapping[str, str], options: Mapping[str, Any]
    ) -> None:
        from robocache_ros import __version__

        self._layout = Layout(spec)
        self._topics: dict[str, RecordedTopic] = {TF_STATIC: RecordedTopic(TF_STATIC, TF_TYPE, latched=True)}
        qos: dict[str, Any] = {}
        for feed in spec.feeds:
            if qos.setdefault(feed.topic, (feed.qos, feed.type)) != (feed.qos, feed.type):
                raise RoboCacheError(
                    f"streams.{feed.name}.qos: differs from that of another stream of {printable(feed.topic, 60)}; "
                    "a run is recorded if both are equal"
                )
            text = definition_text(feed.type, definitions) if feed.type in definitions else ""
            self._topics[feed.topic] = RecordedTopic(feed.topic, feed.type, text)
        metadata = {"robocache_ros": __version__, "spec": json.dumps(spec.to_dict()), "options": json.dumps(options)}
        try:
            self._file = EpisodeWriter(path, metadata, (*self._topics.values(), CALLS), kind=RUN)
        except OSError as error:
            raise RoboCacheError(
                f"{printable(path)}: cannot be written ({error.strerror}); give another file"
            ) from None
        self._lock = threading.Lock()  # static transforms come from another thread
        self._newest_ns = 0

    @property
    def lost(self) -> int:
        """Number of messages and calls that are not in the file."""
        return self._file.lost.total()

    def message(self, topic: str, data: bytes | memoryview, arrival_ns: int) -> None:
        """Log a message that the engine takes next."""
        self._put(self._topics[topic], arrival_ns, bytes(data))  # its memory is used again

    def static_transforms(self, data: bytes) -> None:
        """Log a message of /tf_static that the engine takes next."""
        self._put(self._topics[TF_STATIC], self._newest_ns, bytes(data))

    def advanced(self, now_ns: int, limit: int | None, frames: Frames) -> None:
        """Log a call of `advance` and the ticks that it gave."""
        ticks = b"".join(_ticks(self._layout, frames))
        self._put(CALLS, now_ns, _HEAD.pack(now_ns, -1 if limit is None else limit, _ADVANCED) + ticks)

    def reset(self) -> None:
        """Log that the engine is reset next."""
        self._put(CALLS, self._newest_ns, _HEAD.pack(0, -1, _RESET))

    def close(self) -> None:
        """End the file."""
        self._file.end("success")

    def _put(self, topic: RecordedTopic, log_ns: int, data: bytes) -> None:
        with self._lock:
            self._newest_ns = log_ns
            self._file.put(Message(topic, log_ns, log_ns, data))


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
            value = frames.media[stream.name][index].contiguous().cpu().numpy()
            head = repr((value.shape, value.dtype.str)).encode()
            yield hashlib.blake2b(head + value.tobytes(), digest_size=DIGEST_BYTES).digest()


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
        stream, column: what differs; column is `image` or `voxels` for media, and empty if a tick is missing.
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


@dataclass
class Verification:
    """What a replay found.

    Attributes:
        ticks: number of compared ticks; messages: number of replayed messages.
        first: where it first differs; None: nowhere.
        different: number of ticks that differ.
        first_tick, last_tick: index of the first and the last compared tick.
        notes: on damage and losses of the file, one line each.
    """

    ticks: int = 0
    messages: int = 0
    first: Difference | None = None
    different: int = 0
    first_tick: int | None = None
    last_tick: int | None = None
    notes: list[str] = field(default_factory=list)


class _Record(NamedTuple):
    topic: str
    log_ns: int
    data: bytes


class RunReader:
    """An open run log."""

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

    def records(self) -> Iterator[_Record]:
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

    def _chunk(self, file: StoredFile, start: int, stop: int, names: Mapping[int, str]) -> Iterator[_Record]:
        if stop - start > MAX_BYTES:
            raise RoboCacheError(f"{printable(self.path, 60)}: a chunk of {stop - start:,} bytes; copy the file again")
        body = file.exact(start, stop)
        head = mcap.read_chunk_head(body)
        content = body[head.data_at : head.data_at + head.length]
        if head.compression:
            raise RoboCacheError(f"{printable(self.path, 60)}: it is compressed; decompress it")
        if zlib.crc32(content) != head.checksum:
            self._note(f"the checksum of the chunk at byte {start:,} does not match: it was altered or is damaged")
        for op, at, end in mcap.records(content):
            if op == mcap.MESSAGE and end - at >= mcap.MESSAGE_HEAD.size:
                key, _, log_ns, _ = mcap.MESSAGE_HEAD.unpack_from(content, at)
                if key in names:
                    yield _Record(names[key], log_ns, content[at + mcap.MESSAGE_HEAD.size : end])

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

    def _note(self, text: str) -> None:
        if len(self.notes) < MAX_NOTES:
            self.notes.append(text)


def verify(path: str | Path) -> Verification:
    """Replay a run on the CPU, and compare every tick with the recorded one, bit for bit.

    Errors:
        RoboCacheError: not a run log, or it cannot be read.
    """
    run = RunReader(path)
    found = Verification(notes=run.notes)
    if run.options.get("jpeg") == "gpu":
        run.notes.append("jpeg images were decoded on the GPU, which differs by a few counts")
    for record, recorded, computed in _replayed(run, found):
        if recorded is None:
            continue
        for index in range(max(len(recorded), len(computed))):
            one = recorded[index] if index < len(recorded) else None
            other = computed[index] if index < len(computed) else None
            different = _difference(run.layout, one, other)
            tick_ns = (one or other or Tick(record.log_ns, np.empty(0, np.float32), ())).tick_ns
            tick = tick_grid.first_at_or_after(tick_ns, run.spec.rate_hz)
            found.ticks += 1
            found.first_tick = tick if found.first_tick is None else found.first_tick
            found.last_tick = tick
            found.different += different is not None
            found.first = found.first or different
    return found


def cut(path: str | Path, out: str | Path, first: int, last: int) -> Verification:
    """Write the part of a run that recomputes some of its ticks as the whole run does: a file for a bug report.

    Args:
        path: of the run log.
        out: the new file.
        first: index of the first tick on the tick grid.
        last: index of the last tick.

    Returns:
        The verification of the new file.

    Errors:
        RoboCacheError: the run has not all of these ticks, or the new file exists or cannot be written.
    """
    run = RunReader(path)
    wanted: dict[int, Tick] = {}
    for _, _, computed in _replayed(run, Verification()):
        index = {tick_grid.first_at_or_after(tick.tick_ns, run.spec.rate_hz): tick for tick in computed}
        wanted |= {number: tick for number, tick in index.items() if first <= number <= last}
        if last in wanted:
            break
    if not first <= last or len(wanted) != last - first + 1:
        raise RoboCacheError(
            f"{printable(path, 60)}: ticks {first} to {last}: the run has {number_of(len(wanted), 'of them', '')}; "
            "give ticks that --verify names"
        )
    reach = reach_ns(FusionEngine(run.spec, "cpu")) + NS_PER_S
    for history_ns in (reach, 8 * reach, None):
        _write_cut(RunReader(path), Path(out), first, last, history_ns)
        checked = RunReader(out)
        got = {
            tick_grid.first_at_or_after(tick.tick_ns, run.spec.rate_hz): tick
            for _, _, computed in _replayed(checked, Verification())
            for tick in computed
        }
        same = [not _difference(run.layout, tick, got.get(number)) for number, tick in wanted.items()]
        if all(same) or history_ns is None:
            break
        Path(out).unlink()
    return verify(out)


def _write_cut(run: RunReader, out: Path, first: int, last: int, history_ns: int | None) -> None:
    """Write the records from some time before a tick to the last one."""
    rate_hz = run.spec.rate_hz
    start_ns = 0 if history_ns is None else tick_grid.tick_ns(first, rate_hz) - history_ns
    metadata = {**run.metadata, "cut": json.dumps({"first": first, "last": last, "of": run.path.name})}
    try:
        file = McapWriter(out, {RUN: metadata})
    except OSError as error:
        raise RoboCacheError(f"{printable(out)}: cannot be written ({error.strerror}); give another file") from None
    try:
        channels: dict[str, int] = {}
        types = {feed.topic: feed.type for feed in run.spec.feeds} | {TF_STATIC: TF_TYPE, CALLS.name: CALLS.type}
        for record in run.records():
            data, done = record.data, False
            if record.log_ns < start_ns and record.topic != TF_STATIC:
                continue
            if record.topic == CALLS.name and data[_HEAD.size - 1] == _ADVANCED:
                numbers = [tick_grid.first_at_or_after(tick.tick_ns, rate_hz) for tick in run.ticks(data)]
                if not numbers or min(numbers) < first:
                    now_ns, limit, _ = _HEAD.unpack_from(data)
                    data = _HEAD.pack(now_ns, limit, _UNCHECKED)
                done = bool(numbers) and max(numbers) >= last
            if record.topic not in channels:
                kind = types.get(record.topic, "")
                encoding = CALLS.encoding if record.topic == CALLS.name else "cdr"
                text = run.definitions.get(kind, "")
                channels[record.topic] = file.add_channel(record.topic, kind, text, encoding=encoding)
            file.write(channels[record.topic], record.log_ns, record.log_ns, data)
            if done:
                break
        file.add_metadata(RUN_END, {"outcome": "success", "lost": "{}"})
        file.close()
    except OSError as error:
        raise RoboCacheError(f"{printable(out)}: cannot be written ({error.strerror}); free space") from None
    finally:
        file.abandon()


def _replayed(run: RunReader, found: Verification) -> Iterator[tuple[_Record, list[Tick] | None, list[Tick]]]:
    """Replay a run; yield each call of `advance` with the recorded ticks (None: not recorded) and the computed ones."""
    engine: FusionEngine | None = None
    feeds: dict[str, list[str]] = {}
    for feed in run.spec.feeds:
        feeds.setdefault(feed.topic, []).append(feed.name)
    for record in run.records():
        if engine is None:  # the definitions are complete now
            engine = FusionEngine(run.spec, "cpu", normalized=bool(run.options.get("normalized")))
            ingest = Ingest(run.spec, engine, run.definitions)
        if record.topic == CALLS.name:
            try:
                now_ns, limit, kind = _HEAD.unpack_from(record.data)
                recorded = None if kind == _UNCHECKED else run.ticks(record.data)
            except struct.error:
                run._note("a call of the engine is damaged and was left out")
                continue
            if kind == _RESET:
                engine.reset("as in the run")
                continue
            frames = engine.advance(now_ns, None if limit < 0 else limit)
            computed = run.ticks(bytes(_HEAD.size) + b"".join(_ticks(run.layout, frames)))
            yield record, recorded, computed
            continue
        found.messages += 1
        if record.topic == TF_STATIC and TF_STATIC not in feeds:
            ingest.static_transforms(record.data)
        for name in feeds.get(record.topic, ()):
            ingest.serialized(name, record.data, record.log_ns)


def _difference(layout: Layout, recorded: Tick | None, computed: Tick | None) -> Difference | None:
    """The first difference of two ticks."""
    rate_hz = layout.spec.rate_hz
    there = recorded or computed
    assert there
    where = tick_grid.first_at_or_after(there.tick_ns, rate_hz), there.tick_ns
    if recorded is None or computed is None or recorded.tick_ns != computed.tick_ns:
        shown = [f"tick {each.tick_ns} ns" if each else "no tick" for each in (recorded, computed)]
        return Difference(*where, "the tick", "", shown[0], shown[1])
    wrong = np.flatnonzero(recorded.row.view("<u4") != computed.row.view("<u4"))
    if len(wrong):
        column = layout.columns[wrong[0]]
        values = (repr(float(tick.row[wrong[0]])) for tick in (recorded, computed))
        return Difference(*where, column.stream, column.name, *values)
    for stream, one, other in zip(layout.spec.media, recorded.digests, computed.digests, strict=True):
        if one != other:
            return Difference(*where, stream.name, stream.kind, one.hex(), other.hex())
    return None
