"""Where episodes begin and end: topics, files, times without motion; their outcome; recordings that are refused."""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from robocache_ros.bags.fuse import BagRun
from robocache_ros.bags.reader import Bag
from robocache_ros.decode import DecodeError
from robocache_ros.decode.cdr import read_message
from robocache_ros.decode.definitions import message_type
from robocache_ros.engine.frames import Frames
from robocache_ros.errors import RoboCacheError, number_of, printable
from robocache_ros.exporter.episodes import EpisodeCutter, Labels
from robocache_ros.exporter.planned_recording import Moment
from robocache_ros.exporter.recordings import EPISODE_KEYS, MAX_CSV_BYTES, RowKind, read_table, values_of
from robocache_ros.formats.pieces import EpisodeInfo, runs
from robocache_ros.formats.recording import ExportedRecording
from robocache_ros.spec import FusionSpec, Layout, StreamQuality, StreamSpec
from robocache_ros.spec.dataset import DatasetOptions
from robocache_ros.spec.keys import Problems, refusal
from robocache_ros.storage.paths import AnyPath
from robocache_ros.untrusted_files import read_text

BOOL, STRING = "std_msgs/msg/Bool", "std_msgs/msg/String"
MAX_CHANGES = 100_000
TEXT_LIMIT = 1000  # characters
_WITH_VALUE = re.compile(r"std_msgs/msg/(Bool|String|Byte|Char|U?Int(8|16|32|64))")

Value = bool | int | str | None


