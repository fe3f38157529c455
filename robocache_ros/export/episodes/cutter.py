"""Splits a recording into episodes: consecutive ticks without a time jump, with a value in every stream."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from robocache_ros.engine.frames import Frames
from robocache_ros.errors import RoboCacheError
from robocache_ros.spec import FusionSpec
from robocache_ros.units import NS_PER_S


@dataclass(frozen=True)
class EpisodeTicks:
    """Consecutive ticks of an episode."""

    frames: Frames
    first: bool  # whether they begin the episode


class EpisodeCutter:
    """Splits the ticks of a recording into episodes without time jumps and without missing values.

    A tick at which a stream has no value is not part of an episode, unless the stream's `on_invalid` is mask. The ticks
    after it start a new episode. A time jump also starts a new episode.

    Args:
        spec: the streams.
        min_frames: shorter episodes are omitted.

    Attributes:
        episodes: (start, stop) tick index of each episode, counted from the recording's first tick; stop is exclusive.
            Complete after `finish`.
        ticks: number of ticks processed so far.
    """

    def __init__(self, spec: FusionSpec, min_frames: int) -> None:
        self.episodes: list[tuple[int, int]] = []
        self.ticks = 0
        self._spec = spec
        self._min_frames = min_frames
        self._needed = np.array([stream.on_invalid != "mask" for stream in spec.streams])
        self._seen = np.zeros(len(spec.streams), bool)
        self._broken_at: dict[str, int] = {}  # streams with `fail` -> first missing tick after their first value
        self._start = 0
        self._newest_ns: int | None = None
        self._open = self._long_enough = False
        self._waiting: list[Frames] = []  # ticks of the open episode, until it has `min_frames`

    def cut(self, frames: Frames) -> Iterator[EpisodeTicks]:
        """Process the next ticks of the recording; yield those that belong to episodes.

        Errors:
            RoboCacheError: a stream whose `on_invalid` is fail has a value again after a tick without a value.
        """
        self._check_unbroken(frames)
        if len(frames):
            first_ns, self._newest_ns, newest_ns = int(frames.ticks_ns[0]), int(frames.ticks_ns[-1]), self._newest_ns
            if newest_ns is not None and not 0 < first_ns - newest_ns < 2 * NS_PER_S / self._spec.rate_hz:
                self._end(self.ticks)
        for start, stop, complete in runs(np.all(frames.valid[:, self._needed] > 0, axis=1)):
            if complete:
                yield from self._add(frames[start:stop], self.ticks + start)
            else:
                self._end(self.ticks + start)
        self.ticks += len(frames)

    def finish(self) -> None:
        """End the last episode."""
        self._end(self.ticks)

    def _add(self, frames: Frames, at: int) -> Iterator[EpisodeTicks]:
        if not self._open:
            self._open, self._start = True, at
        if self._long_enough:
            yield EpisodeTicks(frames, first=False)
            return
        self._waiting.append(frames)
        if sum(len(part) for part in self._waiting) >= self._min_frames:
            self._long_enough = True
            for number, part in enumerate(self._waiting):
                yield EpisodeTicks(part, first=number == 0)
            self._waiting = []

    def _end(self, stop: int) -> None:
        if self._long_enough:
            self.episodes.append((self._start, stop))
        self._open = self._long_enough = False
        self._waiting = []

    def _check_unbroken(self, frames: Frames) -> None:
        for index, stream in enumerate(self._spec.streams):
            if stream.on_invalid != "fail":
                continue
            for row, has_value in enumerate((frames.valid[:, index] > 0).tolist()):
                if not has_value and self._seen[index]:
                    self._broken_at.setdefault(stream.name, self.ticks + row)
                elif has_value and stream.name in self._broken_at:
                    at_s = self._broken_at[stream.name] / self._spec.rate_hz
                    raise RoboCacheError(
                        f"{stream.name}: has no value {at_s:.2f} s after the first tick, and its on_invalid is fail; "
                        "raise its max_age_ms, or use split, hold or mask"
                    )
                self._seen[index] |= has_value


def runs(states: NDArray[np.integer | np.bool_]) -> list[tuple[int, int, int]]:
    """Return (start, stop, state) of each run of equal values in the (T,) states."""
    if not len(states):
        return []
    edges = [0, *(np.flatnonzero(np.diff(states)) + 1).tolist(), len(states)]
    return [(start, stop, int(states[start])) for start, stop in pairwise(edges)]
