"""The pace of a replay: when each message of a recording is published, and the time on /clock."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from fractions import Fraction
from typing import Protocol

from robocache_ros.bags.source import RawMessage
from robocache_ros.errors import RoboCacheError

CLOCK_PERIOD_NS = 5_000_000  # of /clock in silences, on the steady clock


class Steady(Protocol):
    """A clock that never jumps, and can be waited on."""

    def now_ns(self) -> int:
        """Its time."""

    def sleep_until(self, due_ns: int) -> bool:
        """Return at that time; False where the replay is to stop."""


class SteadyClock:
    """The system's steady clock; `stopped` ends a replay."""

    def __init__(self, stopped: Callable[[], bool] = lambda: False) -> None:
        self._stopped = stopped

    def now_ns(self) -> int:
        """Its time."""
        return time.monotonic_ns()

    def sleep_until(self, due_ns: int) -> bool:
        """Return at that time; False where the replay is to stop."""
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
    """Publish messages at their log times; False where the replay was stopped.

    Each message's time is computed from the first one's, so that no error accumulates; a message that is late is
    published at once. With `clock`, each message's log time is announced right before it, so that a node in sim time
    reproduces its arrival to the nanosecond; in silences the clock continues.

    Args:
        messages: in the order of the log.
        publish: publishes one; True where that took time that does not count, so that the recording pauses meanwhile.
        first_ns: log time at which the replay begins.
        rate: seconds of the recording in a second.
        clock: announces a time of the recording.
        steady: the clock to wait on.
    """
    speed = check_rate(rate)
    by = steady or SteadyClock()
    begin_ns = by.now_ns()

    def due_ns(log_ns: int) -> int:
        return begin_ns + (log_ns - first_ns) * speed.denominator // speed.numerator

    pulse = 0
    for message in messages:
        due = due_ns(message.log_ns)
        if clock:
            while (next_ns := begin_ns + pulse * CLOCK_PERIOD_NS) < due:
                if next_ns >= by.now_ns() - CLOCK_PERIOD_NS:  # when behind, the messages themselves keep the clock
                    if not by.sleep_until(next_ns):
                        return False
                    clock(first_ns + (next_ns - begin_ns) * speed.numerator // speed.denominator)
                pulse += 1
        if not by.sleep_until(due):
            return False
        if clock:
            clock(message.log_ns)
        before_ns = by.now_ns()
        if publish(message):
            begin_ns += by.now_ns() - before_ns
    return True


def check_rate(rate: float) -> Fraction:
    """The rate as a fraction; RoboCacheError where it is out of range."""
    if not 0.001 <= rate <= 1000:
        raise RoboCacheError(f"rate: {rate!r} is not between 0.001 and 1000")
    return Fraction(rate).limit_denominator(1_000_000)
