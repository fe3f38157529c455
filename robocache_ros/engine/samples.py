"""The samples of a stream: their order in time, the selection for a tick or a window."""

from __future__ import annotations

import logging
import math
from bisect import bisect_left, bisect_right
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robocache_ros.engine import tick_grid
from robocache_ros.engine.backends.interface import Backend, Selections, TickSelections, TooSlowError
from robocache_ros.engine.device_clock import DeviceClock
from robocache_ros.engine.tick_grid import JUMP_AHEAD_NS
from robocache_ros.ops.resample.selection import ALIGNED, NOTHING, Rule, TickSelection, select, select_one
from robocache_ros.ops.window import select_window
from robocache_ros.spec import FusionSpec, StreamSpec
from robocache_ros.units import NS_PER_MS, NS_PER_S

Int64 = NDArray[np.int64]


class SampleIndex:
    """Samples sorted by stamp. A payload stays in its slot; only the rows of the index are moved.

    Args:
        capacity: number of slots.
        growing: double the slots when all are in use, instead of dropping the oldest sample.
    """

    def __init__(self, capacity: int, *, growing: bool = False) -> None:
        self.capacity = capacity
        self.growing = growing
        # Stamps, arrivals and slots; twice as long as needed, so that rows are rarely moved.
        self._use(np.empty((3, 2 * capacity), np.int64))
        self.clear()

    def clear(self) -> None:
        """Drop every sample."""
        self._start = self._stop = 0
        self._newest = -(2**63)
        self._free = list(range(self.capacity - 1, -1, -1))

    def __len__(self) -> int:
        return self._stop - self._start

    def _use(self, rows: Int64) -> None:
        self._rows = rows
        self._stamps: memoryview[int]
        self._arrivals: memoryview[int]
        self._slots: memoryview[int]
        # A number is read from a memoryview, as an int, in half of the time that an array takes.
        self._stamps, self._arrivals, self._slots = (row.data for row in rows)

    @property
    def numbers(self) -> tuple[memoryview[int], memoryview[int], memoryview[int]]:
        """`stamps_ns`, `arrivals_ns` and `slots`, to read single numbers from."""
        inside = slice(self._start, self._stop)
        return self._stamps[inside], self._arrivals[inside], self._slots[inside]

    @property
    def stamps_ns(self) -> Int64:
        """(S,) int64, strictly increasing."""
        return self._rows[0, self._start : self._stop]

    @property
    def arrivals_ns(self) -> Int64:
        """(S,) int64."""
        return self._rows[1, self._start : self._stop]

    @property
    def slots(self) -> Int64:
        """(S,) int64."""
        return self._rows[2, self._start : self._stop]

    def select(self, tick_ns: int, rule: Rule, deadline_ns: int | None) -> TickSelection:
        """The samples of a tick by a rule, as slots; a tick uses samples that arrived by its deadline."""
        rows = (self._start, self._stop)
        lower, upper, weight, valid, age_ns = select_one(self._stamps, tick_ns, rule, self._arrivals, deadline_ns, rows)
        return NOTHING if lower < 0 else (self._slots[lower], self._slots[upper], weight, valid, age_ns)

    def between(self, start_ns: int, tick_ns: int, deadline_ns: int | None) -> tuple[list[int], list[int]]:
        """The slots and the stamps of the samples in (start, tick] that arrived by a deadline, the oldest first."""
        first = bisect_right(self._stamps, start_ns, self._start, self._stop)
        rows = slice(first, bisect_right(self._stamps, tick_ns, first, self._stop))
        slots, stamps = self._slots[rows].tolist(), self._stamps[rows].tolist()
        if deadline_ns is not None:
            arrivals = self._arrivals[rows].tolist()
            if arrivals and max(arrivals) > deadline_ns:
                seen = [i for i, arrival in enumerate(arrivals) if arrival <= deadline_ns]
                slots, stamps = [slots[i] for i in seen], [stamps[i] for i in seen]
        return slots, stamps

    @property
    def full(self) -> bool:
        """Whether the next `insert` drops the oldest sample."""
        return not self._free and not self.growing

    def __contains__(self, stamp_ns: int) -> bool:
        if stamp_ns > self._newest:
            return False
        row = bisect_left(self._stamps, stamp_ns, self._start, self._stop)
        return row < self._stop and self._stamps[row] == stamp_ns

    def insert(self, stamp_ns: int, arrival_ns: int) -> int:
        """Add a sample with a new stamp; returns the slot for its payload."""
        if not self._free:
            if self.growing:
                self._free = list(range(2 * self.capacity - 1, self.capacity - 1, -1))
                self.capacity *= 2
            else:
                self.drop(0)
        if self._stop == self._rows.shape[1]:
            self._compact()
        slot = self._free.pop()
        row = self._stop
        if stamp_ns < self._newest:
            row = bisect_left(self._stamps, stamp_ns, self._start, self._stop)
            self._rows[:, row + 1 : self._stop + 1] = self._rows[:, row : self._stop].copy()
        else:
            self._newest = stamp_ns
        self._stamps[row], self._arrivals[row], self._slots[row] = stamp_ns, arrival_ns, slot
        self._stop += 1
        return slot

    def extend(self, stamps_ns: Int64, arrivals_ns: Int64) -> Int64:
        """Add (M,) samples with increasing stamps, newer than all others, to a growing index; returns their slots."""
        count = len(stamps_ns)
        while len(self._free) < count:
            self._free = [*range(2 * self.capacity - 1, self.capacity - 1, -1), *self._free]
            self.capacity *= 2
        if self._stop + count > self._rows.shape[1]:
            self._compact()
        slots = np.array(self._free[: -count - 1 : -1], np.int64)
        del self._free[len(self._free) - count :]
        added = slice(self._stop, self._stop + count)
        self._rows[0, added], self._rows[1, added], self._rows[2, added] = stamps_ns, arrivals_ns, slots
        self._stop += count
        if count:
            self._newest = int(stamps_ns[-1])
        return slots

    @property
    def newest_ns(self) -> int:
        """The newest stamp; a value below any stamp if there are no samples."""
        return self._newest

    def drop(self, row: int) -> int:
        """Drop one sample; returns the freed slot."""
        at = self._start + row
        slot = self._slots[at]
        self._free.append(slot)
        if row == 0:
            self._start += 1
        else:
            self._rows[:, at : self._stop - 1] = self._rows[:, at + 1 : self._stop].copy()
            self._stop -= 1
        self._newest = self._stamps[self._stop - 1] if len(self) else -(2**63)
        return slot

    def prune(self, before_ns: int) -> list[int]:
        """Drop every sample older than `before_ns`; returns the freed slots."""
        start = self._start
        if start == self._stop or self._stamps[start] >= before_ns:
            return []
        self._start = bisect_left(self._stamps, before_ns, start, self._stop)
        freed = self._slots[start : self._start].tolist()
        self._free.extend(freed)
        if self._start == self._stop:
            self._newest = -(2**63)
        return freed

    def _compact(self) -> None:
        kept = self._rows[:, self._start : self._stop].copy()
        if self._rows.shape[1] < 2 * self.capacity:
            self._use(np.empty((3, 2 * self.capacity), np.int64))
        self._rows[:, : kept.shape[1]] = kept
        self._start, self._stop = 0, kept.shape[1]


