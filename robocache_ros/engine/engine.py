"""The fusion engine: takes samples and computes frames on the tick grid, for a robot, a bag and a dataset alike."""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robocache_ros.engine import tick_grid
from robocache_ros.engine.backends.cpu import CpuBackend
from robocache_ros.engine.backends.interface import Backend, MemoryRow, Options, Selections, TickSelections
from robocache_ros.engine.frames import Frames
from robocache_ros.engine.samples import slots_for
from robocache_ros.engine.tick_grid import JUMP_BACK_NS
from robocache_ros.engine.transforms import StaticTransforms, samples_of
from robocache_ros.errors import RoboCacheError
from robocache_ros.ops.image.nvjpeg import require_jpeg
from robocache_ros.ops.installation import resolve_device
from robocache_ros.spec import FusionSpec
from robocache_ros.spec.layout import Layout
from robocache_ros.units import NS_PER_S

log = logging.getLogger(__name__)

Int64 = NDArray[np.int64]


class Outcome(enum.Enum):
    """What the engine did with a sample; each is a counter in the diagnostics."""

    ACCEPTED = "accepted"
    LATE = "late"  # its tick is already published; later ticks may still use it
    DUPLICATE = "duplicate"  # the stream has a sample with this stamp; the first one is kept
    SKEWED = "skewed"  # its stamp is too far from its arrival
    UNSTAMPED = "unstamped"  # the stream uses header stamps, and the message has none or an unset one (0, 0)
    DROPPED = "dropped"  # it cannot be decoded
    WAITING = "waiting"  # an image that waits for its other half


