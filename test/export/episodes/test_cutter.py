"""EpisodeCutter: which ticks become episodes."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from robocache_ros.engine.frames import Frames
from robocache_ros.errors import RoboCacheError
from robocache_ros.exporter.episodes import EpisodeCutter
from robocache_ros.formats.pieces import runs
from robocache_ros.spec import FusionSpec, load_spec


def spec(*policies: str) -> FusionSpec:
    streams = {
        f"s{index}": {"topic": f"/s{index}", "type": "std_msgs/msg/Float32", "on_invalid": policy}
        for index, policy in enumerate(policies)
    }
    return load_spec({"robocache": 1, "streams": streams})


def ticks(valid: list[list[int]], first: int = 0) -> Frames:
    rows = np.array(valid, np.uint8).reshape(len(valid), -1)
    times = (np.arange(len(rows)) + first) * 20_000_000
    return Frames(times, torch.zeros(rows.shape), rows, np.zeros(rows.shape, np.int64), {})


def cut(cutter: EpisodeCutter, *parts: Frames) -> list[list[int]]:
    """The ticks of each episode, by number."""
    episodes: list[list[int]] = []
    at = 0
    for part in parts:
        for piece in cutter.cut(part, at):
            if piece.first:
                episodes.append([])
            episodes[-1].extend((piece.frames.ticks_ns // 20_000_000).tolist())
        at += len(part)
    cutter.finish()
    return episodes


def test_ticks_without_a_value_separate_episodes() -> None:
    cutter = EpisodeCutter(spec("split"), 1)
    assert cut(cutter, ticks([[0], [1], [2], [0], [1], [0]])) == [[1, 2], [4]]
    assert cutter.episodes == [(1, 3), (4, 5)]


def test_episode_that_is_too_short_is_left_out() -> None:
    assert cut(EpisodeCutter(spec("split"), 2), ticks([[1], [0], [1], [1], [0], [1]])) == [[2, 3]]


def test_time_that_jumps_back_ends_an_episode() -> None:
    cutter = EpisodeCutter(spec("split"), 1)
    assert cut(cutter, ticks([[1], [1], [1]], 10), ticks([[1], [1]], 11)) == [[10, 11, 12], [11, 12]]


def test_masked_stream_leaves_no_tick_out() -> None:
    valid = [[1, 0], [1, 1], [0, 1], [1, 0]]
    assert cut(EpisodeCutter(spec("split", "mask"), 1), ticks(valid)) == [[0, 1], [3]]
    assert cut(EpisodeCutter(spec("mask", "mask"), 1), ticks(valid)) == [[0, 1, 2, 3]]


def test_stream_that_must_not_fail_is_refused_after_a_gap_and_not_for_its_ends() -> None:
    assert cut(EpisodeCutter(spec("fail"), 1), ticks([[0], [1], [1], [0]])) == [[1, 2]]
    with pytest.raises(RoboCacheError, match=r"s0: has no value 0\.04 s after the first tick, and its on_invalid is f"):
        cut(EpisodeCutter(spec("fail"), 1), ticks([[0], [1], [0]]), ticks([[0], [1]], 3))


def test_dropped_stream_leaves_out_the_part_with_a_gap_only() -> None:
    parts = np.array([0, 0, 0, 1, 1, -1, 2, 2, 2], np.int32)
    valid = [[1], [0], [1], [1], [1], [0], [0], [1], [0]]
    cutter = EpisodeCutter(spec("drop"), 1, parts=parts)
    assert cut(cutter, ticks(valid)) == [[3, 4], [7]]
    assert cutter.episodes == [(3, 5), (7, 8)]
    why = "s0: has no value 0.02 s after the first tick, and its on_invalid is drop"
    assert cutter.notes == [f"an episode is left out: {why}"]


def test_part_whose_ticks_were_yielded_before_it_is_dropped_is_reported() -> None:
    cutter = EpisodeCutter(spec("drop"), 1)
    assert cut(cutter, ticks([[1], [1], [0]]), ticks([[1]], 3)) == [[0, 1]]
    assert (cutter.incomplete, cutter.episodes) == (True, [])
    again = EpisodeCutter(spec("drop"), 1, without=cutter.dropped)
    assert cut(again, ticks([[1], [1], [0]]), ticks([[1]], 3)) == []
    assert not again.incomplete


def test_reward_and_success_may_be_missing() -> None:
    streams = {"s": {"topic": "/s", "type": "std_msgs/msg/Float32"}}
    done = {"done": {"topic": "/d", "type": "std_msgs/msg/Bool", "role": "success", "on_invalid": "fail"}}
    outcome = load_spec({"robocache": 1, "streams": {**streams, **done}})
    assert cut(EpisodeCutter(outcome, 1), ticks([[1, 0], [1, 1], [1, 0], [1, 1]])) == [[0, 1, 2, 3]]


@given(
    valid=st.lists(st.booleans(), max_size=40),
    numbers=st.lists(st.integers(-2, 1), max_size=40),
    longest=st.integers(0, 6),
    least=st.integers(1, 4),
    data=st.data(),
)
def test_no_tick_is_lost_or_in_two_episodes(
    valid: list[bool], numbers: list[int], longest: int, least: int, data: st.DataObject
) -> None:
    count = min(len(valid), len(numbers))
    begins = np.diff(np.array(numbers[:count]), prepend=-3) != 0
    parts = np.where(np.array(numbers[:count]) < 0, numbers[:count], np.cumsum(begins)).astype(np.int32)
    edges = sorted({0, count, *data.draw(st.lists(st.integers(0, count), max_size=6))})
    cutter = EpisodeCutter(spec("split"), least, max_frames=longest, parts=parts)

    episodes = cut(cutter, *(ticks([[int(v)] for v in valid[a:b]], a) for a, b in pairwise(edges)))

    expected = []
    for start, stop, part in runs(np.where(np.array(valid[:count], bool), parts, -1)):
        if part >= 0:
            step = longest or stop - start
            expected += [list(range(at, min(at + step, stop))) for at in range(start, stop, step)]
    assert episodes == [ticks for ticks in expected if len(ticks) >= least]
    assert cutter.episodes == [(episode[0], episode[-1] + 1) for episode in episodes]


@given(valid=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), max_size=60), data=st.data())
def test_episodes_do_not_depend_on_how_the_ticks_are_handed_over(valid: list[Any], data: st.DataObject) -> None:
    least = data.draw(st.integers(1, 5))
    edges = sorted({0, len(valid), *data.draw(st.lists(st.integers(0, len(valid)), max_size=8))})
    parts = [ticks(valid[a:b], a) for a, b in pairwise(edges)]
    cutter = EpisodeCutter(spec("split", "hold"), least)

    episodes = cut(cutter, *parts)

    complete = [all(row) for row in valid]
    assert episodes == [list(range(start, stop)) for start, stop in cutter.episodes]
    assert all(complete[tick] for episode in episodes for tick in episode)
    assert all(len(episode) >= least for episode in episodes)
    runs = "".join("x" if ok else " " for ok in complete).split()
    assert sum(len(run) for run in runs if len(run) >= least) == sum(map(len, episodes))