NO_SAMPLE_NS = -(2**63)

log = logging.getLogger(__name__)


DEFAULT_RATE_HZ = {"vector": 1000.0, "image": 60.0, "cloud": 30.0}  # assumed if the spec declares no rate


def slots_for(spec: StreamSpec, fusion: FusionSpec) -> int:
    """Number of slots for a stream: its rate times its reach and the delay, with a margin for late ticks."""
    if spec.is_transform:  # one pose for each tick of a call
        return math.ceil((JUMP_AHEAD_NS + fusion.delay_ns) * fusion.rate_hz / NS_PER_S)
    rate = spec.rate_hz or DEFAULT_RATE_HZ[spec.kind]
    reach_ns = max(_reach_ns(spec), tick_grid.period_ns(fusion.rate_hz) if spec.samples else 0)
    span_s = (reach_ns + fusion.delay_ns) / NS_PER_S
    if spec.kind == "vector":
        return math.ceil(2 * rate * (span_s + 0.5)) + 16
    return math.ceil(1.25 * rate * (span_s + 0.1)) + 4  # each slot takes megabytes


class StreamSamples:
    """The index of one stream's samples, and the selection from it."""

    def __init__(self, spec: StreamSpec, slots: int, unbounded: bool) -> None:
        self.spec = spec
        self.rule = Rule(spec.method, spec.max_gap_ns, spec.max_age_ns, holds=spec.on_invalid == "hold")
        self.reach_ns = _reach_ns(spec)
        self.by_arrival = spec.stamp == "receive"
        self.clock = DeviceClock() if spec.stamp == "device" else None
        self.skew_ns, self.latency_ns = spec.max_skew_ns, spec.latency_ns
        self.index = SampleIndex(slots, growing=unbounded)
        self.vector = spec.kind == "vector"
        # Vectors of a robot: else, a tick drops what later ones cannot use, as images and clouds take memory.
        self.pruned_when_full = self.vector and not unbounded
        self.overrun = 0
        self.corrupt = 0
        self.too_slow = 0
        self.missing: dict[str, int] = {}  # reasons for missing poses, with their ticks; the newest is last

    @property
    def lost(self) -> dict[str, int]:
        """Samples that were accepted but lost later, by cause.

        `overrun`: no slot was free. `corrupt`: the payload cannot be decoded. `too_slow`: decoding takes longer than a
        tick may wait (on a robot only).
        """
        return {"overrun": self.overrun, "corrupt": self.corrupt, "too_slow": self.too_slow}

    def time_ns(self, stamp_ns: int | None, arrival_ns: int, value: Any) -> int | None:
        """A sample's time by the spec's `stamp`, before `latency_ms`; None if a required stamp is not set."""
        # ROS marks a stamp that was never set with time zero.
        if self.by_arrival or (not stamp_ns and self.spec.stamp == "header_or_receive"):
            return arrival_ns
        if not stamp_ns:
            return None
        clock = self.clock_of(value)
        return clock.translate(stamp_ns, arrival_ns) if clock else stamp_ns

    def clock_of(self, _value: Any) -> DeviceClock | None:
        """The clock that translates the stamp of a value; None if stamps are used as they are."""
        return self.clock

    def add(self, backend: Backend, stamp_ns: int, arrival_ns: int, value: Any) -> bool:
        """Add a sample; returns False if a sample with this stamp exists (the first one is kept).

        A full index drops its oldest sample, and ignores a sample that is older than all of its samples.
        """
        if stamp_ns in self.index:
            return False
        if self.index.full and stamp_ns < self.index.stamps_ns[0]:
            self.overrun += 1
            return True
        backend.put(self.spec.name, self.insert(stamp_ns, arrival_ns), value)
        return True

    def insert(self, stamp_ns: int, arrival_ns: int) -> int:
        """Add a sample to the index; returns the slot for its payload."""
        if self.index.full:
            self.overrun += 1
        return self.index.insert(stamp_ns, arrival_ns)

    def newest_ns(self, _now_ns: int) -> int:
        """The newest stamp, or 0 if there are no samples."""
        return int(self.index.stamps_ns[-1]) if len(self.index) else 0

    def extend(self, stamps_ns: Int64, arrivals_ns: Int64, cut_ns: int, rate_hz: int) -> tuple[Int64, int]:
        """Add the leading samples of a recording, up to the first one that is unset, skewed, duplicate or out of order.

        Args:
            stamps_ns: (M,) header stamps from the messages; not used if the stream uses arrival times.
            arrivals_ns: (M,).
            cut_ns: time from a tick until the tick is computed.
            rate_hz: ticks per second.

        Returns:
            The slots of the added samples, and the number of late samples among them.
        """
        stamps = arrivals_ns if self.by_arrival else stamps_ns
        good = np.abs(stamps - arrivals_ns) <= self.skew_ns
        if not self.by_arrival:
            good &= stamps != 0
        stamps = stamps - self.latency_ns
        good &= np.diff(stamps, prepend=self.index.newest_ns if len(self.index) else stamps[0] - 1) > 0
        count = len(good) if good.all() else int(good.argmin())
        stamps, arrivals = stamps[:count], arrivals_ns[:count]
        # The first tick at or after each stamp, as in tick_grid; computed within each second to avoid int64 overflow.
        seconds, rest = np.divmod(stamps, NS_PER_S)
        ticks = seconds * NS_PER_S + -(-rest * rate_hz // NS_PER_S) * NS_PER_S // rate_hz
        late = (arrivals - stamps > cut_ns) & (arrivals > ticks + cut_ns)
        return self.index.extend(stamps, arrivals), int(np.count_nonzero(late))

    def clear(self, backend: Backend) -> None:
        """Drop every sample and restart the timeline."""
        backend.drop(self.spec.name, self.index.slots.tolist())
        self.index.clear()
        if self.clock:
            self.clock.restart()

    def select(
        self, backend: Backend, ticks: Int64, deadlines: Int64 | None, selections: Selections, number: int
    ) -> None:
        """Fill column `number` of the selections; if a payload is unusable, drop it and select again."""
        index = self.index
        while True:
            selected = select(index.stamps_ns, ticks, self.rule, index.arrivals_ns, deadlines)
            rows = np.unique(selected.lower[selected.lower >= 0])
            if self.vector or all(self._usable(backend, slot) for slot in index.slots[rows].tolist()):
                return selections.set(number, selected, index.slots)

    def select_one(self, backend: Backend, tick_ns: int, deadline_ns: int | None, selected: TickSelections) -> None:
        """Append the selection for a single tick, as `select`."""
        while True:
            found = self.index.select(tick_ns, self.rule, deadline_ns)
            if self.vector or found[0] < 0 or self._usable(backend, found[0]):
                return selected.streams.append(found)

    def prune(self, backend: Backend, next_tick_ns: int) -> None:
        """Drop the samples that no tick from `next_tick_ns` on can use."""
        slots = prune(self.index, next_tick_ns - self.reach_ns, holds=self.rule.holds)
        if slots and not self.vector:
            backend.drop(self.spec.name, slots)

    def shown_ns(self, ticks: Int64) -> Int64:
        """(T,) earliest arrival of a sample at or after each tick; the largest int64 if there is none."""
        first_arrival = np.full(len(self.index) + 1, np.iinfo(np.int64).max)
        first_arrival[:-1] = np.minimum.accumulate(self.index.arrivals_ns[::-1])[::-1]
        shown: Int64 = first_arrival[np.searchsorted(self.index.stamps_ns, ticks)]
        return shown

    def _usable(self, backend: Backend, slot: int) -> bool:
        try:
            backend.check(self.spec.name, slot)
        except ValueError as error:
            slow = isinstance(error, TooSlowError)
            if not (self.too_slow if slow else self.corrupt):
                log.warning("%s: a sample is dropped: %s", self.spec.name, error)
            self.too_slow += slow
            self.corrupt += not slow
            self.index.drop(self.index.slots.tolist().index(slot))
            backend.drop(self.spec.name, [slot])
            return False
        return True


def prune(index: SampleIndex, before_ns: int, *, holds: bool) -> list[int]:
    """Drop samples older than `before_ns`; returns the freed slots.

    holds: keep the newest sample that every later tick sees; it is used without a limit on its age.
    """
    if holds:
        arrived = np.flatnonzero(index.arrivals_ns <= before_ns)
        before_ns = min(before_ns, int(index.stamps_ns[arrived[-1]])) if len(arrived) else NO_SAMPLE_NS
    return index.prune(before_ns)


def _reach_ns(spec: StreamSpec) -> int:
    """How far back, and how far ahead, a tick can look."""
    return max(spec.max_gap_ns, spec.max_age_ns)


class WindowSamples(StreamSamples):
    """The index of a window's samples, and the selection from it.

    Attributes:
        window_overflow: samples since the previous tick that exceed the size of the window, which uses the newest ones.
    """

    def __init__(self, spec: StreamSpec, slots: int, unbounded: bool, rate_hz: int, ages: slice) -> None:
        super().__init__(spec, slots, unbounded)
        self.reach_ns = tick_grid.period_ns(rate_hz)
        self.window_overflow = 0
        self._rate_hz, self._ages = rate_hz, ages

    @property
    def lost(self) -> dict[str, int]:
        """The losses of any stream, and `window_overflow`."""
        return {**super().lost, "window_overflow": self.window_overflow}

    def select(
        self, backend: Backend, ticks: Int64, deadlines: Int64 | None, selections: Selections, number: int
    ) -> None:
        """Fill column `number` of the selections, and the stream's window."""
        starts = tick_grid.ticks_before(ticks, self._rate_hz)
        limits = (self.spec.samples, self.index.arrivals_ns, deadlines)
        window = select_window(self.index.stamps_ns, starts, ticks, *limits)
        self.window_overflow += window.dropped
        selections.set_window(number, window, self.index.slots, self._ages)

    def select_one(self, backend: Backend, tick_ns: int, deadline_ns: int | None, selected: TickSelections) -> None:
        """Append the selection for a single tick, as `select`, and its window."""
        start_ns = tick_grid.tick_before(tick_ns, self._rate_hz)
        slots, stamps = self.index.between(start_ns, tick_ns, deadline_ns)
        most = self.spec.samples
        if len(slots) > most:
            self.window_overflow += len(slots) - most
            slots, stamps = slots[-most:], stamps[-most:]
        found = (slots[-1], slots[-1], 0.0, ALIGNED, tick_ns - stamps[-1]) if slots else NOTHING
        selected.windows[len(selected.streams)] = slots
        selected.streams.append(found)
        if self._ages.stop > self._ages.start:
            ages = [(tick_ns - stamp) / NS_PER_MS for stamp in stamps]
            selected.sample_age_ms[self._ages] = ages + [-1.0] * (most - len(ages))
