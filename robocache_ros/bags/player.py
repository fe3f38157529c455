"""Replay timing: when each message of a recording is published, and the time on /clock."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from fractions import Fraction
from typing import Protocol

from robocache_ros.bags.source import RawMessage
from robocache_ros.errors import RoboCacheError

CLOCK_PERIOD_NS = 5_000_000  # period of /clock between messages, on the steady clock


class Steady(Protocol):
    """A monotonic clock with a wait."""

    def now_ns(self) -> int:
        """Return the current time in nanoseconds."""

    def sleep_until(self, due_ns: int) -> bool:
        """Sleep until `due_ns`; return False if the replay must stop."""


class SteadyClock:
    """The system's monotonic clock; `stopped` ends a replay."""

    def __init__(self, stopped: Callable[[], bool] = lambda: False) -> None:
        self._stopped = stopped

    def now_ns(self) -> int:
        """Return the current time in nanoseconds."""
        return time.monotonic_ns()

    def sleep_until(self, due_ns: int) -> bool:
        """Sleep until `due_ns`; return False if the replay must stop."""
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
    """Publish messages at their log times; return False if the replay was stopped.

    The time of each message is computed relative to the first message, so errors do not accumulate. A late message is
    published immediately. With `clock`, the log time of each message is announced immediately before the message, so a
    node in sim time reproduces its arrival to the nanosecond. Between messages the clock continues.

    Args:
        messages: in log order.
        publish: publishes a message; returns True to exclude the time of the call, as if the replay paused meanwhile.
        first_ns: log time at which the replay begins.
        rate: seconds of the recording per second.
        clock: publishes a time of the recording on /clock.
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
                if next_ns >= by.now_ns() - CLOCK_PERIOD_NS:  # when late, the messages themselves advance the clock
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
    """Return the rate as a fraction; RoboCacheError if it is out of range."""
    if not 0.001 <= rate <= 1000:
        raise RoboCacheError(f"rate: {rate!r} is not between 0.001 and 1000")
    return Fraction(rate).limit_denominator(1_000_000)
