"""Which ticks become episodes, by topics, files, gaps and motion, and what a recording states of them."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from robocache_ros.bags.fuse import BagRun
from robocache_ros.bags.reader import Bag
from robocache_ros.engine.frames import Frames
from robocache_ros.errors import RoboCacheError
from robocache_ros.exporter.boundaries import idle_ticks
from robocache_ros.exporter.episodes import EpisodeCutter
from robocache_ros.exporter.pieces import Plan
from robocache_ros.exporter.planned_recording import PlannedRecording
from robocache_ros.formats.pieces import EpisodeInfo, runs
from robocache_ros.formats.recording import ExportedRecording
from robocache_ros.spec import FusionSpec, load_spec
from robocache_ros.spec.dataset import DatasetOptions
from test.export.conftest import START_NS, spec_of
from test.exporting import export

# Boundaries, tasks and outcomes of episodes that a recording states itself.

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


def test_the_stream_whose_gap_splits_a_recording_is_named(record: Record) -> None:
    recording = exported(record(state=lambda k: None if 100 <= k < 120 else (k, 0)))
    assert recording.left_out() == "15 of 501 ticks left out: 15 without a value of state (15 in between); 2 episodes"


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


# EpisodeCutter: which ticks become episodes.


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


def test_time_that_jumps_back_ends_an_episode() -> None:
    cutter = EpisodeCutter(spec("split"), 1)
    assert cut(cutter, ticks([[1], [1], [1]], 10), ticks([[1], [1]], 11)) == [[10, 11, 12], [11, 12]]


def test_stream_that_must_not_fail_is_refused_after_a_gap_and_not_for_its_ends() -> None:
    assert cut(EpisodeCutter(spec("fail"), 1), ticks([[0], [1], [1], [0]])) == [[1, 2]]
    with pytest.raises(RoboCacheError, match=r"s0: has no value 0\.04 s after the first tick, and its on_invalid is f"):
        cut(EpisodeCutter(spec("fail"), 1), ticks([[0], [1], [0]]), ticks([[0], [1]], 3))


def test_part_whose_ticks_were_yielded_before_it_is_dropped_is_reported() -> None:
    cutter = EpisodeCutter(spec("drop"), 1)
    assert cut(cutter, ticks([[1], [1], [0]]), ticks([[1]], 3)) == [[0, 1]]
    assert (cutter.incomplete, cutter.episodes) == (True, [])
    again = EpisodeCutter(spec("drop"), 1, without=cutter.dropped)
    assert cut(again, ticks([[1], [1], [0]]), ticks([[1]], 3)) == []
    assert not again.incomplete


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


# Episodes that a file beside a recording states.

YAML = """\
- {from: 1, to: 3.01, task: lift the cube, success: true}
- from: 2023-11-14T22:13:25Z   # five seconds after the start
  success: false
"""
CSV = """\
from,to,task,success
2023-11-14T22:13:25Z,,,false
1,3.01,lift the cube,true
"""


@pytest.mark.parametrize(("name", "text"), [("episodes.yaml", YAML), ("episodes.csv", CSV)])
def test_a_file_in_the_folder_states_the_episodes(record: Record, name: str, text: str) -> None:
    bag = record()
    (bag / name).write_text(text)
    recording = exported(bag)
    assert recording.episodes == (EpisodeInfo(50, 151, "lift the cube", True), EpisodeInfo(250, 501, None, False))
    assert f"2 episodes are stated by {name}" in recording.notes


def test_a_file_next_to_a_recording_of_one_file_states_its_episodes(record: Record, tmp_path: Path) -> None:
    (mcap,) = record().glob("*.mcap")
    bag = mcap.rename(tmp_path / "lift_1.0.mcap")
    (tmp_path / "lift_1.0.episodes.yaml").write_text("- {to: 2}\n")
    assert exported(bag).episodes == (EpisodeInfo(0, 100),)


def test_the_file_is_not_used_with_an_episode_topic_or_if_the_options_say_so(record: Record) -> None:
    bag = record({("/episode", "std_msgs/msg/Empty"): [(5, 0)]})
    (bag / "episodes.yaml").write_text("- {to: 2}\n")
    assert len(exported(bag, episode_topic="/episode").episodes) == 2
    assert exported(bag, episode_file=False).episodes == (EpisodeInfo(0, 501),)


def test_a_changed_file_makes_another_piece(record: Record) -> None:
    bag = record()
    plan = Plan((PlannedRecording(bag),), spec_of(), DatasetOptions(), {})
    keys = [plan.key(plan.recordings[0], [])]
    for text in ("- {to: 2}\n", "- {to: 3}\n"):
        (bag / "episodes.yaml").write_text(text)
        keys.append(plan.key(plan.recordings[0], []))
    assert len(set(keys)) == 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- {from: 1, to: 3}\n- {from: 2}\n", "episodes.yaml: episodes 1 and 2 overlap; correct their times"),
        ("- {from: 3, to: 1}\n", r"1:13: \[0\]\.to: is not after from; exchange them"),
        ("- {frm: 3}\n", r"1:4: \[0\]\.frm: no such key; did you mean 'from'"),
        ("from: 3\n", "1:1: not a list of episodes; write `- {from: SECONDS, to: SECONDS}` for each"),
        ("[]\n", "1:1: 0 episodes; give 1 to 100,000"),
        ("- {from: 30}\n", "bag: no tick is in an episode of its topic or file; correct them"),
    ],
)
def test_a_file_that_states_no_episodes_is_refused(record: Record, text: str, message: str) -> None:
    bag = record()
    (bag / "episodes.yaml").write_text(text)
    with pytest.raises(RoboCacheError, match=message):
        exported(bag)


def test_two_files_are_refused(record: Record) -> None:
    bag = record()
    (bag / "episodes.yaml").write_text("- {to: 2}\n")
    (bag / "episodes.csv").write_text("to\n2\n")
    with pytest.raises(RoboCacheError, match=r"episodes\.yaml: there is episodes\.csv too; remove one of them"):
        exported(bag)


def test_absolute_times_are_log_times(record: Record) -> None:
    bag = record()
    (bag / "episodes.yaml").write_text(f"- {{from: {START_NS + 10**9}, to: {START_NS + 2 * 10**9}}}\n")
    assert exported(bag).episodes == (EpisodeInfo(50, 100),)


# Ticks at which nothing moves.


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
