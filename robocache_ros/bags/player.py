"""The pace of a replay: when each message of a recording goes out, and what /clock says meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from fractions import Fraction
from typing import Protocol

from robocache_ros.bags.source import RawMessage
from robocache_ros.errors import RoboCacheError

CLOCK_PERIOD_NS = 5_000_000  # of /clock in silences, on the steady clock


class Steady(Protocol):
    """A clock that never jumps, and can be slept by."""

    def now_ns(self) -> int:
        """Its time."""

    def sleep_until(self, due_ns: int) -> bool:
        """Return at a time of it; False where the replay shall stop."""


class SteadyClock:
    """The system's steady clock; `stopped` ends a replay."""

    def __init__(self, stopped: Callable[[], bool] = lambda: False) -> None:
        self._stopped = stopped

    def now_ns(self) -> int:
        """Its time."""
        return time.monotonic_ns()

    def sleep_until(self, due_ns: int) -> bool:
        """Return at a time of it; False where the replay shall stop."""
        while not self._stopped():
            left_ns = due_ns - time.monotonic_ns()
            if left_ns <= 0:
                return True
            time.sleep(min(left_ns, 100_000_000) / 1e9)
        return False


def play(
    messages: Iterable[RawMessage],
    publish: Callable[[RawMessage], bool],
    *,
    first_ns: int,
    rate: float = 1.0,
    clock: Callable[[int], None] | None = None,
    steady: Steady | None = None,
) -> bool:
    """Publish messages when their log time says so; False where it was stopped.

    Each message's time is computed from the first one's, so that nothing adds up to a drift; one that is behind goes
    out at once. With `clock`, each message's log time is announced right before it, so that a node in sim time can
    reproduce its arrival to the nanosecond, and in silences the clock goes on.

    Args:
        messages: in the order of the log.
        publish: sends one; True where that took a time that is not the recording's, which then stands still.
        first_ns: log time at which the replay begins.
        rate: seconds of the recording in a second.
        clock: announces a time of the recording.
        steady: what is slept by.
    """
    speed = check_rate(rate)
    by = steady or SteadyClock()
    begin_ns = by.now_ns()

    def due_ns(log_ns: int) -> int:
        return begin_ns + (log_ns - first_ns) * speed.denominator // speed.numerator

    beat = 0
    for message in messages:
        due = due_ns(message.log_ns)
        if clock:
            while (next_ns := begin_ns + beat * CLOCK_PERIOD_NS) < due:
                if next_ns >= by.now_ns() - CLOCK_PERIOD_NS:  # when behind, the messages themselves keep the clock
                    if not by.sleep_until(next_ns):
                        return False
                    clock(first_ns + (next_ns - begin_ns) * speed.numerator // speed.denominator)
                beat += 1
        if not by.sleep_until(due):
            return False
        if clock:
            clock(message.log_ns)
        before_ns = by.now_ns()
        if publish(message):
            begin_ns += by.now_ns() - before_ns
    return True


def check_rate(rate: float) -> Fraction:
    """The rate as a fraction; RoboCacheError where it is none to play at."""
    if not 0.001 <= rate <= 1000:
        raise RoboCacheError(f"rate: {rate!r} is not between 0.001 and 1000")
    return Fraction(rate).limit_denominator(1_000_000)
