"""Runs a recording through the fusion engine: frames on the tick grid, and counters of message outcomes."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robocache_ros.bags.clocks import Span, Timeline
from robocache_ros.bags.reader import Bag
from robocache_ros.bags.shared_reading import Read, ReadMessages, read_alone, reads_around
from robocache_ros.bags.source import Data
from robocache_ros.bags.stats import GAP_PERIODS, Gap, Recorder, TopicStats, read_timeline
from robocache_ros.engine import offline, tick_grid
from robocache_ros.engine.engine import FusionEngine
from robocache_ros.engine.frames import Frames
from robocache_ros.engine.ingest import Ingest
from robocache_ros.errors import RoboCacheError
from robocache_ros.spec import TF_STATIC, FusionSpec
from robocache_ros.spec.layout import Layout
from robocache_ros.units import NS_PER_S

VECTOR_CHUNK = 1024  # ticks per chunk; fewer with images and voxels, which use more memory
MEDIA_CHUNK = 32  # fewer still for large images: see offline.run
# A stream without samples for longer than this at the end has failed. The ticks without it are kept.
TAIL_NS = 10 * NS_PER_S
TAIL_BYTES = 2**29  # limit for images and voxels of trailing ticks in memory; beyond it, ticks go to the dataset


class BagRun:
    """One pass of a recording through an engine.

    Args:
        bag: an open recording.
        spec: the streams; the recording must have their topics with matching types.
        visibility: `ideal`: a tick uses every sample; `deployed`: only samples that had arrived on the robot by then.
        trim: omit ticks at both ends at which an observation or an action is invalid (at the tail, at most ten seconds
            or `TAIL_BYTES` of images and voxels).
        start_ns, stop_ns: range of log times of the ticks; None: from the first message, to the last one. The ticks are
            the same as in a run over the complete recording: messages outside of the range are read as far as needed.
        device, jpeg, channels_last: how images and clouds are converted; see FusionEngine.
        timeline: the timeline of the recording, if it is known.
        media: convert images and clouds. Otherwise the frames have their states and ages, but not their tensors.
        watch: called with the name of a stream, (M,) int64 stamps and the values of samples, as the engine takes them.

    Attributes:
        timeline: the timeline of the ticks.
        log_range: `start_ns` and `stop_ns` as given.
        ticks_of_spans: number of ticks between two time jumps, in order; one number if the time does not jump.
        start_ns, stop_ns: range on the timeline; with time jumps, stop_ns - start_ns is the sum of the parts.

    Attributes, complete after `frames` is exhausted:
        ticks_ns, valid: (T,) int64 and (T, N) uint8 of every tick, including trimmed ticks.
        leading, trailing: number of ticks trimmed at the start and at the end.
    """

    def __init__(
        self,
        bag: Bag,
        spec: FusionSpec,
        *,
        visibility: str = "ideal",
        trim: bool = True,
        start_ns: int | None = None,
        stop_ns: int | None = None,
        device: str = "cpu",
        jpeg: str = "cpu",
        channels_last: bool = False,
        timeline: Timeline | None = None,
        media: bool = True,
        watch: Callable[[str, NDArray[np.int64], Any], None] | None = None,
    ) -> None:
        bag.require(spec)
        self.bag = bag
        self.spec = spec
        self.layout = Layout(spec)
        self.visibility = visibility
        devices = {stream.topic for stream in spec.streams if stream.stamp == "device"}
        self.timeline = timeline or read_timeline(bag, devices)
        self.log_range = (start_ns, stop_ns)
        log_start_ns = bag.start_ns if start_ns is None else start_ns
        log_stop_ns = bag.stop_ns if stop_ns is None else stop_ns
        self._spans = self.timeline.spans(log_start_ns, log_stop_ns)
        if stop_ns is not None:  # a tick at the exclusive end belongs to the next part
            self._spans[-1] = self._spans[-1]._replace(last_ns=self.timeline.at(log_stop_ns - 1))
        self.start_ns = self._spans[0].first_ns
        self.stop_ns = self.start_ns + sum(span.last_ns - span.first_ns for span in self._spans)
        if visibility == "deployed":  # later ticks were not yet due at the jump
            self._spans[:-1] = [span._replace(last_ns=span.last_ns - spec.cut_ns) for span in self._spans[:-1]]
        self.ticks_of_spans = [
            max(0, self._first_tick(s.last_ns + 1) - self._first_tick(s.first_ns)) for s in self._spans
        ]
        self.leading = self.trailing = 0
        self._trim = trim
        engine = FusionEngine(spec, device, unbounded=True, jpeg=jpeg, channels_last=channels_last, media=media)
        engine.watch = watch
        self._ingest = Ingest(spec, engine, bag.definitions)
        if (spec.framed or spec.transforms) and TF_STATIC in bag.topics:
            for message in bag.messages([TF_STATIC]):  # first, because static transforms are valid for all times
                self._ingest.static_transforms(bytes(message.data))
        self._fed: defaultdict[str, list[str]] = defaultdict(list)  # the feeds of each topic
        for feed in bag.feeds(spec):
            self._fed[feed.topic].append(feed.name)
        self._recorder = Recorder([bag.topics[name] for name in sorted(self._fed)], bag.definitions)
        self._ticks: list[NDArray[np.int64]] = []
        self._valid: list[NDArray[np.uint8]] = []

    @property
    def reads(self) -> list[Read]:
        """What `frames` reads, in this order."""
        return [read for span in self._spans for read in self._reads_of(span)]

    def _reads_of(self, span: Span) -> list[Read]:
        topics = frozenset(self._fed)
        if self.log_range == (None, None):
            return [Read(topics, span.start_ns, span.stop_ns)]
        within = self.timeline.around(span.start_ns, self.bag.start_ns, self.bag.stop_ns)
        needed = frozenset(feed.topic for feed in self.bag.feeds(self.spec) if offline.has_memory(feed, self.spec))
        return reads_around(span, within, offline.reach_ns(self._ingest.engine), topics, needed)

    def frames(self, source: ReadMessages | None = None) -> Generator[Frames]:
        """Yield the frames in order, several ticks at a time.

        Args:
            source: returns the messages of each of `reads`; None: they are read from the recording.

        Errors:
            RoboCacheError: the recording is shorter than a tick, or is trimmed and no tick has a value in every stream.
        """
        frames = self._watched(source or read_alone(self.bag))
        if not self._trim:
            yield from frames
            self.check_spans_ticks()
            return
        started, inputs = False, np.array(self.spec.inputs)
        waiting: list[Frames] = []  # ticks since the last complete tick: the tail, if no complete tick follows
        for part in frames:
            complete = np.flatnonzero((part.valid[:, inputs] > 0).all(axis=1))
            start = 0
            if not started:
                start = int(complete[0]) if len(complete) else len(part)
                self.leading += start
                started = bool(len(complete))
            stop = int(complete[-1]) + 1 if len(complete) else start
            if len(complete):
                yield from waiting
                waiting = []
                yield part[start:stop]
            if started and stop < len(part):
                waiting.append(part[stop:])
                ticks, nbytes = sum(map(len, waiting)), sum(v.nbytes for w in waiting for v in w.media.values())
                if ticks > TAIL_NS // NS_PER_S * self.spec.rate_hz or nbytes > TAIL_BYTES:
                    yield from waiting
                    waiting = []
        self.trailing = sum(len(w) for w in waiting)
        self.check_spans_ticks()
        if not started:
            raise RoboCacheError(self.why_incomplete())

    def first_tick_at(self, log_ns: int) -> int:
        """Return the number of the first tick at or after a log time, counted from the recording's first tick."""
        index = max(0, bisect_right(self._spans, log_ns, key=lambda span: span.start_ns) - 1)
        tick = self._first_tick(self.timeline.at(log_ns)) - self._first_tick(self._spans[index].first_ns)
        return sum(self.ticks_of_spans[:index]) + min(max(0, tick), self.ticks_of_spans[index])

    def _first_tick(self, time_ns: int) -> int:
        return tick_grid.first_at_or_after(time_ns, self.spec.rate_hz)

    @property
    def ticks_ns(self) -> NDArray[np.int64]:
        """(T,) int64 times of all resolved ticks."""
        return np.concatenate(self._ticks) if self._ticks else np.empty(0, np.int64)

    @property
    def valid(self) -> NDArray[np.uint8]:
        """(T, N) uint8 states of all resolved ticks."""
        return np.concatenate(self._valid) if self._valid else np.empty((0, len(self.spec.streams)), np.uint8)

    @property
    def counters(self) -> dict[str, Counter[str]]:
        """Outcomes of messages by stream: received, decoded, accepted, late, dropped:<cause> and so on."""
        counters, lost = self._ingest.counters, self._ingest.engine.lost
        return {stream.name: counters[stream.name] + Counter(lost(stream.name)) for stream in self.spec.streams}

    def stats(self) -> dict[str, TopicStats]:
        """Statistics of the topics that were read, with the gaps within the recording."""
        return {name: self._within(stats) for name, stats in self._recorder.stats(self.timeline).items()}

    def _within(self, stats: TopicStats) -> TopicStats:
        """Cut off gaps, and the samples that are missing in them, before and after the times of the recording.

        Samples that are older than the recording, such as the last message of a slow topic, begin such gaps.
        """
        gaps, missing = [], stats.missing
        for gap in stats.gaps:
            inside = [
                Gap(start, stop - start)
                for span in self._spans
                for start, stop in [
                    (max(gap.start_ns, span.first_ns), min(gap.start_ns + gap.length_ns, span.last_ns + 1))
                ]
                if stop - start > GAP_PERIODS * stats.period_ms * 1e6
            ]
            length_ns = sum(part.length_ns for part in inside)
            gaps += inside
            missing -= round((gap.length_ns - length_ns) / 1e6 / stats.period_ms)
        return replace(stats, gaps=tuple(gaps), missing=max(0, missing))

    def clocks(self) -> dict[str, Any]:
        """For the provenance: the `timeline`, and the latest clock estimate of each stream with `stamp: device`."""
        devices = {
            name: {"offset_ns": clock.offset_ns, "skew_ppm": clock.skew_ppm, "jumps": clock.jumps}
            for name, clock in self._ingest.engine.device_clocks.items()
        }
        return {"timeline": self.timeline.to_dict(), "device_clocks": devices}

    def _watched(self, source: ReadMessages) -> Iterator[Frames]:
        chunk = MEDIA_CHUNK if self.spec.media else VECTOR_CHUNK
        engine = self._ingest.engine
        for span in self._spans:
            if span is not self._spans[0]:
                engine.reset("the time of the recording jumps")
            messages = self._messages(span, source)
            for part in offline.run(
                messages, self._ingest, span.first_ns, span.last_ns, visibility=self.visibility, chunk=chunk
            ):
                self._ticks.append(part.ticks_ns)
                self._valid.append(part.valid)
                yield part

    def _messages(self, span: Span, source: ReadMessages) -> Iterator[tuple[str, int, Data]]:
        """Yield each message, with its arrival on the timeline, once per stream that uses it, also as a companion."""
        at, fed = self.timeline.at, self._fed
        for read in self._reads_of(span):
            messages = source(read)
            for topic, log_ns, data in self._recorder.watch(messages) if read.counted else messages:
                arrival_ns = at(log_ns)
                for name in fed[topic]:
                    yield name, arrival_ns, data

    def check_spans_ticks(self) -> None:
        """Raise a RoboCacheError if the recording is shorter than the tick period."""
        if not self._ticks:
            span_ms, period_ms = (self.stop_ns - self.start_ns) / 1e6, 1000 / self.spec.rate_hz
            raise RoboCacheError(
                f"{self.bag.path}: {span_ms:.3f} ms without a tick of {period_ms:g} ms; leave the recording out"
            )

    def refusal(self, stream: str) -> str:
        """Return what to do about a stream most of whose messages cannot be decoded; empty if most can."""
        counts = self.counters[stream]
        if 2 * counts["dropped"] <= counts["received"]:
            return ""
        if counts["dropped:joint_missing"]:
            return f"correct the names of {stream}: robocache check lists the joints that its messages have"
        if 2 * counts["dropped:not_finite"] > counts["received"]:
            return f"leave {stream} out, or set its fill"
        return f"correct {stream}: robocache check states what its messages have"

    def why_incomplete(self) -> str:
        """Describe why no tick has a value in every stream."""
        valid = self.valid > 0
        needed = [(index, s) for index, s in enumerate(self.spec.streams) if not s.is_outcome]
        silent = [s.name for index, s in needed if not valid[:, index].any()]
        why = f"{', '.join(silent)} never has a value" if silent else "the streams never have values at the same time"
        dropped = {
            f"{name}: {cause} ({count})"
            for name in silent
            for cause, count in self.counters[name].items()
            if cause.startswith(("dropped:", "unpaired:")) or cause in ("skewed", "unstamped", "corrupt")
        }
        missing = {name: self._ingest.engine.missing(name) for name in silent}
        dropped |= {f"{name}: {max(found, key=lambda why: found[why])}" for name, found in missing.items() if found}
        reasons = f" ({'; '.join(sorted(dropped))})" if dropped else ""
        waits = self.visibility == "deployed" and any(self.spec.stream(name).align == "next" for name in silent)
        advice = "raise delay_ms to the time until its next sample" if waits else "raise its max_age_ms or leave it out"
        advice = next(filter(None, map(self.refusal, silent)), advice)
        return f"{self.bag.path}: no tick has every stream: {why}{reasons}; {advice}"
