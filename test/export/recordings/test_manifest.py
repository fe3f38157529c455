"""Manifests in YAML and in CSV: what they may say, and where an error in them is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from robocache_ros.errors import RoboCacheError
from robocache_ros.exporter import recordings
from robocache_ros.exporter.planned_recording import Moment, PlannedRecording, moment
from robocache_ros.exporter.recordings import load_manifest
from robocache_ros.spec import strict_yaml

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
def folder(tmp_path: Path) -> Path:
    for name in ("lift_1.mcap", "day_2/b.mcap", "day_2/a.mcap", "day_1/c.mcap"):
        path = tmp_path / "bags" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
    return tmp_path


def written(folder: Path, text: str, name: str = "lifts.yaml") -> Path:
    (folder / name).write_text(text, encoding="utf-8")
    return folder / name


@pytest.mark.parametrize(("name", "text"), [("lifts.yaml", YAML), ("lifts.csv", CSV), ("LIFTS.CSV", "\ufeff" + CSV)])
def test_yaml_and_csv_say_the_same(folder: Path, name: str, text: str) -> None:
    bags = folder / "bags"
    stop = Moment(1757509436123456789, relative=False)
    assert load_manifest(written(folder, text, name)) == (
        PlannedRecording(bags / "lift_1.mcap", "lift the cube", Moment(2_500_000_000, True), stop, True),
        PlannedRecording(bags / "lift_1.mcap", "put it down, then wait", Moment(20 * 10**9, True)),
        PlannedRecording(bags / "day_1"),
        PlannedRecording(bags / "day_2" / "a.mcap"),
        PlannedRecording(bags / "day_2" / "b.mcap"),
    )


def test_rows_that_say_the_same_are_used_once(folder: Path) -> None:
    assert len(load_manifest(written(folder, "- recording: bags/lift_1.mcap\n" * 3))) == 1


def test_an_absolute_path_is_used_as_it_is(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = written(tmp_path_factory.mktemp("other"), f"- recording: {folder}/bags/lift_1.mcap\n")
    assert [recording.path for recording in load_manifest(path)] == [folder / "bags" / "lift_1.mcap"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("- recording: bags/lift_1.mcap\n  tsk: x\n", "2:3: [0].tsk: no such key; did you mean 'task'?"),
        ("- recording: bags/lift_1.mcap\n  from: soon\n", "2:3: [0].from: 'soon' is not a time; write seconds"),
        ("- recording: bags/lift_1.mcap\n  from: -1\n", "2:3: [0].from: -1 is before the recording; write seconds"),
        ("- recording: bags/lift_1.mcap\n  success: yes\n", "2:3: [0].success: 'yes' is not true or false"),
        ("- task: lift\n", "1:3: [0].recording: missing; give the path of a recording"),
        ("- bags/lift_1.mcap\n", "1:3: [0]: expected keys and values, got 'bags/lift_1.mcap'"),
        ("recordings: []\n", "1:1: not a list of recordings; write `- recording: PATH` for each"),
        ("[]\n", "1:1: lists no recordings; name one at least"),
        ("- recording: a\n  recording: b\n", "2:3: key 'recording' is already given in line 1"),
        ("- {recording: bags/lift_1.mcap, from: 5, to: 4}\n", "to is not after from; exchange them, or correct one"),
        ("- recording: bags/lift_9.mcap\n", "lift_9.mcap: no such recording"),
        ('- {recording: bags/lift_1.mcap, task: "a\\nb"}\n', "1:33: [0].task: 'a\\\\nb' is not a line of text"),
    ],
)
def test_an_error_in_yaml_has_its_line_and_column(folder: Path, text: str, expected: str) -> None:
    with pytest.raises(RoboCacheError) as raised:
        load_manifest(written(folder, text))
    assert expected in str(raised.value)
    assert "lifts.yaml:" in str(raised.value)
    assert len(str(raised.value)) < 200


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("recording,tsk\nbags/lift_1.mcap,x\n", "1:11: column 'tsk': no such key; did you mean 'task'?"),
        ("recording,task,task\n", "1:16: column 'task': is given twice; remove one"),
        ("recording,from\nbags/lift_1.mcap,soon\n", "2:18: [0].from: 'soon' is not a time"),
        ('task,from,recording\n"a\nb c",x,bags/lift_1.mcap\n', "3:6: [0].from: 'x' is not a time"),
        ("recording,from\nbags/lift_1.mcap,1,2\n", "2:20: 3 cells in a table of 2 columns; leave a cell empty"),
        ("recording,from\nbags/lift_1.mcap\n", "2:1: 1 cells in a table of 2 columns; leave a cell empty"),
        ('recording,task\nbags/lift_1.mcap,"lift\n', "2:18: a quote that is not closed, or is inside a cell"),
        ("task\nlift\n", "2:1: [0].recording: missing; give the path of a recording"),
        ("recording\n", "1:1: lists no recordings; name one at least"),
        ("", "1:1: lists no recordings; name one at least"),
    ],
)
def test_an_error_in_csv_has_its_line_and_column(folder: Path, text: str, expected: str) -> None:
    with pytest.raises(RoboCacheError) as raised:
        load_manifest(written(folder, text, "lifts.csv"))
    assert f"lifts.csv:{expected}" in str(raised.value)
    assert all(len(line) < 200 for line in str(raised.value).splitlines())


def test_every_row_with_an_error_is_named(folder: Path) -> None:
    with pytest.raises(RoboCacheError) as raised:
        load_manifest(written(folder, "recording,from\nbags/lift_1.mcap,x\nnone.mcap,1\n", "lifts.csv"))
    first, second = str(raised.value).splitlines()
    assert "lifts.csv:2:18: [0].from: " in first
    assert "lifts.csv:3:1: [1]: " in second


def test_a_manifest_has_limits(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recordings, "MAX_CSV_BYTES", 20)
    monkeypatch.setattr(strict_yaml, "MAX_BYTES", 20)
    for name, text in (("lifts.yaml", YAML), ("lifts.csv", CSV)):
        with pytest.raises(RoboCacheError, match="larger than 0 KiB; give a list of recordings in YAML or CSV"):
            load_manifest(written(folder, text, name))
    monkeypatch.undo()
    monkeypatch.setattr(recordings, "MAX_RECORDINGS", 2)
    with pytest.raises(RoboCacheError, match="more than 2"):
        load_manifest(written(folder, YAML))


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (0, Moment(0, True)),
        (2.5, Moment(2_500_000_000, True)),
        ("2.5", Moment(2_500_000_000, True)),
        ("1e2", Moment(100_000_000_000, True)),
        (1757509436123456789, Moment(1757509436123456789, False)),
        ("1757509436123456789", Moment(1757509436123456789, False)),
        ("1970-01-01T00:00:01Z", Moment(1_000_000_000, False)),
        ("1970-01-01 02:00:01.5+02:00", Moment(1_500_000_000, False)),
        ("1969-12-31T23:00:00.000000001-0100", Moment(1, False)),
    ],
)
def test_a_moment_is_seconds_from_the_start_or_an_absolute_time(raw: Any, expected: Moment) -> None:
    assert moment(raw) == expected


@pytest.mark.parametrize(
    "raw",
    [
        *(True, None, [], float("nan"), float("inf"), -1, 10**9, 10**12 + 0.5, 2**63, ".", "", "1 2", "9" * 30),
        *("2025-09-10T13:03:56", "2025-02-30T00:00:00Z", "2025-01-01T00:00:00+25:00", "1969-12-31T23:59:59Z"),
        "2300-01-01T00:00:00Z",
    ],
)
def test_what_is_not_a_moment_is_refused(raw: Any) -> None:
    with pytest.raises(RoboCacheError, match="; "):
        moment(raw)


RECORDING = PlannedRecording(Path("lift"), start=moment(1), stop=moment(4))


def test_a_part_is_on_the_log_times_of_the_recording() -> None:
    assert RECORDING.log_range(10**18, 10**18 + 10**10) == (10**18 + 10**9, 10**18 + 4 * 10**9)
    assert RECORDING.log_range(10**18, 10**18 + 2 * 10**9) == (10**18 + 10**9, 10**18 + 2 * 10**9)


def test_a_part_outside_of_the_recording_is_refused() -> None:
    with pytest.raises(
        RoboCacheError, match=r"lift: from is 1\.000 s after the first message of a recording of 0\.500 s"
    ):
        RECORDING.log_range(10**18, 10**18 + 10**9 // 2)
    before = PlannedRecording(Path("lift"), stop=moment("1980-01-01T00:00:00Z"))
    with pytest.raises(RoboCacheError, match="lift: to is -"):
        before.log_range(10**18, 10**18 + 10**9)


def test_too_many_cells_or_lines_are_refused_before_they_take_memory(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(RoboCacheError, match=r"lifts\.csv:2:7: more than 6 cells in a row; quote one with a comma"):
        load_manifest(written(folder, "recording,task\n" + "," * (1 << 20), "lifts.csv"))
    monkeypatch.setattr(recordings, "MAX_LINES", 3)
    with pytest.raises(RoboCacheError, match=r"lifts\.csv:4:1: more than 3 lines; use two tables"):
        load_manifest(written(folder, "recording\n" + "\n" * 100, "lifts.csv"))


def test_an_integer_that_no_float_can_store_is_not_a_moment() -> None:
    with pytest.raises(RoboCacheError, match="an integer of more than 64 bits is neither seconds nor a stamp"):
        moment(10**400)
