"""Which ticks become episodes, by topics, files, gaps and motion, and what a recording states of them."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from robocache_ros.engine.frames import Frames
from robocache_ros.errors import RoboCacheError
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


def exported(bag: Path, spec: FusionSpec | None = None, **options: Any) -> ExportedRecording:
    out = bag.parent / "out"
    result = export([bag], spec or spec_of(), out, DatasetOptions(media="none", **options), overwrite=True)
    return result.recordings[0]


def extents(recording: ExportedRecording) -> list[tuple[int, int]]:
    return [(episode.start, episode.stop) for episode in recording.episodes]


EPISODE, TASK = ("/episode", "std_msgs/msg/Bool"), ("/task", "std_msgs/msg/String")


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
def test_a_topic_begins_and_ends_episodes(record, type_, values, expected):
    recording = exported(record({("/episode", f"std_msgs/msg/{type_}"): values}), episode_topic="/episode")
    assert extents(recording) == expected
    outside = 501 - sum(stop - start for start, stop in expected)
    assert recording.reasons == ({"outside of episodes": outside} if outside else {})


def test_a_gap_splits_an_episode_and_its_stream_is_named(record):
    bag = record({EPISODE: [(1, True), (5, False)]}, state=lambda k: None if 100 <= k < 120 else (k, 0))
    assert extents(exported(bag, episode_topic="/episode")) == [(50, 105), (120, 250)]
    left_out = "15 of 501 ticks left out: 15 without a value of state (15 in between); 2 episodes"
    assert exported(bag).left_out() == left_out


def test_ticks_outside_of_episodes_do_not_count_against_min_valid(record):
    bag = record({EPISODE: [(1, True), (2, False), (9.9, True)]})
    assert extents(exported(bag, episode_topic="/episode", min_valid=1.0)) == [(50, 100), (495, 501)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"episode_topic": "/episode"}, "bag: no tick is in an episode of its topic or file; correct them"),
        ({"episode_topic": "/episodes"}, "episode_topic: .* has no topic /episodes; it has /command, /episode"),
        ({"task_topic": "/state"}, "task_topic: /state is std_msgs/msg/Float64MultiArray, not std_msgs/"),
        ({"task_topic": "/task"}, "task_topic: /task has a text of more than 1,000 characters; shorten it"),
        ({"trim_idle_s": 1}, "bag: nothing moves for longer than --trim-idle allows; raise it"),
    ],
)
def test_a_topic_or_motion_that_makes_no_episode_is_refused(record, options, message):
    bag = record({EPISODE: [(1, False)], TASK: [(1, " " * 1001)]}, state=lambda _: (0, 0), command=lambda _: (0, 0))
    with pytest.raises(RoboCacheError, match=message):
        exported(bag, **options)


def test_the_task_of_an_episode_is_the_newest_at_its_start_else_the_first_in_it(record):
    episodes = [(0, True), (0.5, False), (0.6, True), (2, False), (3, True), (5, False), (6, True)]
    bag = record({EPISODE: episodes, TASK: [(1, "lift the cube"), (3.5, "place it\n"), (7, "lift again")]})
    recording = exported(bag, episode_topic="/episode", task_topic="/task")
    assert [episode.task for episode in recording.episodes] == [None, "lift the cube", "lift the cube", "place it"]


def test_success_is_the_last_value_of_an_episode_also_after_its_last_row(record):
    spec = spec_of(done={"topic": "/done", "type": "std_msgs/msg/Bool", "role": "success"})
    success = {("/done", "std_msgs/msg/Bool"): [(1, True), (1.5, False), (4.9, True)]}
    bag = record({EPISODE: [(0, True), (2, False), (3, True), (5, False), (6, True)], **success})
    recording = exported(bag, spec, episode_topic="/episode")
    assert [episode.success for episode in recording.episodes] == [False, True, None]
    bag = record(success, state=lambda k: (k, 0) if k < 200 else None, name="ends")
    assert exported(bag, spec).episodes == (EpisodeInfo(0, 205, None, True),)


@pytest.mark.parametrize(
    ("options", "episodes", "reasons"),
    [
        ({"split_s": 4}, [(0, 200), (200, 400), (400, 501)], {}),
        ({"split_s": 4, "min_frames": 102}, [(0, 200), (200, 400)], {"in episodes that are too short": 101}),
        ({"split_s": 4, "action_offset": 3}, [(0, 197), (200, 397), (400, 498)], {"without their action": 9}),
        ({"rate_hz": 20}, [(0, 201)], {}),
    ],
)
def test_options_make_episodes_of_one_length_and_state_what_is_left_out(record, options, episodes, reasons):
    recording = exported(record(), **options)
    assert (extents(recording), recording.reasons) == (episodes, reasons)
    assert recording.spec.rate_hz == options.get("rate_hz", 50)


def test_an_episode_with_a_gap_in_a_dropped_stream_is_left_out(record, tmp_path):
    events = {("/episode", "std_msgs/msg/Empty"): [(2, 0), (6, 0)]}
    gap = record(events, state=lambda k: None if 150 <= k < 170 else (k, 0), name="gap")
    spec = spec_of(state={"on_invalid": "drop"})
    recording = exported(gap, spec, episode_topic="/episode")
    assert extents(recording) == [(0, 100), (300, 501)]
    assert recording.reasons == {"in dropped episodes": 200}
    why = "state: has no value 3.10 s after the first tick, and its on_invalid is drop"
    assert f"an episode is left out: {why}" in recording.notes
    result = export([gap, record()], spec, tmp_path / "both", DatasetOptions(media="none"))  # where gap has no other
    assert [recording.bag.name for recording in result.recordings] == ["bag"]
    assert [(loss.bag.name, loss.dropped) for loss in result.failed] == [("gap", True)]


@pytest.mark.parametrize(
    ("quality", "message"),
    [
        ({"max_invalid": 0.01}, r"bag: state has no value at 2\.99% of the ticks, above quality\.max_invalid, 1\.00%;"),
        ({"max_invalid": 0.01, "max_held": 0.005}, r"above quality\.max_invalid, 1\.00% \(and 1 more\); leave"),
        ({"max_held": 0.005}, r"state has a held value at 1\.00% of the ticks, above quality\.max_held, 0\.50%"),
        ({"max_gap_ms": 200}, r"state has no message for 420 ms, above quality\.max_gap_ms, 200 ms"),
        ({"min_rate_hz": 49}, r"state has 48 messages/s, below quality\.min_rate_hz, 49 Hz"),
        ({"min_frames": 500}, r"486 frames are below quality\.min_frames, 500; leave the recording out, or change"),
    ],
)
def test_a_recording_below_the_quality_in_the_spec_is_refused(record, quality, message):
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
    float32 = {"type": "std_msgs/msg/Float32"}
    streams = {f"s{k}": {**float32, "topic": f"/s{k}", "on_invalid": policy} for k, policy in enumerate(policies)}
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


def test_time_that_jumps_back_ends_an_episode():
    cutter = EpisodeCutter(spec("split"), 1)
    assert cut(cutter, ticks([[1], [1], [1]], 10), ticks([[1], [1]], 11)) == [[10, 11, 12], [11, 12]]


def test_stream_that_must_not_fail_is_refused_after_a_gap_and_not_for_its_ends():
    assert cut(EpisodeCutter(spec("fail"), 1), ticks([[0], [1], [1], [0]])) == [[1, 2]]
    with pytest.raises(RoboCacheError, match=r"s0: has no value 0\.04 s after the first tick, and its on_invalid is f"):
        cut(EpisodeCutter(spec("fail"), 1), ticks([[0], [1], [0]]), ticks([[0], [1]], 3))


def test_part_whose_ticks_were_yielded_before_it_is_dropped_is_reported():
    cutter, parts = EpisodeCutter(spec("drop"), 1), (ticks([[1], [1], [0]]), ticks([[1]], 3))
    assert cut(cutter, *parts) == [[0, 1]]
    assert (cutter.incomplete, cutter.episodes) == (True, [])
    again = EpisodeCutter(spec("drop"), 1, without=cutter.dropped)
    assert (cut(again, *parts), again.incomplete) == ([], False)


@given(
    valid=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), max_size=60),
    numbers=st.lists(st.integers(-2, 1), max_size=60),
    longest=st.integers(0, 6),
    least=st.integers(1, 5),
    data=st.data(),
)
def test_no_tick_is_lost_or_in_two_episodes_however_they_are_handed_over(valid, numbers, longest, least, data):
    count = min(len(valid), len(numbers))
    begins = np.diff(np.array(numbers[:count]), prepend=-3) != 0
    parts = np.where(np.array(numbers[:count]) < 0, numbers[:count], np.cumsum(begins)).astype(np.int32)
    edges = sorted({0, count, *data.draw(st.lists(st.integers(0, count), max_size=8))})
    cutter = EpisodeCutter(spec("split", "hold"), least, max_frames=longest, parts=parts)
    episodes = cut(cutter, *(ticks(valid[a:b], a) for a, b in pairwise(edges)))
    expected = []
    for start, stop, part in runs(np.where([all(row) for row in valid[:count]], parts, -1)):
        if part >= 0:
            step = longest or stop - start
            expected += [list(range(at, min(at + step, stop))) for at in range(start, stop, step)]
    assert episodes == [ticks for ticks in expected if len(ticks) >= least]
    assert cutter.episodes == [(episode[0], episode[-1] + 1) for episode in episodes]


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
def test_a_file_in_the_folder_states_the_episodes(record, name, text):
    bag = record()
    (bag / name).write_text(text)
    recording = exported(bag)
    assert recording.episodes == (EpisodeInfo(50, 151, "lift the cube", True), EpisodeInfo(250, 501, None, False))
    assert f"2 episodes are stated by {name}" in recording.notes


def test_a_file_next_to_a_recording_of_one_file_states_its_episodes(record, tmp_path):
    bag = next(record().glob("*.mcap")).rename(tmp_path / "lift_1.0.mcap")
    (tmp_path / "lift_1.0.episodes.yaml").write_text("- {to: 2}\n")
    assert exported(bag).episodes == (EpisodeInfo(0, 100),)


def test_the_file_is_not_used_with_an_episode_topic_or_if_the_options_say_so(record):
    bag = record({("/episode", "std_msgs/msg/Empty"): [(5, 0)]})
    times = f"from: {START_NS + 10**9}, to: {START_NS + 2 * 10**9}"  # log times
    (bag / "episodes.yaml").write_text(f"- {{{times}}}\n")
    assert exported(bag).episodes == (EpisodeInfo(50, 100),)
    assert len(exported(bag, episode_topic="/episode").episodes) == 2
    assert exported(bag, episode_file=False).episodes == (EpisodeInfo(0, 501),)


def test_a_changed_file_makes_another_piece(record):
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
        ("- {to: 2}\n", r"episodes\.yaml: there is episodes\.csv too; remove one of them"),
    ],
)
def test_a_file_that_states_no_episodes_is_refused(record, text, message):
    bag = record()
    (bag / "episodes.yaml").write_text(text)
    if "too" in message:
        (bag / "episodes.csv").write_text("to\n2\n")
    with pytest.raises(RoboCacheError, match=message):
        exported(bag)


# Ticks at which nothing moves.


def moving(k: int) -> tuple[float, float]:
    """Stands still for one second, moves for three, stands still for two, and moves to the end."""
    at = max(0, min(k, 200) - 50) + max(0, k - 300)
    return (at, 0)


# Of 350 ticks of motion, three are within 1 % of the range; 51 ticks are one second.
@pytest.mark.parametrize(
    ("command", "streams", "seconds", "expected"),
    [
        (lambda k: (0, 0), {}, 0.5, [(0, 54), (197, 304)]),
        (lambda k: (0, 0), {"state": {"idle": 0}}, 0.5, [(0, 51), (200, 301)]),
        (lambda k: (0, 0), {"state": {"idle": 0}}, 1.0, [(0, 51), (200, 301)]),
        (lambda k: (0, 0), {"state": {"idle": 0}}, 1.02, [(200, 301)]),
        (lambda k: (k // 10, 0), {}, 0.5, []),  # a changing action is motion
        (lambda k: (k // 10, 0), {"command": {"idle": 3}, "state": {"idle": 0}}, 0.5, [(0, 51), (200, 301)]),
    ],
)
def test_idle_ticks_are_left_out_at_the_ends_and_within(record, command, streams, seconds, expected):
    recording = exported(record(state=moving, command=command), spec_of(**streams), trim_idle_s=seconds)
    edges = [edge for extent in expected for edge in extent]
    kept = [(start, stop) for start, stop in zip([0, *edges[1::2]], [*edges[::2], 501], strict=True) if stop > start]
    assert extents(recording) == kept
    idle = sum(stop - start for start, stop in expected)
    assert recording.reasons == ({"without motion": idle} if idle else {})
    if seconds == 1.0:
        assert recording.left_out().startswith("152 of 501 ticks left out: 152 without motion (51 at the start, 101 in")


def test_a_still_period_over_the_end_of_an_episode_is_left_out_of_both(record):
    episodes = [(0, True), (5, False), (5.02, True)]  # within the two seconds without motion, which begin at 4 s
    bag = record({EPISODE: episodes}, state=moving, command=lambda k: (0, 0))
    recording = exported(bag, spec_of(state={"idle": 0}), trim_idle_s=1.5, episode_topic="/episode")
    assert extents(recording) == [(0, 200), (301, 501)]


def test_a_spec_of_images_only_has_no_motion_to_see(tmp_path):
    spec = load_spec({"robocache": 1, "streams": {"front": {"topic": "/front", "type": "sensor_msgs/msg/Image"}}})
    with pytest.raises(RoboCacheError, match="trim_idle_s: the spec has no vector stream to see motion in"):
        export([tmp_path], spec, tmp_path / "out", DatasetOptions(trim_idle_s=1))
