"""What stops a policy: the states of a run, and the limits of its commands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from robocache_ros.errors import RoboCacheError
from robocache_ros.spec.run import RunOptions

Float32: TypeAlias = "NDArray[np.float32]"


class State(Enum):
    """The state of a run."""

    WARMUP = "warmup"  # no valid command yet: nothing is sent
    RUN = "run"
    COAST = "coast"  # a tick without a command: the last one is repeated, for `coast_ticks` at most
    STOP = "stop"  # until it is armed again


class Stop(Enum):
    """What is sent after a stop."""

    HOLD = "hold"  # the last command; nothing if none was sent
    NONE = "none"  # nothing
    ZERO_VELOCITY = "zero-velocity"


@dataclass(frozen=True)
class Limits:
    """The limits of commands.

    Attributes:
        lower, upper: (A,) of each column; None: no limit.
        max_step: (A,) largest change from one tick to the next; None: no limit.
        coast_ticks: ticks without a command before the run stops.
        invalid_ticks: ticks of an invalid required stream before the run stops.
    """

    lower: Float32 | None = None
    upper: Float32 | None = None
    max_step: Float32 | None = None
    coast_ticks: int = RunOptions.coast_ticks
    invalid_ticks: int = RunOptions.invalid_ticks

    def arrays(self) -> dict[str, Float32]:
        """Return the limits of the columns that there are, by name."""
        found = {"lower": self.lower, "upper": self.upper, "max_step": self.max_step}
        return {name: values for name, values in found.items() if values is not None}

    def __post_init__(self) -> None:
        if self.lower is not None and self.upper is not None and (self.lower > self.upper).any():
            raise RoboCacheError("limits: lower is above upper; exchange them")


class Watchdog:
    """Decides for each tick what is sent.

    A stop is final until `arm`. Before the first valid command nothing is sent, so that a long first inference moves
    nothing.

    Attributes:
        state: of the run.
        reason: of the last stop; empty if there was none.
        last: (A,) the last row that was sent; None: nothing was.
    """

    def __init__(self, limits: Limits, names: Sequence[str]) -> None:
        self.limits = limits
        self.state = State.WARMUP
        self.reason = ""
        self._names = tuple(names)
        self.last: Float32 | None = None
        self._without = 0  # ticks without a command
        self._invalid: dict[str, int] = {}  # ticks of each invalid stream

    def command(self, row: Float32 | None) -> Float32 | None:
        """Return the row to send at a tick, given that of the plan: (A,) float32; None: send nothing of the plan."""
        if self.state is State.STOP:
            return None
        if row is None:
            return self._coast()
        if reason := self.unsafe(row, self.last):
            self.stop(reason)
            return None
        self.state, self._without, self.last = State.RUN, 0, row
        return row

    def stream(self, name: str, *, valid: bool) -> None:
        """Note whether a required stream is valid at a tick."""
        self._invalid[name] = 0 if valid else self._invalid.get(name, 0) + 1
        if self._invalid[name] > self.limits.invalid_ticks and self.state is not State.WARMUP:
            self.stop(f"{name}: invalid for {self._invalid[name]} ticks")

    def stop(self, reason: str) -> None:
        """Stop; the first reason stays."""
        if self.state is not State.STOP:
            self.state, self.reason = State.STOP, reason

    def arm(self) -> None:
        """Start again, after a stop."""
        self.state, self.reason, self.last, self._without = State.WARMUP, "", None, 0
        self._invalid.clear()

    def _coast(self) -> Float32 | None:
        if self.state is State.WARMUP:
            return None
        self._without += 1
        if self._without > self.limits.coast_ticks:
            self.stop(f"no command for {self._without} ticks")
            return None
        self.state = State.COAST
        return self.last

    def unsafe(self, row: Float32, before: Float32 | None) -> str:
        """Return why a row must not be sent after another one; empty if it may."""
        checks = [("is not finite", ~np.isfinite(row))]
        if self.limits.lower is not None:
            checks.append(("is below its limit", row < self.limits.lower))
        if self.limits.upper is not None:
            checks.append(("is above its limit", row > self.limits.upper))
        if self.limits.max_step is not None and before is not None:
            checks.append(("steps by more than its limit", np.abs(row - before) > self.limits.max_step))
        for text, wrong in checks:
            if wrong.any():
                at = int(np.flatnonzero(wrong)[0])
                return f"{self._names[at]}: {row[at]:g} {text}"
        return ""
