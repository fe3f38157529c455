"""The values of the stream of a spec that says whether an episode succeeded."""

from __future__ import annotations

import numpy as np

from robocache_ros.engine.frames import Frames
from robocache_ros.spec import FusionSpec, Layout

NONE = -1  # no value at the tick


class SuccessValues:
    """Collects the values of the stream with role `success`: any number but 0 is success.

    Args:
        spec: the streams.
        ticks: number of ticks of the recording.
    """

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
