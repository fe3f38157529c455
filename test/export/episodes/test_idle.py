"""Ticks at which nothing moves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from robocache_ros.bags.fuse import BagRun
from robocache_ros.bags.reader import Bag
from robocache_ros.errors import RoboCacheError
from robocache_ros.exporter.boundaries import covered, idle_ticks, range_of_windows
from robocache_ros.exporter.job import export
from robocache_ros.spec import FusionSpec, load_spec
from robocache_ros.spec.dataset import DatasetOptions
from test.export.episodes.conftest import spec_of


@given(values=st.lists(st.floats(-100, 100, width=32), max_size=30), count=st.integers(1, 8))
def test_range_of_windows_equals_its_definition(values: list[float], count: int) -> None:
    expected = [max(values[i : i + count]) - min(values[i : i + count]) for i in range(len(values) - count + 1)]
    assert range_of_windows(np.array(values, np.float32), count).tolist() == expected


@given(windows=st.lists(st.booleans(), max_size=20), count=st.integers(2, 6))
def test_covered_ticks_are_those_of_the_windows(windows: list[bool], count: int) -> None:
    total = len(windows) + count - 1 if windows else count - 1
    expected = [any(windows[max(0, tick - count + 1) : tick + 1]) for tick in range(total)]
    assert covered(np.array(windows, bool), count, total).tolist() == expected


def idle(bag: Path, spec: FusionSpec, seconds: float) -> list[tuple[int, int]]:
    """(start, stop) of each run of idle ticks."""
    with Bag(bag) as opened:
        found = idle_ticks(BagRun(opened, spec, trim=False), seconds)
    edges = np.flatnonzero(np.diff(found.astype(int), prepend=0, append=0))
    return list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))


def moving(k: int) -> tuple[float, float]:
    """Stands still for one second, moves for three, stands still for two, and moves to the end."""
    at = max(0, min(k, 200) - 50) + max(0, k - 300)
    return (at, 0)


def test_idle_ticks_are_at_the_ends_and_within(record: Callable[..., Path]) -> None:
    bag = record(state=moving, command=lambda k: (0, 0))
    assert idle(bag, spec_of(), 0.5) == [(0, 54), (197, 304)]  # 3 of 350 ticks of motion are within 1 % of the range
    assert idle(bag, spec_of(state={"idle": 0}), 0.5) == [(0, 51), (200, 301)]
    assert idle(bag, spec_of(state={"idle": 0}), 1.0) == [(0, 51), (200, 301)]  # 51 ticks are one second
    assert idle(bag, spec_of(state={"idle": 0}), 1.02) == [(200, 301)]


def test_a_changing_action_is_motion(record: Callable[..., Path]) -> None:
    bag = record(state=moving, command=lambda k: (k // 10, 0))
    assert idle(bag, spec_of(), 0.5) == []
    assert idle(bag, spec_of(command={"idle": 3}, state={"idle": 0}), 0.5) == [(0, 51), (200, 301)]


def test_trimmed_ticks_split_the_recording_and_are_stated(record: Callable[..., Path], tmp_path: Path) -> None:
    bag = record(state=moving, command=lambda k: (0, 0))
    options = DatasetOptions(media="none", trim_idle_s=0.5)
    (recording,) = export([bag], spec_of(state={"idle": 0}), tmp_path / "out", options).recordings
    assert [(episode.start, episode.stop) for episode in recording.episodes] == [(51, 200), (301, 501)]
    assert recording.reasons == {"without motion": 152}
    assert recording.left_out().startswith("152 of 501 ticks left out: 152 without motion (51 at the start, 101 in")


def test_a_still_period_over_the_end_of_an_episode_is_left_out_of_both(
    record: Callable[..., Path], tmp_path: Path
) -> None:
    episodes = [(0, True), (5, False), (5.02, True)]  # within the two seconds without motion, which begin at 4 s
    bag = record({("/episode", "std_msgs/msg/Bool"): episodes}, state=moving, command=lambda k: (0, 0))
    options = DatasetOptions(media="none", trim_idle_s=1.5, episode_topic="/episode")
    (recording,) = export([bag], spec_of(state={"idle": 0}), tmp_path / "out", options).recordings
    assert [(episode.start, episode.stop) for episode in recording.episodes] == [(0, 200), (301, 501)]


def test_a_recording_without_motion_is_refused(record: Callable[..., Path], tmp_path: Path) -> None:
    bag = record(state=lambda _: (0, 0), command=lambda _: (0, 0))
    with pytest.raises(RoboCacheError, match="bag: nothing moves for longer than --trim-idle allows; raise it"):
        export([bag], spec_of(), tmp_path / "out", DatasetOptions(media="none", trim_idle_s=1))


def test_a_spec_of_images_only_has_no_motion_to_see(tmp_path: Path) -> None:
    images = {"front": {"topic": "/front", "type": "sensor_msgs/msg/Image"}}
    spec = load_spec({"robocache": 1, "streams": images})
    with pytest.raises(RoboCacheError, match="trim_idle_s: the spec has no vector stream to see motion in"):
        export([tmp_path], spec, tmp_path / "out", DatasetOptions(trim_idle_s=1))
