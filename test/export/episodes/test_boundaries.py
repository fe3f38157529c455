"""Boundaries, tasks and outcomes of episodes that a recording states itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from robocache_ros.errors import RoboCacheError
from robocache_ros.exporter.job import export
from robocache_ros.formats.pieces import EpisodeInfo
from robocache_ros.formats.recording import ExportedRecording
from robocache_ros.spec import FusionSpec, load_spec
from robocache_ros.spec.dataset import DatasetOptions
from test.export.episodes.conftest import spec_of

Record = Callable[..., Path]


def exported(bag: Path, spec: FusionSpec | None = None, **options: Any) -> ExportedRecording:
    out = bag.parent / "out"
    result = export([bag], spec or spec_of(), out, DatasetOptions(media="none", **options), overwrite=True)
    return result.recordings[0]


def extents(recording: ExportedRecording) -> list[tuple[int, int]]:
    return [(episode.start, episode.stop) for episode in recording.episodes]


@pytest.mark.parametrize(
    ("type_", "values", "expected"),
    [
        ("Bool", [(0, False), (1, True), (1.5, True), (3, False), (4, True)], [(50, 150), (200, 501)]),
        ("Int32", [(1, 7), (2, 7), (3, 8)], [(50, 150), (150, 501)]),
        ("String", [(1, "lift"), (2, ""), (3, "place"), (5, "lift")], [(50, 100), (150, 250), (250, 501)]),
        ("Empty", [(2, 0), (4.001, 0)], [(0, 100), (100, 201), (201, 501)]),
        ("Float32", [(2, 1.0), (4, 1.0)], [(0, 100), (100, 200), (200, 501)]),
    ],
)
def test_a_topic_begins_and_ends_episodes(record: Record, type_: str, values: Any, expected: Any) -> None:
    recording = exported(record({("/episode", f"std_msgs/msg/{type_}"): values}), episode_topic="/episode")
    assert extents(recording) == expected
    outside = 501 - sum(stop - start for start, stop in expected)
    assert recording.reasons == ({"outside of episodes": outside} if outside else {})


def test_a_gap_splits_the_episode_of_a_topic(record: Record) -> None:
    events = {("/episode", "std_msgs/msg/Bool"): [(1, True), (5, False)]}
    bag = record(events, state=lambda k: None if 100 <= k < 120 else (k, 0))
    assert extents(exported(bag, episode_topic="/episode")) == [(50, 105), (120, 250)]


def test_ticks_outside_of_episodes_do_not_count_against_min_valid(record: Record) -> None:
    events = {("/episode", "std_msgs/msg/Bool"): [(1, True), (2, False), (9.9, True)]}
    assert extents(exported(record(events), episode_topic="/episode", min_valid=1.0)) == [(50, 100), (495, 501)]


def test_a_topic_without_an_episode_is_refused(record: Record) -> None:
    bag = record({("/episode", "std_msgs/msg/Bool"): [(1, False)]})
    with pytest.raises(RoboCacheError, match="bag: no tick is in an episode of its topic or file; correct them"):
        exported(bag, episode_topic="/episode")
    with pytest.raises(RoboCacheError, match=r"episode_topic: .* has no topic /episodes; it has /command, /episode"):
        exported(bag, episode_topic="/episodes")


def test_the_task_of_an_episode_is_the_newest_at_its_start_else_the_first_in_it(record: Record) -> None:
    episodes = [(0, True), (2, False), (3, True), (5, False), (6, True)]
    tasks = [(1, "lift the cube"), (3.5, "place it\n"), (7, "lift again")]
    events = {("/episode", "std_msgs/msg/Bool"): episodes, ("/task", "std_msgs/msg/String"): tasks}
    recording = exported(record(events), episode_topic="/episode", task_topic="/task")
    assert [episode.task for episode in recording.episodes] == ["lift the cube", "lift the cube", "place it"]


def test_an_episode_before_the_first_task_has_the_task_of_the_export(record: Record) -> None:
    events = {("/episode", "std_msgs/msg/Empty"): [(5, 0)], ("/task", "std_msgs/msg/String"): [(6, "lift")]}
    recording = exported(record(events), episode_topic="/episode", task_topic="/task")
    assert [episode.task for episode in recording.episodes] == [None, "lift"]


def test_a_task_topic_has_text(record: Record) -> None:
    with pytest.raises(RoboCacheError, match="task_topic: /state is std_msgs/msg/Float64MultiArray, not std_msgs/"):
        exported(record(), task_topic="/state")
    with pytest.raises(RoboCacheError, match="task_topic: /task has a text of more than 1,000 characters; shorten it"):
        exported(record({("/task", "std_msgs/msg/String"): [(1, " " * 1001)]}, name="long"), task_topic="/task")


def test_success_is_the_last_value_of_an_episode(record: Record) -> None:
    done = {"done": {"topic": "/done", "type": "std_msgs/msg/Bool", "role": "success"}}
    episodes = [(0, True), (2, False), (3, True), (5, False), (6, True)]
    success = [(1, True), (1.5, False), (4.9, True)]
    events = {("/episode", "std_msgs/msg/Bool"): episodes, ("/done", "std_msgs/msg/Bool"): success}
    recording = exported(record(events), spec_of(**done), episode_topic="/episode")
    assert [episode.success for episode in recording.episodes] == [False, True, None]


def test_success_that_is_stated_after_the_last_row_counts(record: Record) -> None:
    done = {"done": {"topic": "/done", "type": "std_msgs/msg/Bool", "role": "success"}}
    bag = record({("/done", "std_msgs/msg/Bool"): [(9, True)]}, state=lambda k: (k, 0) if k < 400 else None)
    assert exported(bag, spec_of(**done)).episodes == (EpisodeInfo(0, 405, None, True),)


def test_split_makes_episodes_of_one_length_and_keeps_the_rest(record: Record) -> None:
    bag = record()
    assert extents(exported(bag, split_s=4)) == [(0, 200), (200, 400), (400, 501)]
    recording = exported(bag, split_s=4, min_frames=102)
    assert extents(recording) == [(0, 200), (200, 400)]
    assert recording.reasons == {"in episodes that are too short": 101}


def test_ticks_without_their_action_are_stated(record: Record) -> None:
    recording = exported(record(), split_s=4, action_offset=3)
    assert extents(recording) == [(0, 197), (200, 397), (400, 498)]
    assert recording.reasons == {"without their action": 9}


def test_another_rate_has_its_own_ticks(record: Record) -> None:
    recording = exported(record(), rate_hz=20)
    assert (recording.spec.rate_hz, extents(recording)) == (20, [(0, 201)])


def test_an_episode_with_a_gap_in_a_dropped_stream_is_left_out(record: Record) -> None:
    events = {("/episode", "std_msgs/msg/Empty"): [(2, 0), (6, 0)]}
    bag = record(events, state=lambda k: None if 150 <= k < 170 else (k, 0))
    recording = exported(bag, spec_of(state={"on_invalid": "drop"}), episode_topic="/episode")
    assert extents(recording) == [(0, 100), (300, 501)]
    assert recording.reasons == {"in dropped episodes": 200}
    why = "state: has no value 3.10 s after the first tick, and its on_invalid is drop"
    assert f"an episode is left out: {why}" in recording.notes


def test_a_recording_whose_episodes_are_all_dropped_does_not_stop_the_others(record: Record, tmp_path: Path) -> None:
    gap = record(state=lambda k: None if 150 <= k < 170 else (k, 0), name="gap")
    spec = spec_of(state={"on_invalid": "drop"})
    result = export([gap, record()], spec, tmp_path / "out", DatasetOptions(media="none"))
    assert [recording.bag.name for recording in result.recordings] == ["bag"]
    assert [(loss.bag.name, loss.dropped) for loss in result.failed] == [("gap", True)]


@pytest.mark.parametrize(
    ("quality", "message"),
    [
        ({"max_invalid": 0.01}, r"bag: state has no value at 2\.99% of the ticks, above quality\.max_invalid, 1\.00%;"),
        ({"max_held": 0.005}, r"state has a held value at 1\.00% of the ticks, above quality\.max_held, 0\.50%"),
        ({"max_gap_ms": 200}, r"state has no message for 420 ms, above quality\.max_gap_ms, 200 ms"),
        ({"min_rate_hz": 49}, r"state has 48 messages/s, below quality\.min_rate_hz, 49 Hz"),
        ({"min_frames": 500}, r"486 frames are below quality\.min_frames, 500; leave the recording out, or change"),
    ],
)
def test_a_recording_below_the_quality_in_the_spec_is_refused(record: Record, quality: Any, message: str) -> None:
    bag = record(state=lambda k: None if 150 <= k < 170 else (k, 0))
    spec = spec_of()
    raw = {**spec.to_dict(), "quality": quality}
    with pytest.raises(RoboCacheError, match=message):
        exported(bag, load_spec(raw))
    if "min_frames" not in quality:  # a stream with limits of its own is not checked against those of the spec
        raw["streams"]["state"]["quality"] = {"max_invalid": 1}
        exported(bag, load_spec(raw))