def read_changes(bag: Bag, topic: str, option: str, notes: list[str], type_: str = "") -> list[tuple[int, Value]]:
    """Read the changes of the value of a topic: a bool, an integer or a text of std_msgs; other messages are events.

    Returns the log time in ns and the value from then on, None for an event: each one is a change. `option` names the
    topic in errors; it must have the type `type_`, if one is given. A note says which messages were left out.

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
    if bad:
        notes.append(f"{topic}: {bad} messages cannot be decoded and were left out")
    return changes


def _value(type_: str, data: Value) -> Value:
    """Return a bool as one, and a text as one line with single spaces."""
    if isinstance(data, str):
        return " ".join("".join(c if c.isprintable() else " " for c in data).split())
    return bool(data) if type_ == BOOL else data


SUFFIXES = (".yaml", ".csv")
MAX_EPISODES = 100_000
ROWS = RowKind("episodes", "{from: SECONDS, to: SECONDS}", EPISODE_KEYS)


@dataclass(frozen=True)
class StatedEpisode:
    """An episode as a file states it: from <= log time < to."""

    start: Moment | None  # None: from the start of the recording
    stop: Moment | None  # None: to its end
    task: str | None
    success: bool | None


def episode_file(recording: AnyPath) -> AnyPath | None:
    """Return the file with the episodes of a recording; None if there is none.

    It is `episodes.yaml` or `episodes.csv` in the folder of a recording, and `<name>.episodes.yaml` or
    `<name>.episodes.csv` beside a recording that is the file `<name>.<suffix>`.
    """
    stem = recording / "episodes" if recording.is_dir() else recording.with_suffix(".episodes")
    found = [path for path in (stem.with_name(stem.name + suffix) for suffix in SUFFIXES) if path.exists()]
    if len(found) > 1:
        raise RoboCacheError(f"{printable(found[0], 60)}: there is {found[1].name} too; remove one of them")
    return found[0] if found else None


def episode_text(path: AnyPath) -> str:
    """Return the text of such a file; RoboCacheError if it cannot be read, or is too large."""
    return read_text(path, "give a list of episodes in YAML or CSV", MAX_CSV_BYTES)


def read_episodes(path: AnyPath) -> list[StatedEpisode]:
    """Read the episodes that a file states, in its order.

    The file is a list of rows with the keys `from`, `to`, `task` and `success`, all of them optional. In YAML it is a
    list of mappings; a file named *.csv has a line of column names and a line per row.

    Errors:
        RoboCacheError: the file cannot be read or is not such a list. The message has one line per error, with its
            position in the file.
    """
    table = read_table(path, ROWS)
    if not 0 < len(table.rows) <= MAX_EPISODES:
        raise RoboCacheError(f"{table.place(())}: {len(table.rows):,} episodes; give 1 to {MAX_EPISODES:,}")
    episodes, problems = [], Problems()
    for number, row in enumerate(table.rows):
        with problems.below(number):
            values = values_of(row, ROWS)
            start, stop = values.get("from"), values.get("to")
            if start and stop and start.relative == stop.relative and stop.ns <= start.ns:
                raise refusal("to", "is not after from; exchange them, or correct one")
            episodes.append(StatedEpisode(start, stop, values.get("task"), values.get("success")))
    problems.raise_any(table.place)
    return episodes


OUTSIDE, IDLE = -1, -2  # instead of the number of a part: in no section; without motion


def sections_of(messages: Sequence[tuple[int, Value]], run: BagRun) -> list[EpisodeInfo]:
    """Return the sections that a topic describes.

    A bool is true inside of an episode. A new integer or text begins an episode, and an empty text ends one; before the
    first message there is none. A message without a value ends an episode and begins another.
    """
    inside_before = bool(messages) and messages[0][1] is None
    starts = [(0, inside_before)]
    for log_ns, value in messages:
        starts.append((run.first_tick_at(log_ns), value is not False and value != ""))
    stops = [start for start, _ in starts[1:]] + [sum(run.ticks_of_spans)]
    return [
        EpisodeInfo(start, stop) for (start, inside), stop in zip(starts, stops, strict=True) if inside and start < stop
    ]


def stated_sections(episodes: Sequence[StatedEpisode], run: BagRun, where: str) -> list[EpisodeInfo]:
    """Return the sections that a file states, in order of time.

    Errors:
        RoboCacheError: two of them overlap; `where` names the file.
    """
    first_ns, end_ns = run.bag.start_ns, run.bag.stop_ns
    placed = [
        (
            max(first_ns, each.start.after(first_ns)) if each.start else first_ns,
            min(end_ns, each.stop.after(first_ns)) if each.stop else end_ns,
            number,
        )
        for number, each in enumerate(episodes)
    ]
    placed.sort()
    for (_, before_ns, one), (after_ns, _, other) in pairwise(placed):
        if after_ns < before_ns:
            raise RoboCacheError(f"{where}: episodes {one + 1} and {other + 1} overlap; correct their times")
    sections = (
        EpisodeInfo(run.first_tick_at(start), run.first_tick_at(stop), episodes[number].task, episodes[number].success)
        for start, stop, number in placed
    )
    return [section for section in sections if section.start < section.stop]


def parts_of(ticks_of_spans: Sequence[int], sections: Sequence[EpisodeInfo] | None) -> NDArray[np.int32]:
    """Return the number of the part of each tick: a part is a section without a time jump.

    The sections are in order, without overlap; None: every tick is in one section.

    Returns:
        (T,) int32; OUTSIDE for ticks in no section. The numbers of two parts are different, and grow with time.
    """
    spans = np.repeat(np.arange(len(ticks_of_spans)), ticks_of_spans)
    numbers = np.zeros(len(spans), np.int64)
    if sections is not None:
        numbers[:] = OUTSIDE
        for number, section in enumerate(sections):
            numbers[section.start : section.stop] = number
    begins = (np.diff(numbers, prepend=-2) != 0) | (np.diff(spans, prepend=-1) != 0)
    parts = np.cumsum(begins & (numbers >= 0)) - 1
    return np.where(numbers < 0, OUTSIDE, parts).astype(np.int32)


SHARE = 0.01  # of a column's range: the largest change of an observation that is not motion

Bools = NDArray[np.bool_]
Float32 = NDArray[np.float32]


def motion_streams(spec: FusionSpec) -> tuple[StreamSpec, ...]:
    """Return the streams whose values show motion: observations and actions with one vector per tick."""
    return tuple(s for s in spec.vectors if not s.is_outcome and not s.rows)


def check_motion(spec: FusionSpec) -> None:
    """Raise a RoboCacheError if no stream of a spec can show motion."""
    if not motion_streams(spec):
        raise RoboCacheError("trim_idle_s: the spec has no vector stream to see motion in; keep idle ticks, or add one")


def read_vectors(run: BagRun, streams: tuple[StreamSpec, ...]) -> tuple[Float32, NDArray[np.uint8]]:
    """Read some vectors of a recording once more; return their values (T, D) and `valid` (T, N) at all of its ticks."""
    vectors = BagRun(
        run.bag,
        replace(run.spec, streams=streams),
        visibility=run.visibility,
        trim=False,
        start_ns=run.log_range[0],
        stop_ns=run.log_range[1],
        timeline=run.timeline,
    )
    with closing(vectors.frames()) as parts:
        fused = np.concatenate([frames.fused.numpy() for frames in parts])
    return fused, vectors.valid


def takeovers(run: BagRun, sections: Sequence[EpisodeInfo] | None) -> list[EpisodeInfo]:
    """Return a section for each run of ticks at which an operator commanded, within the sections of a recording."""
    streams = tuple(stream for stream in run.spec.vectors if stream.role == "intervention")
    if not streams:
        raise RoboCacheError("corrections: no stream has role: intervention; add one that says who commanded")
    # A recording without a policy does not have the topic; an observation or action beside it makes a valid spec.
    others = tuple(stream for stream in run.spec.vectors if not stream.is_outcome)[:1]
    fused, valid = read_vectors(run, (*streams, *others))
    marked = (fused[:, 0] != 0) & (valid[:, 0] > 0)
    found = []
    for section in [EpisodeInfo(0, len(marked))] if sections is None else sections:
        within = marked[section.start : section.stop].astype(np.int32)
        found += [
            replace(section, start=section.start + start, stop=section.start + stop)
            for start, stop, value in runs(within)
            if value
        ]
    return found


def idle_ticks(run: BagRun, seconds: float) -> Bools:
    """Read the vectors of a recording once more; return which of its ticks are idle.

    A tick is idle if it is among consecutive ticks over `seconds` or more, without a time jump, in which no column
    changes by more than its limit: the stream's `idle`, or 1 % of the column's range in the recording for an
    observation, and 0 for an action. At a tick without a value, the last value counts.
    """
    streams = motion_streams(run.spec)
    fused, valid = read_vectors(run, streams)
    ticks = max(2, math.ceil(seconds * run.spec.rate_hz) + 1)
    edges = np.cumsum([0, *run.ticks_of_spans]).tolist()
    still = [np.ones(max(0, stop - start - ticks + 1), bool) for start, stop in pairwise(edges)]  # by first tick
    of_columns = [(index, stream) for index, stream in enumerate(streams) for _ in range(stream.width)]
    for column, (index, stream) in enumerate(of_columns):
        values, present = fused[:, column], valid[:, index] > 0
        if present.any():
            limit, filled = _limit(stream, values[present]), _filled(values, present)
            for windows, (start, stop) in zip(still, pairwise(edges), strict=True):
                windows &= range_of_windows(filled[start:stop], ticks) <= limit
    counts = zip(still, run.ticks_of_spans, strict=True)
    return np.concatenate([covered(windows, ticks, count) for windows, count in counts])


def range_of_windows(values: Float32, count: int) -> NDArray[np.float64]:
    """Return max - min of each window of `count` consecutive values: (max(0, T - count + 1),) float64."""
    if len(values) < count:
        return np.empty(0)
    return _extreme(values, count, np.maximum) - _extreme(values, count, np.minimum)


def covered(windows: Bools, count: int, total: int) -> Bools:
    """Return which of `total` ticks are in a marked window of `count` ticks; window k begins at tick k."""
    edges = np.zeros(total + 1, np.int64)
    edges[: len(windows)] += windows
    edges[total + 1 - len(windows) :] -= windows
    return np.asarray(np.cumsum(edges)[:total] > 0)


def _extreme(values: Float32, count: int, of: np.ufunc) -> NDArray[np.float64]:
    """Return the extreme of each window: of the end of one block of `count` values and the begin of the next."""
    padded = np.pad(values.astype(np.float64), (0, -len(values) % count), mode="edge").reshape(-1, count)
    begins = of.accumulate(padded, axis=1).ravel()
    ends = of.accumulate(padded[:, ::-1], axis=1)[:, ::-1].ravel()
    windows = len(values) - count + 1
    return np.asarray(of(ends[:windows], begins[count - 1 : count - 1 + windows]))


def _limit(stream: StreamSpec, values: Float32) -> float:
    if stream.idle is not None:
        return stream.idle
    return 0.0 if stream.role == "action" else SHARE * (float(values.max()) - float(values.min()))


def _filled(values: Float32, present: Bools) -> Float32:
    """Return the values with the last value at ticks without one, and the first value before it."""
    newest = np.maximum.accumulate(np.where(present, np.arange(len(values)), -1))
    filled: Float32 = values[np.where(newest < 0, np.argmax(present), newest)]
    return filled


NONE = -1  # no value at the tick


class SuccessValues:
    """Collects the values of the stream with role `success`: any number but 0 is success."""

    def __init__(self, spec: FusionSpec, ticks: int) -> None:
        self._values = np.full(ticks, NONE, np.int8)
        names = [stream.name for stream in spec.vectors if stream.role == "success"]
        self._column = Layout(spec).slots[names[0]].start if names else None
        self._row = Layout(spec).names.index(names[0]) if names else 0

    def add(self, frames: Frames, at: int) -> None:
        """Add the next ticks; `at` is the number of the first one."""
        if self._column is not None:
            values = frames.fused[:, self._column].numpy() != 0
            self._values[at : at + len(frames)] = np.where(frames.valid[:, self._row] > 0, values, NONE)

    def last(self, start: int, stop: int) -> bool | None:
        """Return the last value of the ticks start <= tick < stop; None if there is none."""
        known = np.flatnonzero(self._values[start:stop] != NONE)
        return bool(self._values[start + int(known[-1])]) if len(known) else None


class EpisodesDropped(RoboCacheError):  # noqa: N818 - asked for by the spec
    """All episodes of a recording are left out because of `on_invalid: drop`."""


class Boundaries:
    """The parts of a recording that become episodes.

    Reads the topics of tasks and of episodes, and for `trim_idle_s` and `corrections` vectors, before the recording
    itself is read.
    """

    def __init__(self, run: BagRun, options: DatasetOptions) -> None:
        self.notes: list[str] = []  # on what was read, one line each
        self._sections: list[EpisodeInfo] | None = None
        self._tasks: list[tuple[int, str]] = []  # first tick with a task, and the task
        if options.episode_topic:
            self._sections = sections_of(read_changes(run.bag, options.episode_topic, "episode_topic", self.notes), run)
        elif options.episode_file and (path := episode_file(run.bag.path)):
            self._sections = stated_sections(read_episodes(path), run, printable(path, 60))
            self.notes.append(f"{len(self._sections)} episodes are stated by {printable(path.name)}")
        if options.corrections:
            self._sections = takeovers(run, self._sections)
            self.notes.append(f"{number_of(len(self._sections), 'takeover')} of an operator")
        if options.task_topic:
            changes = read_changes(run.bag, options.task_topic, "task_topic", self.notes, STRING)
            self._tasks = [(run.first_tick_at(log_ns), str(text)) for log_ns, text in changes if text]
        idle = idle_ticks(run, options.trim_idle_s) if options.trim_idle_s else None
        whole = parts_of(run.ticks_of_spans, self._sections)
        self._stops = {
            part: stop for _, stop, part in runs(whole) if part >= 0
        }  # a part with its idle ticks is one run
        # (T,) int32 as of `parts_of`, and IDLE for ticks of a part without motion.
        self.parts = whole if idle is None else np.where(idle & (whole >= 0), np.int32(IDLE), whole)

    def infos(self, cutter: EpisodeCutter, labels: Labels, success: SuccessValues) -> list[EpisodeInfo]:
        """Return the episodes of a recording after all of its ticks."""
        infos = []
        episodes = cutter.episodes
        for number, (start, stop) in enumerate(episodes):
            sections = self._sections or ()
            before = bisect_right(sections, start, key=lambda section: section.start)
            inside = before and start < sections[before - 1].stop
            section = sections[before - 1] if inside else EpisodeInfo(start, stop)
            # Success is often known only after the last row: until the next episode, or the end of the part.
            following = episodes[number + 1][0] if number + 1 < len(episodes) else len(self.parts)
            found = success.last(start, min(following, self._stops[int(self.parts[start])]))
            task = section.task if section.task is not None else self._task(start, stop)
            infos.append(
                EpisodeInfo(*labels.extent(start, stop), task, found if section.success is None else section.success)
            )
        return infos

    def left_out(self, cutter: EpisodeCutter, rows: Sequence[EpisodeInfo], valid: NDArray[np.uint8]) -> dict[str, int]:
        """Return how many of all ticks, (T, N) states, are in none of these rows, by the reason."""
        reasons = np.full(len(self.parts), "in episodes that are too short", object)
        reasons[self.parts == IDLE] = "without motion"
        reasons[~cutter.complete(valid)] = "without a value"
        reasons[self.parts == OUTSIDE] = "outside of episodes"
        reasons[np.isin(self.parts, list(cutter.dropped))] = "in dropped episodes"
        for start, stop in cutter.episodes:
            reasons[start:stop] = "without their action"
        kept = np.zeros(len(reasons), bool)
        for episode in rows:
            kept[episode.start : episode.stop] = True
        return dict(Counter(reasons[~kept].tolist()).most_common())

    def check_kept(self, cutter: EpisodeCutter, run: BagRun, options: DatasetOptions) -> None:
        """Refuse a recording with too few ticks in episodes, of those that its boundaries leave.

        Errors:
            EpisodesDropped: all of its episodes are left out because of `on_invalid: drop`.
            RoboCacheError: it has no episode, or a share of ticks below `min_valid`.
        """
        where, complete = printable(run.bag.path, 60), cutter.complete(run.valid)
        left = (self.parts >= 0) & ~np.isin(self.parts, list(cutter.dropped))
        if not cutter.episodes:
            run.check_spans_ticks()
            if cutter.dropped:
                raise EpisodesDropped(f"{where}: left out: {next(iter(cutter.dropped.values()))}; raise its max_age_ms")
            if not left.any():
                idle = "nothing moves for longer than --trim-idle allows; raise it, or leave the recording out"
                outside = "no tick is in an episode of its topic or file; correct them, or leave the recording out"
                raise RoboCacheError(f"{where}: {idle if (self.parts == IDLE).any() else outside}")
            if complete[left].any():
                raise RoboCacheError(
                    f"{where}: no {options.min_frames} ticks in a row have every stream; raise max_age_ms of those "
                    "with gaps, set on_invalid hold or mask for them, or lower --min-frames"
                )
            raise RoboCacheError(run.why_incomplete())
        kept = sum(stop - start for start, stop in cutter.episodes)
        expected = int(left[cutter.episodes[0][0] :].sum())
        if kept < options.min_valid * expected:
            shares = np.where(run.spec.inputs, (run.valid > 0).mean(axis=0), 1.0)
            worst = int(shares.argmin())
            name = run.spec.streams[worst].name
            advice = run.refusal(name) or "give it a larger max_age_ms, on_invalid hold or mask, or lower --min-valid"
            raise RoboCacheError(
                f"{where}: {kept} of {expected} ticks have every stream, {name} in {shares[worst]:.0%}; {advice}"
            )

    def _task(self, start: int, stop: int) -> str | None:
        """Return the newest task at or before the first tick of an episode, else the first one within it."""
        after = bisect_right(self._tasks, start, key=lambda task: task[0])
        if after:
            return self._tasks[after - 1][1]
        return self._tasks[0][1] if self._tasks and self._tasks[0][0] < stop else None


NEAR = 0.8  # share of a limit from which on a value is near it


def check_quality(recording: ExportedRecording) -> None:
    """Raise a RoboCacheError that names what exceeds the limits in a spec: stream, value and limit."""
    exceeded = [limit.text for limit in limits_of(recording) if limit.exceeded]
    if exceeded:
        more = f" (and {len(exceeded) - 1} more)" if len(exceeded) > 1 else ""
        where = printable(recording.bag, 50)
        raise RoboCacheError(f"{where}: {exceeded[0]}{more}; leave the recording out, or change the limit")


@dataclass(frozen=True)
class QualityLimit:
    """A limit on quality in a spec, and the value of a recording."""

    name: str  # of the limit, such as max_invalid
    stream: str  # the stream; empty: the limit is of the recording
    # value, limit: shares, ms, messages/s or frames
    value: float
    limit: float
    text: str  # the value and the limit as a sentence

    @property
    def exceeded(self) -> bool:
        """Whether an export refuses the recording."""
        return self.value < self.limit if self._is_minimum else self.value > self.limit

    @property
    def near(self) -> bool:
        """Whether the value is within a fifth of the limit, but does not exceed it."""
        if self.exceeded:
            return False
        if self._is_minimum:
            return self.value * NEAR <= self.limit
        return 0 < self.value >= NEAR * self.limit

    @property
    def _is_minimum(self) -> bool:
        return self.name.startswith("min_")


def limits_of(recording: ExportedRecording) -> Iterator[QualityLimit]:
    """Yield all limits on quality in the spec of a recording, each with its value.

    Shares are of all ticks of the recording, as in the report. Intervals are between messages of a topic.
    """
    quality = recording.spec.quality
    for index, stream in enumerate(recording.spec.streams):
        limits = stream.quality or (quality if not stream.is_outcome else None)
        if limits:
            for name, value, text in _values(recording, index, stream, limits):
                limit = getattr(limits, name)
                if limit is not None:
                    yield QualityLimit(name, stream.name, value, limit, f"{stream.name} {text}")
    if quality and quality.min_frames is not None:
        text = f"{recording.frames} frames are below quality.min_frames, {quality.min_frames}"
        yield QualityLimit("min_frames", "", recording.frames, quality.min_frames, text)


def _values(
    recording: ExportedRecording, index: int, stream: StreamSpec, limits: StreamQuality
) -> Iterator[tuple[str, float, str]]:
    """Yield the name of each limit, the value of the stream, and how it is said that the limit is exceeded."""
    valid = recording.valid[:, index]
    for name, state, text in (("max_invalid", 0, "has no value"), ("max_held", 2, "has a held value")):
        share = float((valid == state).mean())
        yield name, share, f"{text} at {share:.2%} of the ticks, above quality.{name}, {getattr(limits, name) or 0:.2%}"
    topic = recording.topics.get(stream.topic)
    longest_ms = float(topic.intervals_ms.max()) if topic and len(topic.intervals_ms) else 0.0
    above = f"above quality.max_gap_ms, {limits.max_gap_ms or 0:g} ms"
    yield "max_gap_ms", longest_ms, f"has no message for {longest_ms:.4g} ms, {above}"
    rate_hz = topic.rate_hz if topic else 0.0
    below = f"below quality.min_rate_hz, {limits.min_rate_hz or 0:g} Hz"
    yield "min_rate_hz", rate_hz, f"has {rate_hz:.4g} messages/s, {below}"
