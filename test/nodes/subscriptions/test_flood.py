"""Flood: when it begins and when it ends."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

from robocache_ros.nodes import subscriptions
from robocache_ros.nodes.subscriptions import FLOOD_WINDOW_NS, Flood

STEP_NS = 4_000_000


@pytest.fixture
def after(monkeypatch: pytest.MonkeyPatch) -> Callable[[Flood, Iterable[bool]], bool]:
    """Counts steps, 4 ms apart; returns whether the flood is active after them."""
    now_ns = [0]
    monkeypatch.setattr(subscriptions.time, "monotonic_ns", lambda: now_ns[0])

    def count(state: Flood, limited: Iterable[bool]) -> bool:
        for reached in limited:
            state.add(reached)
            now_ns[0] += STEP_NS
        return state.active

    return count


def steps(seconds: float, every: int) -> list[bool]:
    """Steps of a time, of which one in `every` reaches its limit."""
    return [number % every == 0 for number in range(round(seconds * FLOOD_WINDOW_NS / STEP_NS))]


@pytest.mark.parametrize(
    ("before", "limited", "active"),
    [
        ([False] * 10, [False], False),
        ([False] * 10, [True], True),
        ([], steps(10, every=1), True),
        ([], steps(10, every=3), True),
        ([True], steps(1.01, every=8), False),  # large images: two at 30 Hz still reach the short limit
        (steps(3, every=1), [False] * (2 * FLOOD_WINDOW_NS // STEP_NS), False),
    ],
    ids=["no limit is reached", "one is", "while they are", "with pauses", "large images only", "messages end"],
)
def test_a_flood_begins_and_ends_with_the_limits_that_are_reached(
    after: Callable[..., bool], before: list[bool], limited: list[bool], active: bool
) -> None:
    state = Flood()
    after(state, before)
    assert after(state, limited) is active
