"""Episodes of the recorder: an export reads task and outcome from their files, and leaves out the trash."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from robocache_ros.bags.reader import Bag
from robocache_ros.exporter.recordings import recordings_of
from robocache_ros.exporter.run import export
from robocache_ros.formats.read import PROVENANCE
from robocache_ros.recorder.episodes import Message, RecordedTopic, RecordingsFolder


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory, bags: list[Path]) -> Path:
    """Two episodes and a discarded one, of messages of panda_lift."""
    path = tmp_path_factory.mktemp("episodes") / "recordings"
    folder = RecordingsFolder(path)
    with Bag(bags[1]) as bag:
        topics = {name: RecordedTopic(name, topic.type, topic.definition) for name, topic in bag.topics.items()}
        messages = list(bag.messages())
    for task, outcome in (("lift", "success"), ("lift", "discarded"), ("drop", "failure")):
        episode = folder.start({"task": task}, topics.values())
        for topic, log_ns, data in messages:
            assert episode.put(Message(topics[topic], log_ns, log_ns, data))
        folder.end(episode, outcome)
    return path


def test_task_and_outcome_are_those_in_the_files(recorded: Path) -> None:
    found = recordings_of([recorded])

    assert [(each.path.name, each.task, each.success) for each in found] == [
        ("episode_000001.mcap", "lift", True),
        ("episode_000003.mcap", "drop", False),
    ]


def test_globs_leave_out_the_trash_unless_they_name_it(recorded: Path) -> None:
    kept = ["episode_000001.mcap", "episode_000003.mcap"]
    for pattern in (f"{recorded}/*", f"{recorded}/**/*.mcap"):
        assert [each.path.name for each in recordings_of([pattern])] == kept
    assert [each.path.name for each in recordings_of([recorded / "trash"])] == ["episode_000002.mcap"]


def test_a_manifest_overrides_the_file(recorded: Path, tmp_path: Path) -> None:
    manifest = tmp_path / "m.yaml"
    manifest.write_text(f"- recording: {recorded}/episode_000001.mcap\n  success: false\n")

    (found,) = recordings_of(None, manifest)

    assert (found.task, found.success) == ("lift", False)


def test_an_export_has_the_task_of_each_episode(recorded: Path, tmp_path: Path, spec: Any) -> None:
    export(recorded, spec, tmp_path / "out", task="other", media="none")

    recordings = json.loads((tmp_path / "out" / "meta" / PROVENANCE).read_text())["recordings"]

    assert [(each["task"], each["success"], each["notes"]) for each in recordings] == [
        ("lift", True, []),
        ("drop", False, []),
    ]
    tasks = pq.read_table(tmp_path / "out" / "meta" / "tasks.parquet").to_pydict()
    assert {"lift", "drop"} in [set(map(str, column)) for column in tasks.values()]
