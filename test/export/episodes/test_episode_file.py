"""Episodes that a file beside a recording states."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from robocache_ros.errors import RoboCacheError
from robocache_ros.exporter.pieces import Plan
from robocache_ros.exporter.planned_recording import PlannedRecording
from robocache_ros.formats.pieces import EpisodeInfo
from robocache_ros.spec.dataset import DatasetOptions
from test.export.episodes.conftest import START_NS, spec_of
from test.export.episodes.test_boundaries import exported

Record = Callable[..., Path]

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
