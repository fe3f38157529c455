"""Clocks, as functions of the log time."""

from __future__ import annotations

from collections.abc import Callable

from test.bags.conftest import MS, START_NS

S = 1000 * MS
TimeOf = Callable[[int], int]


def simulated(log_ns: int) -> int:
    """A simulation at 0.95 of the speed."""
    return 10 * S + (log_ns - START_NS) * 19 // 20


def looped(log_ns: int) -> int:
    """One that is reset every five seconds."""
    return 10 * S + (log_ns - START_NS) % (5 * S)


def paused(log_ns: int) -> int:
    """One that pauses for four seconds, after six."""
    elapsed = log_ns - START_NS
    return 10 * S + (elapsed if elapsed < 6 * S else max(6 * S, elapsed - 4 * S))


def wall(log_ns: int) -> int:
    return log_ns


def since_boot(log_ns: int) -> int:
    return log_ns - START_NS + 900 * S
