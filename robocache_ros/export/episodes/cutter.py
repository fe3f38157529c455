"""Splits a recording into episodes: consecutive ticks of one part of it, with a value in every stream."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from robocache_ros.engine.frames import Frames
from robocache_ros.errors import RoboCacheError
from robocache_ros.export.dataset.row_columns import runs
from robocache_ros.spec import FusionSpec
from robocache_ros.units import NS_PER_S

NOTES = 20  # largest number of notes on parts that are left out


@dataclass(frozen=True)
class EpisodeTicks:
    """Consecutive ticks of an episode."""

    frames: Frames
    first: bool  # whether they begin the episode


class EpisodeCutter:
    """Splits the ticks of a recording into episodes without time jumps and without missing values.

    A tick at which an observation or an action has no value is not part of an episode, unless the stream's `on_invalid`
    is mask. The ticks after it start a new episode. A time jump and a new part of the recording also start one.

    Args:
        spec: the streams.
        min_frames: shorter episodes are omitted.
        max_frames: an episode ends after this many ticks, and another begins; 0: no limit.
        parts: (T,) number of the part of the recording that each tick is in; negative for ticks in no episode. None:
            the recording is one part.
        without: parts to leave out.

    Attributes:
        dropped: part -> why it is left out: a stream whose `on_invalid` is drop has a tick without a value between its
            first and its last value in the part.
    """

    def __init__(
        self,
        spec: FusionSpec,
        min_frames: int,
        *,
        max_frames: int = 0,
        parts: NDArray[np.int32] | None = None,
        without: Collection[int] = (),
    ) -> None:
        self._episodes: list[tuple[int, int, int]] = []  # start, stop, part
        self.dropped: dict[int, str] = {}
        self._spec = spec
        self._min_frames, self._max_frames = min_frames, max_frames
        self._parts = parts
        self._without = frozenset(without)
        masked = np.array([stream.on_invalid == "mask" for stream in spec.streams])
        self._needed = np.array(spec.inputs) & ~masked
        strict = [i for i, s in enumerate(spec.streams) if s.on_invalid in ("fail", "drop") and self._needed[i]]
        self._unbroken = {index: _Unbroken() for index in strict}
        self._begun: set[int] = set()  # parts of which ticks were yielded
        self._newest_ns: int | None = None
        self._start = self._stop = 0
        self._part = -1  # of the open episode; -1: none is open
        self._long_enough = False
        self._waiting: list[Frames] = []  # ticks of the open episode, until it has `min_frames`

    @property
    def episodes(self) -> list[tuple[int, int]]:
        """(start, stop) tick numbers of each episode, counted from the recording's first tick; stop is exclusive.

        Complete after `finish`.
        """
        return [(start, stop) for start, stop, part in self._episodes if part not in self.dropped]

    @property
    def incomplete(self) -> bool:
        """Whether ticks of a part were yielded that is left out."""
        return not self._begun.isdisjoint(self.dropped)

    @property
    def notes(self) -> list[str]:
        """Say which parts are left out, one line each."""
        reasons = list(self.dropped.values())
        more = [f"and {len(reasons) - NOTES} more episodes are left out"] if len(reasons) > NOTES else []
        return [f"an episode is left out: {reason}" for reason in reasons[:NOTES]] + more

    def complete(self, valid: NDArray[np.uint8]) -> NDArray[np.bool_]:
        """Return which of the (T, N) ticks have a value in every stream that needs one: (T,) bool."""
        return np.asarray(np.all(valid[:, self._needed] > 0, axis=1))

    def cut(self, frames: Frames, at: int) -> Iterator[EpisodeTicks]:
        """Process the next ticks of the recording; yield those that belong to episodes.

        Args:
            frames: the ticks.
            at: number of the first of them.

        Errors:
            RoboCacheError: a stream whose `on_invalid` is fail has a value again after a tick without a value.
        """
        if not len(frames):
            return
        first_ns, self._newest_ns, newest_ns = int(frames.ticks_ns[0]), int(frames.ticks_ns[-1]), self._newest_ns
        if newest_ns is not None and not 0 < first_ns - newest_ns < 2 * NS_PER_S / self._spec.rate_hz:
            self.finish()
        parts = np.zeros(len(frames), np.int32) if self._parts is None else self._parts[at : at + len(frames)]
        for index in self._unbroken:
            self._check_unbroken(frames, at, parts, index)
        for start, stop, part in runs(np.where(self.complete(frames.valid), parts, -1)):
            if part != self._part:
                self.finish()
            if part >= 0 and part not in self._without and part not in self.dropped:
                yield from self._add(frames[start:stop], at + start, part)

    def finish(self) -> None:
        """End the open episode."""
        if self._long_enough:
            self._episodes.append((self._start, self._stop, self._part))
        self._part, self._long_enough = -1, False
        self._waiting = []

    def _add(self, frames: Frames, at: int, part: int) -> Iterator[EpisodeTicks]:
        while len(frames):
            if self._part < 0:
                self._part, self._start, self._stop = part, at, at
            room = self._start + self._max_frames - at if self._max_frames else len(frames)
            yield from self._extend(frames[:room])
            at, frames = self._stop, frames[room:]
            if self._max_frames and self._stop - self._start == self._max_frames:
                self.finish()

    def _extend(self, frames: Frames) -> Iterator[EpisodeTicks]:
        """Add ticks to the open episode."""
        self._stop += len(frames)
        if self._long_enough:
            yield EpisodeTicks(frames, first=False)
            return
        self._waiting.append(frames)
        if self._stop - self._start >= self._min_frames:
            self._long_enough = True
            self._begun.add(self._part)
            waiting, self._waiting = self._waiting, []
            for number, ticks in enumerate(waiting):
                yield EpisodeTicks(ticks, first=number == 0)

    def _check_unbroken(self, frames: Frames, at: int, parts: NDArray[np.int32], index: int) -> None:
        """Find a tick without a value between two values of a stream in one part."""
        stream, state = self._spec.streams[index], self._unbroken[index]
        for row in np.flatnonzero(parts >= 0).tolist():
            missing = state.next(int(parts[row]), at + row, has_value=frames.valid[row, index] > 0)
            if missing is None:
                continue
            found = f"{stream.name}: has no value {missing / self._spec.rate_hz:.2f} s after the first tick"
            if stream.on_invalid == "fail":
                raise RoboCacheError(
                    f"{found}, and its on_invalid is fail; raise its max_age_ms, or use split, hold or mask"
                )
            self.dropped.setdefault(int(parts[row]), f"{found}, and its on_invalid is drop")


class _Unbroken:
    """The values of a stream in the newest part of a recording."""

    def __init__(self) -> None:
        self._part, self._seen = -1, False
        self._missing: int | None = None  # first tick without a value after one with a value

    def next(self, part: int, tick: int, *, has_value: bool) -> int | None:
        """Add a tick; return the first tick without a value if there is one between two values."""
        if part != self._part:
            self._part, self._seen, self._missing = part, False, None
        if has_value:
            self._seen = True
            return self._missing
        if self._seen and self._missing is None:
            self._missing = tick
        return None