class FusionEngine:
    """Aligns and fuses streams on the tick grid.

    A frame depends only on the sequence of `(stamp, arrival, value)`: a tick is published at its emission time and uses
    exactly the samples that arrived by then, however late the caller asks for it.

    Args:
        spec: the streams and the timeline.
        device: `cpu`, `cuda`, `cuda:1`, or `auto`: the GPU if one works, else the CPU (logged). Results are the same.
        unbounded: keep every sample until `prune` (recordings) instead of a fixed number (robots). Samples and frames
            are on the CPU; `device` converts the images and clouds.
        normalized: return images as float32, normalised as the spec declares; else 8-bit images are uint8.
        jpeg: where jpeg images are decoded: `cpu` uses the same decoder as recordings; `gpu` uses nvJPEG (needs
            torchvision), which is faster and differs by a few counts.
        payload_bytes: size of the largest image or cloud of a stream, to allocate GPU memory before the first one
            arrives and shows its size.
        channels_last: return uint8 images in torch's channels_last memory format (recordings), which saves time.
        media: convert images and clouds (False, on the CPU: frames have their states and ages, and no tensors of them).

    Raises:
        RoboCacheError: the device does not exist or does not have enough free memory.
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
        channels_last: bool = False,
        media: bool = True,
    ) -> None:
        self.spec = spec
        self.layout = Layout(spec)
        self.clock_jumps = 0
        capacities = {s.name: slots_for(s, spec) for s in spec.streams}
        options = Options(normalized, jpeg, payload_bytes or {}, channels_last and unbounded, media)
        self._backend = make_backend(self.layout, capacities, device, unbounded, options)
        self.device = self._backend.device
        self.static_transforms = StaticTransforms()
        self._streams = samples_of(spec, capacities, self.static_transforms, unbounded)
        self._pruned_by_ticks = [s for s in self._streams.values() if not s.pruned_when_full]
        self.device_clocks = {name: s.clock for name, s in self._streams.items() if s.clock}
        self._cut_ns = spec.cut_ns
        self._period_ns = -(-NS_PER_S // spec.rate_hz)
        self._next: int | None = None  # index of the next tick
        self._out_ns: int | None = None  # time of the tick before `_next`
        self._now_ns: int | None = None
        # Called with the name of a stream, (M,) stamps and the values of samples as they are added, such as by viewers.
        self.watch: Callable[[str, Int64, Any], None] | None = None

    def push(self, stream: str, stamp_ns: int | None, arrival_ns: int, value: Any) -> Outcome:
        """Add a sample.

        Args:
            stream: name of its stream.
            stamp_ns: the header's stamp, as received; None if the message has none, 0 if it was not set.
            arrival_ns: time at which it was received, on the clock of `advance`.
            value: (D,) float32 values, an image or cloud payload, or a transform (DecodeError: too many frames).
        """
        if self._now_ns is not None and arrival_ns < self._now_ns - JUMP_BACK_NS:
            self.reset(f"the clock jumped back by {(self._now_ns - arrival_ns) / 1e9:.3f} s")
            self._now_ns = arrival_ns
        entry = self._streams[stream]
        stamp_ns = entry.time_ns(stamp_ns, arrival_ns, value)
        if stamp_ns is None:
            return Outcome.UNSTAMPED
        if abs(stamp_ns - arrival_ns) > entry.skew_ns:
            return Outcome.SKEWED
        stamp_ns -= entry.latency_ns
        late = self._out_ns is not None and stamp_ns <= self._out_ns
        if not late and arrival_ns - stamp_ns > self._cut_ns:  # else it arrived before its tick is computed
            tick = tick_grid.first_at_or_after(stamp_ns, self.spec.rate_hz)
            late = arrival_ns > tick_grid.tick_ns(tick, self.spec.rate_hz) + self._cut_ns
        if late and self._out_ns is not None and stamp_ns <= self._out_ns - entry.reach_ns - self._period_ns:
            return Outcome.LATE  # no later tick can use it
        if entry.pruned_when_full and entry.index.full and self._next is not None:
            entry.prune(self._backend, tick_grid.tick_ns(self._next, self.spec.rate_hz))
        if not entry.add(self._backend, stamp_ns, arrival_ns, value):
            return Outcome.DUPLICATE
        if self.watch:
            self.watch(stream, np.array([stamp_ns], np.int64), value)
        return Outcome.LATE if late else Outcome.ACCEPTED

    def extend(
        self, stream: str, stamps_ns: Int64 | None, arrivals_ns: Int64, values: NDArray[np.float32]
    ) -> tuple[int, int]:
        """Add the leading samples of a recorded vector stream that `push` accepts or counts as late.

        Args:
            stream: name of the stream.
            stamps_ns: (M,) as in `push`; None if the messages have none.
            arrivals_ns: (M,).
            values: (M, D) float32.

        Returns:
            The number of samples added (at most M), and how many of them are late. Pass the next one to `push`.
        """
        entry = self._streams[stream]
        known = arrivals_ns if stamps_ns is None else stamps_ns
        live = self._now_ns is not None or not entry.index.growing or (stamps_ns is None and not entry.by_arrival)
        if live or entry.clock or not len(values):
            return 0, 0
        slots, late = entry.extend(known, arrivals_ns, self._cut_ns, self.spec.rate_hz)
        self._backend.put_rows(stream, slots, values[: len(slots)])
        if self.watch:
            stamps = (arrivals_ns if entry.by_arrival else known)[: len(slots)] - entry.latency_ns
            self.watch(stream, stamps, values[: len(slots)])
        return len(slots), late

    def buffer(self, feed: str, nbytes: int) -> NDArray[np.uint8]:
        """Memory of at least `nbytes` uint8 for a message of a feed, to fill before `push`.

        The memory is in use while any object refers to it. A GPU engine copies an image or a cloud from it without
        another copy on the host.
        """
        return self._backend.buffer(feed, nbytes)

    def advance(self, now_ns: int, limit: int | None = None) -> Frames:
        """Compute the ticks that are due by `now_ns`, T >= 0; push all samples that arrived by then first.

        `limit`: maximum number of ticks; with 1, a GPU engine allocates nothing.
        """
        rate_hz = self.spec.rate_hz
        if self._now_ns is not None and now_ns < self._now_ns - JUMP_BACK_NS:
            self.reset(f"the clock jumped back by {(self._now_ns - now_ns) / 1e9:.3f} s")
        elif self._now_ns is not None and now_ns > self._now_ns + tick_grid.JUMP_AHEAD_NS:
            self.reset(f"the clock jumped ahead by {(now_ns - self._now_ns) / 1e9:.3f} s")
        self._now_ns = now_ns
        if self._next is None:
            self._start_at(tick_grid.first_at_or_after(now_ns, rate_hz))
            assert self._next is not None
        due = max(0, self._candidates(now_ns) - self._next)
        if self.spec.emit == "fixed":
            due = due if limit is None else min(due, limit)
            if due == 1:  # on a robot
                tick_ns = tick_grid.tick_ns(self._next, rate_hz)
                return self._advanced(1, self._resolve_one(tick_ns, tick_ns + self._cut_ns))
        ticks = tick_grid.ticks_ns(self._next, due, rate_hz)
        deadlines = self.deadlines(ticks)
        if self.spec.emit == "eager":
            # With poses of /tf, a tick can be complete before an earlier one; it waits for that one.
            due = int(np.searchsorted(np.maximum.accumulate(deadlines), now_ns, side="right"))
            due = due if limit is None else min(due, limit)
        if not due:
            return self.resolve(ticks[:0], deadlines[:0])
        return self._advanced(due, self.resolve(ticks[:due], deadlines[:due]))

    def _advanced(self, ticks: int, frames: Frames) -> Frames:
        """Move on by these ticks, and drop what the next one cannot use."""
        assert self._next is not None
        self._start_at(self._next + ticks)
        next_tick_ns = tick_grid.tick_ns(self._next, self.spec.rate_hz)
        for stream in self._pruned_by_ticks:
            stream.prune(self._backend, next_tick_ns)
        return frames

    @property
    def earliest_arrival_ns(self) -> int | None:
        """The earliest arrival that `push` does not take for a clock that jumped back; None before the first tick."""
        return None if self._now_ns is None else self._now_ns - JUMP_BACK_NS

    @property
    def next_due_ns(self) -> int | None:
        """The latest time at which the next tick is computed; None before the first `advance`."""
        return None if self._next is None else tick_grid.tick_ns(self._next, self.spec.rate_hz) + self._cut_ns

    @property
    def newest_cut_ns(self) -> int | None:
        """The latest arrival that a tick has seen so far; None before the first `advance`."""
        return None if self._out_ns is None else self._out_ns + self._cut_ns

    def deadlines(self, ticks_ns: Int64) -> Int64:
        """(T,) int64 deadlines of ticks, given all pushed samples; a tick uses samples that arrived by its deadline."""
        fixed = ticks_ns + self._cut_ns
        if self.spec.emit == "fixed" or not len(ticks_ns):
            return fixed
        shown: Int64 = np.max([stream.shown_ns(ticks_ns) for stream in self._streams.values()], axis=0)
        return np.asarray(np.minimum(fixed, shown))

    def resolve(self, ticks_ns: Int64, deadlines_ns: Int64 | None = None) -> Frames:
        """Compute the frames of any ticks.

        Args:
            ticks_ns: (T,) int64.
            deadlines_ns: (T,) int64; a tick uses samples that arrived by its deadline. None: all pushed samples.
        """
        if len(ticks_ns) == 1:
            return self._resolve_one(ticks_ns.item(), None if deadlines_ns is None else deadlines_ns.item())
        selections = Selections.empty(len(ticks_ns), len(self._streams), self.layout.ages)
        if len(ticks_ns):
            for number, samples in enumerate(self._streams.values()):
                samples.select(self._backend, ticks_ns, deadlines_ns, selections, number)
        return self._backend.render(ticks_ns, selections)

    def _resolve_one(self, tick_ns: int, deadline_ns: int | None) -> Frames:
        """`resolve` for a single tick, without arrays."""
        selected = TickSelections([], {}, [-1.0] * self.layout.ages)
        for stream in self._streams.values():
            stream.select_one(self._backend, tick_ns, deadline_ns, selected)
        return self._backend.render_one(tick_ns, selected)

    def prune(self, next_tick_ns: int) -> None:
        """Drop the samples that no tick from `next_tick_ns` on can use."""
        for stream in self._streams.values():
            stream.prune(self._backend, next_tick_ns)

    def reset(self, reason: str) -> None:
        """Drop every sample and restart the timeline; `reason` is logged."""
        log.warning("the timeline restarts: %s", reason)
        self.clock_jumps += 1
        self._next = self._now_ns = self._out_ns = None
        for stream in self._streams.values():
            stream.clear(self._backend)
        self._backend.restart()

    def lost(self, stream: str) -> dict[str, int]:
        """Samples of a stream that were accepted but lost later, by cause; see `StreamSamples.lost`."""
        return self._streams[stream].lost

    def missing(self, stream: str) -> dict[str, int]:
        """Why ticks have no pose from /tf for a stream, with the number of ticks; the newest reason is last."""
        return self._streams[stream].missing

    def memory(self) -> list[MemoryRow]:
        """The memory in use, by stream and purpose."""
        return self._backend.memory()

    def counters(self) -> dict[str, int]:
        """Events of the GPU's memory and copies: `stalls`, `reallocations`, `captures`; empty on the CPU."""
        return self._backend.counters()

    def _start_at(self, index: int) -> None:
        self._next = index
        self._out_ns = tick_grid.tick_ns(index - 1, self.spec.rate_hz)

    def _candidates(self, now_ns: int) -> int:
        """One past the index of the last tick that can be due."""
        past = tick_grid.last_at_or_before(now_ns - self._cut_ns, self.spec.rate_hz) + 1
        if self.spec.emit == "fixed":
            return past
        newest = min(stream.newest_ns(now_ns) for stream in self._streams.values())
        return max(past, tick_grid.last_at_or_before(newest, self.spec.rate_hz) + 1)


def make_backend(
    layout: Layout, capacities: Mapping[str, int], device: str, unbounded: bool, options: Options
) -> Backend:
    """The backend of a device; `capacities` maps streams to slots, the other arguments are those of FusionEngine."""
    media = [stream.name for stream in layout.spec.media]
    for name in options.payload_bytes:
        if name not in media:
            known = ", ".join(media) or "none"
            raise RoboCacheError(f"payload_bytes.{name}: no image or cloud stream has that name; the spec has {known}")
    if options.jpeg not in ("cpu", "gpu"):
        raise RoboCacheError(f"jpeg: {options.jpeg!r} is not one of cpu, gpu")
    selected = resolve_device(device)
    if selected.type == "cpu":
        if options.jpeg == "gpu":
            raise RoboCacheError(f"jpeg: 'gpu' needs a GPU, and device: {device!r} is the CPU; use jpeg: cpu")
        return CpuBackend(layout, capacities, options, live=not unbounded)
    if unbounded:
        if options.jpeg == "gpu":
            require_jpeg()
        return CpuBackend(layout, capacities, replace(options, converts=selected), live=False)
    from robocache_ros.engine.backends.gpu import GpuBackend

    return GpuBackend(layout, capacities, selected, options)
