"""The fusion engine: samples in, frames on the tick grid out; the same for a robot, a bag and a dataset."""

from __future__ import annotations

import enum
import logging
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robocache_ros.engine import grid
from robocache_ros.engine.backend import Backend, Choices, MemoryRow, Options
from robocache_ros.engine.choose import make_backend
from robocache_ros.engine.frames import Frames
from robocache_ros.engine.track import Track
from robocache_ros.layout import Layout
from robocache_ros.ops.select import Rule, select, select_one
from robocache_ros.spec import NS_PER_S, FusionSpec, StreamSpec

log = logging.getLogger(__name__)

Int64 = NDArray[np.int64]

JUMP_BACK_NS = NS_PER_S // 2  # a clock is let slip back by less: it is slewed, or messages of two topics crossed
JUMP_AHEAD_NS = 10 * NS_PER_S  # past it the time between is not made up tick by tick
DEFAULT_RATE_HZ = {"vector": 1000.0, "image": 60.0, "cloud": 30.0}  # sizes the memory where no rate is declared


class Outcome(enum.Enum):
    """What became of a sample; each is a counter in the diagnostics."""

    ACCEPTED = "accepted"
    LATE = "late"  # its tick was out; later ticks may still use it
    DUPLICATE = "duplicate"  # the stamp was there already: the first stays
    SKEWED = "skewed"  # its stamp is too far from its arrival
    UNSTAMPED = "unstamped"  # the stream goes by header stamps, and the message has none
    DROPPED = "dropped"  # it could not be decoded
    WAITING = "waiting"  # an image whose other half is yet to come


class _Stream:
    """One stream in the engine: its spec and the index of its samples."""

    def __init__(self, spec: StreamSpec, capacity: int, unbounded: bool) -> None:
        self.spec = spec
        self.rule = Rule(spec.align, spec.max_gap_ns, spec.max_age_ns)
        self.reach_ns = _reach_ns(spec)
        self.by_arrival = spec.stamp == "receive"
        self.skew_ns, self.latency_ns = spec.max_skew_ns, spec.latency_ns
        self.track = Track(capacity, growing=unbounded)
        self.vector = spec.kind == "vector"
        self.overrun = 0
        self.corrupt = 0

    def insert(self, stamp_ns: int, arrival_ns: int) -> int:
        if self.track.full:
            self.overrun += 1
        return self.track.insert(stamp_ns, arrival_ns)

    def choose(self, backend: Backend, ticks: Int64, deadlines: Int64 | None, choices: Choices, number: int) -> None:
        """Select; a payload that proves corrupt is counted, taken out, and the choice made again."""
        track = self.track
        while True:
            if len(ticks) == 1:
                deadline = None if deadlines is None else int(deadlines[0])
                pick = select_one(track.stamps_ns, int(ticks[0]), self.rule, track.arrivals_ns, deadline)
                if self.vector or pick.lower < 0 or self._usable(backend, pick.lower):
                    return choices.put_one(number, pick, track.slots)
            else:
                chosen = select(track.stamps_ns, ticks, self.rule, track.arrivals_ns, deadlines)
                rows = [] if self.vector else np.unique(chosen.lower[chosen.lower >= 0]).tolist()
                if all(self._usable(backend, row) for row in rows):
                    return choices.put(number, chosen, track.slots)

    def _usable(self, backend: Backend, row: int) -> bool:
        try:
            backend.check(self.spec.name, int(self.track.slots[row]))
        except ValueError as error:
            if not self.corrupt:
                log.warning("%s: a sample is left out: %s", self.spec.name, error)
            self.corrupt += 1
            backend.drop(self.spec.name, [self.track.drop(row)])
            return False
        return True

    def shown_ns(self, ticks: Int64) -> Int64:
        """When the stream first showed a sample at or after each tick; the far future where it has not."""
        first_arrival = np.full(len(self.track) + 1, np.iinfo(np.int64).max)
        first_arrival[:-1] = np.minimum.accumulate(self.track.arrivals_ns[::-1])[::-1]
        shown: Int64 = first_arrival[np.searchsorted(self.track.stamps_ns, ticks)]
        return shown


def _reach_ns(spec: StreamSpec) -> int:
    """No tick looks further back than this."""
    return max(spec.max_gap_ns, spec.max_age_ns)


def _capacity(spec: StreamSpec, fusion: FusionSpec) -> int:
    """Slots for a stream: its rate over the reach, the delay and a while for a tick that comes late."""
    rate = spec.rate_hz or DEFAULT_RATE_HZ[spec.kind]
    span_s = (_reach_ns(spec) + fusion.delay_ns) / NS_PER_S
    if spec.kind == "vector":
        return math.ceil(2 * rate * (span_s + 0.5)) + 16
    return math.ceil(1.25 * rate * (span_s + 0.1)) + 4  # of megabytes each


