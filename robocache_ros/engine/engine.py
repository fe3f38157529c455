"""The fusion engine: samples in, frames on the tick grid out; the same for a robot, a bag and a dataset."""

from __future__ import annotations

import enum
import logging
import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from robocache_ros.engine import grid
from robocache_ros.engine.frames import Frames
from robocache_ros.engine.media import converter
from robocache_ros.engine.stores import MediaStore, VectorStore
from robocache_ros.engine.track import Track
from robocache_ros.layout import Layout
from robocache_ros.ops.select import Rule, Selection, select
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


class _Stream:
    """One stream in the engine: its spec, its index and its payloads."""

    def __init__(self, spec: StreamSpec, fusion: FusionSpec, unbounded: bool) -> None:
        self.spec = spec
        self.rule = Rule(spec.align, spec.max_gap_ns, spec.max_age_ns)
        self.reach_ns = max(spec.max_gap_ns, spec.max_age_ns)  # no tick looks further back than this
        rate = spec.rate_hz or DEFAULT_RATE_HZ[spec.kind]
        # Twice the declared rate over the reach and the delay, and half a second for a tick that comes late.
        capacity = math.ceil(2 * rate * ((self.reach_ns + fusion.delay_ns) / NS_PER_S + 0.5)) + 16
        self.track = Track(capacity, growing=unbounded)
        self.vectors = VectorStore(spec.width, spec.align, capacity) if spec.kind == "vector" else None
        self.media = None if self.vectors else MediaStore(*converter(spec))
        self.overrun = 0
        self.corrupt = 0

    def put(self, stamp_ns: int, arrival_ns: int, value: Any) -> None:
        if self.track.full:
            self.overrun += 1
        (self.vectors or self.media).put(self.track.insert(stamp_ns, arrival_ns), value)  # type: ignore[union-attr]

    def prune(self, before_ns: int) -> None:
        slots = self.track.prune(before_ns)
        if slots and self.media:
            self.media.drop(slots)

    def clear(self) -> None:
        if self.media:
            self.media.drop(self.track.slots.tolist())
        self.track.clear()

    def select(self, ticks: Int64, deadlines: Int64 | None) -> Selection:
        return select(self.track.stamps_ns, ticks, self.rule, self.track.arrivals_ns, deadlines)

    def take_media(self, media: MediaStore, ticks: Int64, deadlines: Int64 | None) -> tuple[Selection, torch.Tensor]:
        """Select and convert; a payload that proves corrupt is counted, taken out, and the choice made again."""
        while True:
            chosen = self.select(ticks, deadlines)
            for row in np.unique(chosen.lower[chosen.lower >= 0]).tolist():
                try:
                    media.convert(int(self.track.slots[row]))
                except ValueError as error:
                    if not self.corrupt:
                        log.warning("%s: a sample is left out: %s", self.spec.name, error)
                    self.corrupt += 1
                    media.drop([self.track.drop(row)])
                    break
            else:
                rows = chosen.lower
                slots = self.track.slots[rows].tolist() if len(self.track) else [-1] * len(rows)
                return chosen, media.take([slot if row >= 0 else -1 for slot, row in zip(slots, rows, strict=True)])

    def shown_ns(self, ticks: Int64) -> Int64:
        """When the stream first showed a sample at or after each tick; the far future where it has not."""
        first_arrival = np.full(len(self.track) + 1, np.iinfo(np.int64).max)
        first_arrival[:-1] = np.minimum.accumulate(self.track.arrivals_ns[::-1])[::-1]
        shown: Int64 = first_arrival[np.searchsorted(self.track.stamps_ns, ticks)]
        return shown


