"""The recordings of an export: searches, manifests, parts, and episodes of the recorder."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from robocache_ros.bags.fuse import BagRun
from robocache_ros.bags.reader import Bag
from robocache_ros.engine.frames import Frames
from robocache_ros.errors import RoboCacheError
from robocache_ros.exporter import recordings
from robocache_ros.exporter.job import export
from robocache_ros.exporter.planned_recording import Moment, PlannedRecording, moment
from robocache_ros.exporter.recordings import find_recordings, load_manifest, recordings_of
from robocache_ros.formats.read import PROVENANCE
from robocache_ros.recorder.episodes import Message, RecordedTopic, RecordingsFolder
from robocache_ros.spec import FusionSpec, strict_yaml
from test.export.conftest import LIFT, written

# Recordings are found by paths, in folders and by globs, in an order that depends on their names alone.


def files(root: Path, *names: str) -> Path:
    """Files with one byte."""
    return written(root, "x", *names)


def found(root: Path, *arguments: Path | str, but: Path | None = None) -> list[str]:
    return [path.relative_to(root).as_posix() for path in find_recordings(arguments or [root], but=but)]


def rosbag2(root: Path, name: str, *files_of: str) -> None:
    names = "".join(f"\n    - {file}" for file in files_of)
    files(root, *(f"{name}/{file}" for file in files_of))
    text = f"rosbag2_bagfile_information:\n  relative_file_paths:{names}\n"
    (root / name / "metadata.yaml").write_text(text)


def test_a_recording_that_is_named_twice_is_found_once_in_any_order_and_the_target_is_not_searched(tmp_path):
    files(tmp_path, "day/b.mcap", "day/a.mcap", "out/c.mcap")
    both, day, out = ["day/a.mcap", "day/b.mcap"], tmp_path / "day", tmp_path / "out"
    assert found(tmp_path, day / "b.mcap", day / "a.mcap") == both
    os.symlink(tmp_path, day / "up")  # which leads back
    assert found(tmp_path, but=out) == both
    os.symlink(day, tmp_path / "link")
    assert found(tmp_path, day, day / "a.mcap", tmp_path / "link", but=out) == both


def test_a_folder_with_metadata_is_one_recording_and_is_not_searched(tmp_path):
    rosbag2(tmp_path, "lift", "x.mcap", "y.mcap")
    files(tmp_path, "lift/more/z.mcap")
    lift = tmp_path / "lift"
    for arguments in ((tmp_path,), (lift,), (lift, lift / "x.mcap")):
        assert found(tmp_path, *arguments) == ["lift"]
    assert found(tmp_path, lift / "x.mcap") == ["lift/x.mcap"]


DAY = "rec/2024-05-01-12"


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (("10.mcap", "2.mcap", "1.bag", "A_3.db3"), ["1.bag", "2.mcap", "10.mcap", "A_3.db3"]),
        ((".trash/a.mcap", "b.mcap.sha256", "._c.mcap", "notes.txt", "d/e.mcap.zstd"), ["d"]),
        (("rec/rec_0.mcap", "rec/rec_1.mcap"), ["rec"]),
        (("rec/one.db3",), ["rec"]),
        (("rec/lift_0.mcap", "rec/lift_1.mcap"), ["rec/lift_0.mcap", "rec/lift_1.mcap"]),
        (("rec/rec_00.mcap", "rec/rec_01.mcap"), ["rec/rec_00.mcap", "rec/rec_01.mcap"]),
        (("rec/one.mcap", "rec/more/two.mcap"), ["rec/more", "rec/one.mcap"]),
        (("rec/a_2024-05-01-12-00-00_0.bag", "rec/a_2024-05-01-12-10-00_1.bag"), ["rec"]),
        ((f"{DAY}-00-00.bag", f"{DAY}-10-00.bag"), [f"{DAY}-00-00.bag", f"{DAY}-10-00.bag"]),
    ],
)
def test_a_folder_is_searched_in_numeric_order_and_files_named_after_it_are_one(tmp_path, names, expected):
    assert found(files(tmp_path, *names)) == expected


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("lift_*", ["lift_2", "lift_10"]),
        ("**/*.db3", ["lift_2"]),
        ("lift_1?/*", ["lift_10"]),
        ("loose/*.bag", ["loose/a.bag", "loose/b.bag"]),
        ("lo*", ["loose/a.bag", "loose/b.bag"]),
        ("a[1].mcap", ["a[1].mcap"]),  # the name of a file
    ],
)
def test_a_glob_finds_recordings_and_whole_ones(tmp_path, pattern, expected):
    rosbag2(tmp_path, "lift_2", "x_0.db3", "x_1.db3")
    rosbag2(tmp_path, "lift_10", "x_0.mcap")
    files(tmp_path, "loose/a.bag", "loose/b.bag", "loose/notes.txt", "a[1].mcap", "a1.mcap")
    assert found(tmp_path, str(tmp_path / pattern)) == expected


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("nothing.mcap", "no such recording"),
        ("*.mcap", "matches no recording; correct the pattern"),
        ("empty", "no rosbag2 folders and no .mcap"),
        ("notes.txt", "neither a rosbag2 folder nor"),
    ],
)
def test_an_argument_that_names_no_recording_is_refused(tmp_path, argument, message):
    files(tmp_path, "notes.txt", "empty/readme.md")
    with pytest.raises(RoboCacheError, match=message) as raised:
        find_recordings([tmp_path / argument])
    assert len(str(raised.value)) < 300


def test_searches_have_limits(tmp_path, monkeypatch):
    files(tmp_path, "a.mcap", "b/c/d.mcap")
    for name, limit in (("MAX_RECORDINGS", 1), ("MAX_ENTRIES", 2), ("MAX_DEPTH", 1)):
        with monkeypatch.context() as patched:
            patched.setattr(recordings, name, limit)
            with pytest.raises(RoboCacheError, match=r"more than [12]|1 folders deep"):
                find_recordings([tmp_path])


# Manifests in YAML and in CSV: what they may say, and where an error in them is.

YAML = """\
- recording: bags/lift_1.mcap
  task: lift the cube
  from: 2.5
  to: 2025-09-10T15:03:56.123456789+02:00
  success: true