class FusionEngine:
    """Aligns and fuses streams on the tick grid.

    A frame is a function of the sequence of `(stamp, arrival, value)` alone: a tick goes out at its emission time and
    sees exactly what had arrived by then, however late the caller asks for it.

    Args:
        spec: the streams and the timeline.
        device: `cpu`, `cuda`, `cuda:1`, or `auto`: the GPU where there is one that works, else the CPU, with a word in
            the log. Both give the same bits.
        unbounded: keep every sample until `prune` (recordings, on the CPU) instead of a fixed number (robots).
        normalized: give images as float32, normalised as their spec says; else 8-bit ones as uint8.
        jpeg: where jpeg images are decoded: `cpu`, by the one decoder whose bits recordings have too; or `gpu`, by
            nvJPEG (needs torchvision), which is faster and differs from it by a few counts.
        payload_bytes: bytes of the largest image or cloud of a stream, for GPU memory that is taken before the first
            one comes and shows its size.

    Raises:
        RoboCacheError: a device that is not there, or that lacks the memory.
    """

    def __init__(
        self,
        spec: FusionSpec,
        device: str = "cpu",
        *,
        unbounded: bool = False,
        normalized: bool = False,
        jpeg: str = "cpu",
        payload_bytes: Mapping[str, int] | None = None,
    ) -> None:
        self.spec = spec
        self.layout = Layout(spec)
        self.clock_jumps = 0
        capacities = {s.name: _capacity(s, spec) for s in spec.streams}
        options = Options(normalized, jpeg, payload_bytes or {})
        self._backend = make_backend(self.layout, capacities, device, unbounded, options)
        self.device = self._backend.device
        self._streams = {s.name: _Stream(s, capacities[s.name], unbounded) for s in spec.streams}
        self._cut_ns = spec.cut_ns
        self._period_ns = -(-NS_PER_S // spec.rate_hz)
        self._next: int | None = None  # index of the next tick to go out
        self._out_ns: int | None = None  # time of the tick before it
        self._now_ns: int | None = None

    def push(self, stream: str, stamp_ns: int | None, arrival_ns: int, value: Any) -> Outcome:
        """Take in a sample.

        Args:
            stream: its stream's name.
            stamp_ns: the header's stamp, as it came; None where the message has none.
            arrival_ns: when it was received, on the clock that `advance` goes by.
            value: (D,) float32 values, or an image or cloud payload.
        """
        if self._now_ns is not None and arrival_ns < self._now_ns - JUMP_BACK_NS:
            self.reset(f"the clock jumped back by {(self._now_ns - arrival_ns) / 1e9:.3f} s")
            self._now_ns = arrival_ns
        entry = self._streams[stream]
        if entry.by_arrival:
            stamp_ns = arrival_ns
        elif stamp_ns is None:
            return Outcome.UNSTAMPED
        if abs(stamp_ns - arrival_ns) > entry.skew_ns:
            return Outcome.SKEWED
        stamp_ns -= entry.latency_ns
        late = self._out_ns is not None and stamp_ns <= self._out_ns
        if not late and arrival_ns - stamp_ns > self._cut_ns:  # else its tick, at or after it, is not out by then
            tick = grid.first_at_or_after(stamp_ns, self.spec.rate_hz)
            late = arrival_ns > grid.tick_ns(tick, self.spec.rate_hz) + self._cut_ns
        if late and self._out_ns is not None and stamp_ns <= self._out_ns - entry.reach_ns - self._period_ns:
            return Outcome.LATE  # no tick to come looks back that far
        if entry.track.holds(stamp_ns):
            return Outcome.DUPLICATE
        self._backend.put(stream, entry.insert(stamp_ns, arrival_ns), value)
        return Outcome.LATE if late else Outcome.ACCEPTED

    def room(self, feed: str, nbytes: int) -> NDArray[np.uint8]:
        """At least `nbytes` uint8 to put a message of a feed into, before `push`; nothing needs to be given back.

        Of an image or a cloud that is pushed from there, a GPU engine need not copy the bytes on the host.
        """
        return self._backend.room(feed, nbytes)

    def advance(self, now_ns: int, limit: int | None = None) -> Frames:
        """The ticks that are due by `now_ns` and not yet out, T >= 0; all that arrived by then has been pushed.

        `limit`: at most this many; one at a time is what costs a GPU engine no allocation.
        """
        rate_hz = self.spec.rate_hz
        if self._now_ns is not None and now_ns < self._now_ns - JUMP_BACK_NS:
            self.reset(f"the clock jumped back by {(self._now_ns - now_ns) / 1e9:.3f} s")
        elif self._now_ns is not None and now_ns > self._now_ns + JUMP_AHEAD_NS:
            self.reset(f"the clock jumped ahead by {(now_ns - self._now_ns) / 1e9:.3f} s")
        self._now_ns = now_ns
        if self._next is None:
            self._start_at(grid.first_at_or_after(now_ns, rate_hz))
            assert self._next is not None
        ticks = grid.ticks_ns(self._next, max(0, self._candidates(now_ns) - self._next), rate_hz)
        deadlines = self.deadlines(ticks)
        due = int(np.searchsorted(deadlines, now_ns, side="right"))
        due = due if limit is None else min(due, limit)
        if not due:
            return self.resolve(ticks[:0], deadlines[:0])
        frames = self.resolve(ticks[:due], deadlines[:due])
        self._start_at(self._next + due)
        self.prune(grid.tick_ns(self._next, rate_hz))
        return frames

    @property
    def next_due_ns(self) -> int | None:
        """When the next tick is made at the latest; None before the first `advance`."""
        return None if self._next is None else grid.tick_ns(self._next, self.spec.rate_hz) + self._cut_ns

    @property
    def newest_cut_ns(self) -> int | None:
        """What arrived later than this is in no tick yet; None before the first `advance`."""
        return None if self._out_ns is None else self._out_ns + self._cut_ns

    def deadlines(self, ticks_ns: Int64) -> Int64:
        """When each of (T,) ticks is made, for all that has been pushed: what arrived by then is what it sees."""
        fixed = ticks_ns + self._cut_ns
        if self.spec.emit == "fixed" or not len(ticks_ns):
            return fixed
        shown: Int64 = np.max([stream.shown_ns(ticks_ns) for stream in self._streams.values()], axis=0)
        due: Int64 = np.minimum(fixed, shown)
        return due

    def resolve(self, ticks_ns: Int64, deadlines_ns: Int64 | None = None) -> Frames:
        """The frames of any ticks.

        Args:
            ticks_ns: (T,) int64.
            deadlines_ns: (T,) int64, what had arrived by then is visible; None: everything that was pushed is.
        """
        choices = Choices.room(len(ticks_ns), len(self._streams))
        if len(ticks_ns):
            for number, stream in enumerate(self._streams.values()):
                stream.choose(self._backend, ticks_ns, deadlines_ns, choices, number)
        return self._backend.render(ticks_ns, choices)

    def prune(self, next_tick_ns: int) -> None:
        """Let go of the samples that no tick from `next_tick_ns` on can use."""
        for name, stream in self._streams.items():
            slots = stream.track.prune(next_tick_ns - stream.reach_ns)
            if slots and not stream.vector:
                self._backend.drop(name, slots)

    def reset(self, reason: str) -> None:
        """Empty the rings and start the timeline anew; `reason` goes into the log."""
        log.warning("the timeline starts anew: %s", reason)
        self.clock_jumps += 1
        self._next = self._now_ns = self._out_ns = None
        for name, stream in self._streams.items():
            self._backend.drop(name, stream.track.slots.tolist())
            stream.track.clear()
        self._backend.restart()

    def lost(self, stream: str) -> dict[str, int]:
        """Samples of a stream that were taken in and given up: `overrun` (no room), `corrupt` (found when used)."""
        entry = self._streams[stream]
        return {"overrun": entry.overrun, "corrupt": entry.corrupt}

    def memory(self) -> list[MemoryRow]:
        """The memory that is held, by stream and purpose."""
        return self._backend.memory()

    def counters(self) -> dict[str, int]:
        """What befell the device's memory and copies: `stalls`, `reallocations`, `captures`; none on the CPU."""
        return self._backend.counters()

    def _start_at(self, index: int) -> None:
        self._next = index
        self._out_ns = grid.tick_ns(index - 1, self.spec.rate_hz)

    def _candidates(self, now_ns: int) -> int:
        """Index past the last tick that can be due."""
        past = grid.last_at_or_before(now_ns - self._cut_ns, self.spec.rate_hz) + 1
        if self.spec.emit == "fixed":
            return past
        newest = min(int(s.track.stamps_ns[-1]) if len(s.track) else 0 for s in self._streams.values())
        return max(past, grid.last_at_or_before(newest, self.spec.rate_hz) + 1)