class FusionEngine:
    """Aligns and fuses streams on the tick grid.

    A frame is a function of the sequence of `(stamp, arrival, value)` alone: a tick goes out at its emission time and
    sees exactly what had arrived by then, however late the caller asks for it.

    Args:
        spec: the streams and the timeline.
        device: `cpu`.
        unbounded: keep every sample until `prune` (recordings) instead of a fixed number (robots).
    """

    def __init__(self, spec: FusionSpec, device: str = "cpu", *, unbounded: bool = False) -> None:
        self.spec = spec
        self.device = torch.device(device)
        self.layout = Layout(spec)
        self.clock_jumps = 0
        self._streams = {s.name: _Stream(s, spec, unbounded) for s in spec.streams}
        self._next: int | None = None  # index of the next tick to go out
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
        if entry.spec.stamp == "receive":
            stamp_ns = arrival_ns
        elif stamp_ns is None:
            return Outcome.UNSTAMPED
        if abs(stamp_ns - arrival_ns) > entry.spec.max_skew_ns:
            return Outcome.SKEWED
        stamp_ns -= entry.spec.latency_ns
        tick = grid.first_at_or_after(stamp_ns, self.spec.rate_hz)
        late = arrival_ns > grid.tick_ns(tick, self.spec.rate_hz) + self.spec.delay_ns
        if self._next is not None:
            late = late or tick < self._next
            if stamp_ns < grid.tick_ns(self._next, self.spec.rate_hz) - entry.reach_ns:
                return Outcome.LATE  # no tick to come looks back that far
        if entry.track.holds(stamp_ns):
            return Outcome.DUPLICATE
        entry.put(stamp_ns, arrival_ns, value)
        return Outcome.LATE if late else Outcome.ACCEPTED

    def advance(self, now_ns: int) -> Frames:
        """The ticks that are due by `now_ns` and not yet out, T >= 0; all that arrived by then has been pushed."""
        rate_hz = self.spec.rate_hz
        if self._now_ns is not None and now_ns < self._now_ns - JUMP_BACK_NS:
            self.reset(f"the clock jumped back by {(self._now_ns - now_ns) / 1e9:.3f} s")
        elif self._now_ns is not None and now_ns > self._now_ns + JUMP_AHEAD_NS:
            self.reset(f"the clock jumped ahead by {(now_ns - self._now_ns) / 1e9:.3f} s")
        self._now_ns = now_ns
        if self._next is None:
            self._next = grid.first_at_or_after(now_ns, rate_hz)
        ticks = grid.ticks_ns(self._next, max(0, self._candidates(now_ns) - self._next), rate_hz)
        deadlines = self.deadlines(ticks)
        due = int(np.searchsorted(deadlines, now_ns, side="right"))
        if not due:
            return self.resolve(ticks[:0], deadlines[:0])
        frames = self.resolve(ticks[:due], deadlines[:due])
        self._next += due
        self.prune(grid.tick_ns(self._next, rate_hz))
        return frames

    @property
    def next_due_ns(self) -> int | None:
        """When the next tick goes out at the latest; None before the first `advance`."""
        return None if self._next is None else grid.tick_ns(self._next, self.spec.rate_hz) + self.spec.delay_ns

    def deadlines(self, ticks_ns: Int64) -> Int64:
        """When each of (T,) ticks goes out, for all that has been pushed: what arrived by then is what it sees."""
        fixed = ticks_ns + self.spec.delay_ns
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
        fused = torch.zeros(len(ticks_ns), self.layout.width)
        media, valid, age = {}, [], []
        for name, stream in self._streams.items():
            if stream.media:
                chosen, media[name] = stream.take_media(stream.media, ticks_ns, deadlines_ns)
            else:
                chosen = stream.select(ticks_ns, deadlines_ns)
                assert stream.vectors
                stream.vectors.take(stream.track.slots, chosen, fused[:, self.layout.slots[name]])
            valid.append(chosen.valid)
            age.append(chosen.age_ns)
        return Frames(ticks_ns, fused, np.stack(valid, axis=1), np.stack(age, axis=1), media)

    def prune(self, next_tick_ns: int) -> None:
        """Let go of the samples that no tick from `next_tick_ns` on can use."""
        for stream in self._streams.values():
            stream.prune(next_tick_ns - stream.reach_ns)

    def reset(self, reason: str) -> None:
        """Empty the rings and start the timeline anew; `reason` goes into the log."""
        log.warning("the timeline starts anew: %s", reason)
        self.clock_jumps += 1
        self._next = self._now_ns = None
        for stream in self._streams.values():
            stream.clear()

    def lost(self, stream: str) -> dict[str, int]:
        """Samples of a stream that were taken in and given up: `overrun` (no room), `corrupt` (found when used)."""
        entry = self._streams[stream]
        return {"overrun": entry.overrun, "corrupt": entry.corrupt}

    def _candidates(self, now_ns: int) -> int:
        """Index past the last tick that can be due."""
        past = grid.last_at_or_before(now_ns - self.spec.delay_ns, self.spec.rate_hz) + 1
        if self.spec.emit == "fixed":
            return past
        newest = min(int(s.track.stamps_ns[-1]) if len(s.track) else 0 for s in self._streams.values())
        return max(past, grid.last_at_or_before(newest, self.spec.rate_hz) + 1)
