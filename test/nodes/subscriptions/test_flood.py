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


def test_a_step_that_reaches_its_limit_begins_a_flood(after: Callable[..., bool]) -> None:
    state = Flood()
    assert not after(state, [False] * 10)
    assert after(state, [True])


def test_a_flood_lasts_while_steps_reach_their_limit(after: Callable[..., bool]) -> None:
    assert after(Flood(), steps(10, every=1))


def test_a_flood_with_pauses_lasts(after: Callable[..., bool]) -> None:
    assert after(Flood(), steps(10, every=3))


def test_a_flood_ends_while_large_images_still_reach_the_short_limit(after: Callable[..., bool]) -> None:
    state = Flood()
    after(state, [True])
    assert not after(state, steps(1.01, every=8))  # two images at 30 Hz


def test_a_flood_ends_when_messages_end(after: Callable[..., bool]) -> None:
    state = Flood()
    after(state, steps(3, every=1))
    assert not after(state, [False] * (2 * FLOOD_WINDOW_NS // STEP_NS))