- {recording: bags/lift_1.mcap, from: 20, task: "put it down, then wait"}
- recording: bags/day*
"""
CSV = """\
recording,task,from,to,success
bags/lift_1.mcap,lift the cube,2.5,2025-09-10T15:03:56.123456789+02:00,True

bags/lift_1.mcap,"put it down, then wait",20,,
bags/day*,,,,
"""


@pytest.fixture
def folder(tmp_path) -> Path:
    names = ("lift_1.mcap", "day_2/b.mcap", "day_2/a.mcap", "day_1/c.mcap")
    return files(tmp_path, *(f"bags/{name}" for name in names))


def manifest(folder: Path, text: str, name: str = "lifts.yaml") -> Path:
    (folder / name).write_text(text, encoding="utf-8")
    return folder / name


@pytest.mark.parametrize(("name", "text"), [("lifts.yaml", YAML), ("lifts.csv", CSV), ("LIFTS.CSV", "\ufeff" + CSV)])
def test_yaml_and_csv_say_the_same(folder, name, text):
    bags = folder / "bags"
    stop = Moment(1757509436123456789, relative=False)
    assert load_manifest(manifest(folder, text, name)) == (
        PlannedRecording(bags / "lift_1.mcap", "lift the cube", Moment(2_500_000_000, True), stop, True),
        PlannedRecording(bags / "lift_1.mcap", "put it down, then wait", Moment(20 * 10**9, True)),
        PlannedRecording(bags / "day_1"),
        PlannedRecording(bags / "day_2" / "a.mcap"),
        PlannedRecording(bags / "day_2" / "b.mcap"),
    )


def test_rows_that_say_the_same_are_used_once_also_with_an_absolute_path(folder):
    (folder / "other").mkdir()
    path = manifest(folder / "other", f"- recording: {folder}/bags/lift_1.mcap\n" * 3)
    assert load_manifest(path) == (PlannedRecording(folder / "bags" / "lift_1.mcap"),)


YAML_ERRORS = {
    "- recording: bags/lift_1.mcap\n  tsk: x\n": "2:3: [0].tsk: no such key; did you mean 'task'?",
    "- recording: bags/lift_1.mcap\n  from: soon\n": "2:3: [0].from: 'soon' is not a time; write seconds",
    "- recording: bags/lift_1.mcap\n  from: -1\n": "2:3: [0].from: -1 is before the recording; write seconds",
    "- recording: bags/lift_1.mcap\n  success: yes\n": "2:3: [0].success: 'yes' is not true or false",
    "- task: lift\n": "1:3: [0].recording: missing; give the path of a recording",
    "- bags/lift_1.mcap\n": "1:3: [0]: expected keys and values, got 'bags/lift_1.mcap'",
    "recordings: []\n": "1:1: not a list of recordings; write `- recording: PATH` for each",
    "[]\n": "1:1: lists no recordings; name one at least",
    "- recording: a\n  recording: b\n": "2:3: key 'recording' is already given in line 1",
    "- {recording: bags/lift_1.mcap, from: 5, to: 4}\n": "1:3: [0]: …: to is not after from; exchange them",
    '- {recording: bags/lift_1.mcap, task: "a\\nb"}\n': "1:33: [0].task: 'a\\\\nb' is not a line of text",
}
CSV_ERRORS = {
    "recording,tsk\nbags/lift_1.mcap,x\n": "1:11: column 'tsk': no such key; did you mean 'task'?",
    "recording,task,task\n": "1:16: column 'task': is given twice; remove one",
    "recording,from\nbags/lift_1.mcap,soon\n": "2:18: [0].from: 'soon' is not a time",
    'task,from,recording\n"a\nb c",x,bags/lift_1.mcap\n': "3:6: [0].from: 'x' is not a time",
    "recording,from\nbags/lift_1.mcap,1,2\n": "2:20: 3 cells in a table of 2 columns; leave a cell empty",
    "recording,from\nbags/lift_1.mcap\n": "2:1: 1 cells in a table of 2 columns; leave a cell empty",
    'recording,task\nbags/lift_1.mcap,"lift\n': "2:18: a quote that is not closed, or is inside a cell",
    "task\nlift\n": "2:1: [0].recording: missing; give the path of a recording",
    "recording\n": "1:1: lists no recordings; name one at least",
    "": "1:1: lists no recordings; name one at least",
    "recording,from\nbags/lift_1.mcap,x\nnone.mcap,1\n": "2:18: [0].from: …lifts.csv:3:1: [1]: ",
    "recording,task\n" + "," * (1 << 20): "2:7: more than 6 cells in a row; quote one with a comma",
}


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [("lifts.yaml", *each) for each in YAML_ERRORS.items()] + [("lifts.csv", *each) for each in CSV_ERRORS.items()],
    ids=lambda text: text[:60],
)
def test_an_error_has_its_line_and_column(folder, name, text, expected):
    with pytest.raises(RoboCacheError) as raised:
        load_manifest(manifest(folder, text, name))
    assert [part for part in f"{name}:{expected}".split("…") if part not in str(raised.value)] == []
    assert all(len(line) < 200 for line in str(raised.value).splitlines())


LISTS = "give a list of recordings in YAML or"


@pytest.mark.parametrize(
    ("name", "text", "limit", "message"),
    [
        ("lifts.yaml", YAML, (strict_yaml, "MAX_BYTES", 20), f"larger than 0 KiB; {LISTS}"),
        ("lifts.csv", CSV, (recordings, "MAX_CSV_BYTES", 20), f"larger than 0 KiB; {LISTS}"),
        ("lifts.yaml", YAML, (recordings, "MAX_RECORDINGS", 2), "more than 2"),
        ("lifts.csv", "recording" + "\n" * 10, (recordings, "MAX_LINES", 3), r"lifts\.csv:4:1: more than 3 lines; use"),
    ],
)
def test_a_manifest_has_limits(folder, monkeypatch, name, text, limit, message):
    monkeypatch.setattr(*limit)
    with pytest.raises(RoboCacheError, match=message):
        load_manifest(manifest(folder, text, name))


@pytest.mark.parametrize(
    ("raw", "ns", "relative"),
    [
        (0, 0, True),
        (2.5, 2_500_000_000, True),
        ("2.5", 2_500_000_000, True),
        ("1e2", 100_000_000_000, True),
        *((raw, 1757509436123456789, False) for raw in (1757509436123456789, "1757509436123456789")),
        ("1970-01-01T00:00:01Z", 1_000_000_000, False),
        ("1970-01-01 02:00:01.5+02:00", 1_500_000_000, False),
        ("1969-12-31T23:00:00.000000001-0100", 1, False),
    ],
)
def test_a_moment_is_seconds_from_the_start_or_an_absolute_time(raw, ns, relative):
    assert moment(raw) == Moment(ns, relative)


@pytest.mark.parametrize(
    "raw",
    [
        *(True, None, [], float("nan"), float("inf"), -1, 10**9, 10**12 + 0.5, 2**63, ".", "", "1 2", "9" * 30),
        *("2025-09-10T13:03:56", "2025-02-30T00:00:00Z", "2025-01-01T00:00:00+25:00", "1969-12-31T23:59:59Z"),
        *("2300-01-01T00:00:00Z", 10**400),
    ],
    ids=lambda raw: str(raw)[:30],
)
def test_what_is_not_a_moment_is_refused(raw):
    with pytest.raises(RoboCacheError, match="; "):
        moment(raw)


def test_a_part_is_on_the_log_times_of_the_recording():
    part, start_ns = PlannedRecording(Path("lift"), start=moment(1), stop=moment(4)), 10**18
    for length_s, stop_s in ((10, 4), (2, 2)):
        assert part.log_range(start_ns, start_ns + length_s * S) == (start_ns + S, start_ns + stop_s * S)
    before = PlannedRecording(Path("lift"), stop=moment("1980-01-01T00:00:00Z"))
    late = r"lift: from is 1\.000 s after the first message of a recording of 0\.500 s"
    for outside, message in ((part, late), (before, "lift: to is -")):
        with pytest.raises(RoboCacheError, match=message):
            outside.log_range(start_ns, start_ns + S // 2)


# A part of a recording has the ticks that the complete recording has there, bit for bit.

S = 10**9


@pytest.fixture(scope="module")
def spec(spec) -> FusionSpec:
    chosen = [s for s in spec.streams if s.kind == "vector"] + [spec.stream("front")]
    return replace(spec, streams=tuple(replace(s, on_invalid="hold") if s.name == "action" else s for s in chosen))


def frames(spec: FusionSpec, *part_ns: int | None, media: bool = True, sees: str = "ideal") -> list[Frames]:
    with Bag(LIFT) as bag:
        low, high = (None if ns is None else bag.start_ns + ns for ns in part_ns or (None, None))
        run = BagRun(bag, spec, visibility=sees, trim=False, start_ns=low, stop_ns=high, media=media)
        return list(run.frames())


def column(parts: list[Frames], name: str) -> np.ndarray:
    return np.concatenate([np.asarray(getattr(part, name)) for part in parts])


@pytest.mark.parametrize("sees", ["ideal", "deployed"])
def test_the_ticks_of_a_part_are_those_of_the_complete_recording(spec, sees):
    complete, part = frames(spec, sees=sees), frames(spec, 4 * S, 5 * S, sees=sees)
    all_ticks, ticks = column(complete, "ticks_ns"), column(part, "ticks_ns")
    rows = np.searchsorted(all_ticks, ticks)
    assert len(ticks) == 50
    for name in ("ticks_ns", "fused", "valid", "age_ns"):
        assert np.array_equal(column(complete, name)[rows], column(part, name)), name
    whole = torch.cat([frame.media["front"] for frame in complete])
    assert torch.equal(whole[rows], torch.cat([frame.media["front"] for frame in part]))


def test_adjacent_parts_have_every_tick_once_and_without_media_the_states_are_the_same(spec):
    bounds = (None, 2 * S, 4 * S + 10**7, None)
    parts = [frame for low, high in pairwise(bounds) for frame in frames(spec, low, high, media=False)]
    complete, states = frames(spec), frames(spec, media=False)
    assert np.array_equal(column(parts, "ticks_ns"), column(complete, "ticks_ns"))
    for name in ("ticks_ns", "fused", "valid", "age_ns"):
        assert np.array_equal(column(complete, name), column(states, name)), name
    assert sum(part.media["front"].numel() for part in states) == 0


# Episodes of the recorder: an export reads task and outcome from their files, and leaves out the trash.


@pytest.fixture(scope="module")
def recorded(tmp_path_factory, bags) -> Path:
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


def test_a_manifest_overrides_task_and_outcome_of_the_files(recorded, tmp_path):
    text = f"- recording: {recorded}/episode_000001.mcap\n  success: false\n"
    (found,) = recordings_of(None, manifest(tmp_path, text))
    assert (found.task, found.success) == ("lift", False)


def test_globs_leave_out_the_trash_unless_they_name_it(recorded):
    kept = ["episode_000001.mcap", "episode_000003.mcap"]
    for pattern in (f"{recorded}/*", f"{recorded}/**/*.mcap"):
        assert [each.path.name for each in recordings_of([pattern])] == kept
    assert [each.path.name for each in recordings_of([recorded / "trash"])] == ["episode_000002.mcap"]


def test_an_export_has_the_task_and_the_outcome_in_the_file_of_each_episode(recorded, tmp_path, spec):
    export(recorded, spec, tmp_path / "out", task="other", media="none")
    recordings = json.loads((tmp_path / "out" / "meta" / PROVENANCE).read_text())["recordings"]
    stated = [(each["task"], each["success"], each["notes"]) for each in recordings]
    assert stated == [("lift", True, []), ("drop", False, [])]
    tasks = pq.read_table(tmp_path / "out" / "meta" / "tasks.parquet").to_pydict()
    assert {"lift", "drop"} in [set(map(str, column)) for column in tasks.values()]
