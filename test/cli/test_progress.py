"""The progress of an export and of its shards: rates, the time left, few lines, and a log in JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from robocache_ros.cli.progress import EVERY_S, JsonLog, Lines, Tally, duration
from robocache_ros.exporter.planned_recording import PlannedRecording
from robocache_ros.exporter.progress import Advanced, Converted, Ended, Failed, Merging, Started
from test.cli.conftest import SPEC

A, B, C = (PlannedRecording(Path(name)) for name in "abc")


class Clock:
    """A clock that is set by hand."""

    seconds = 100.0

    def __call__(self):
        return self.seconds


EVENTS = [
    Started((A, B, C), (3_000_000, 1_000_000, 6_000_000), 2),
    Advanced(A, 0.5, 100),
    Converted(B, reused=True),
    Failed(C, "c: damaged; copy it again"),
    Advanced(A, 1.0, 200),
    Converted(A, reused=False),
    Merging(("lerobot",), 2),
    Ended(Path("out"), 3, 400, 2.5),
]


def test_rates_and_the_time_left_are_those_of_the_recordings_that_are_converted():
    clock = Clock()
    tally = Tally(clock)
    tally.add(EVENTS[0])
    clock.seconds += 2
    tally.add(EVENTS[1])
    assert (tally.frames_per_s, tally.mb_per_s, tally.share) == (50, 0.75, 0.15)
    for event in EVENTS[2:4]:
        tally.add(event)
    assert (tally.done, tally.reused, tally.failed) == (2, 1, 1)
    assert (tally.share, tally.left_s) == (0.5, 2)  # the reused and the failed recording are no work
    assert tally.text() == "2 of 3 recordings, 1 failed, 50 frames/s, 0.8 MB/s, 2 s left"


def test_a_fast_export_prints_no_line_and_a_slow_one_few():
    clock = Clock()
    lines: list[str] = []
    shown = Lines(lines.append, clock)
    for event in EVENTS:
        shown(event)
    assert lines == []
    shown = Lines(lines.append, clock)
    for event in EVENTS[:2] * 1000:
        clock.seconds += EVERY_S / 100
        shown(event)
    assert 10 <= len(lines) <= 21
    shown(EVENTS[6])
    assert lines[-1].endswith("; merging them into lerobot")


def test_the_log_has_an_object_for_each_event():
    lines: list[tuple[str, dict[str, Any]]] = []
    log = JsonLog(lambda event, **content: lines.append((event, content)), Clock())
    for event in EVENTS:
        log(event)
    names = ["start", "recording_done", "recording_failed", "recording_done", "merge", "end"]
    assert [name for name, _ in lines] == names
    assert lines[0][1] == {"recordings": 3, "size_bytes": 10_000_000, "jobs": 2}
    assert (lines[1][1]["reused"], lines[2][1]["reason"]) == (True, "c: damaged; copy it again")
    assert lines[-1][1] == {"out": Path("out"), "episodes": 3, "frames": 400, "seconds": 2.5}


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0 s"), (99, "99 s"), (700, "12 min"), (11_100, "3 h 5 min")])
def test_durations_are_short(seconds, text):
    assert duration(seconds) == text


@pytest.fixture
def shard(robocache, short, tmp_path):
    """Runs a shard of two recordings."""
    manifest = tmp_path / "lifts.csv"
    (tmp_path / "other").symlink_to(short)
    manifest.write_text(f"recording,from,to\n{short},0,1\nother,1,2\n")

    def run(which, *more):
        reported = ("--manifest", manifest, "-s", SPEC, "-o", tmp_path / "set", "--media", "none", "--jobs", 1)
        return robocache("export", *reported, "--pieces", tmp_path / "pieces", "--shard", which, *more)

    return run


@pytest.fixture
def damaged(tmp_path):
    (tmp_path / "damaged.mcap").write_bytes(b"\x89MCAP0\r\n" + bytes(100))
    return "damaged.mcap"


def test_shards_say_how_far_the_export_is(shard, tmp_path):
    reported = shard("0/2")
    assert (reported.code, reported.out) == (0, "1 of 2 recordings are converted; the last shard writes the dataset\n")
    reported = shard("1/2")
    assert (reported.code, reported.out.partition("\n")[0]) == (0, "2 of 2 recordings are converted")
    assert f"wrote {tmp_path / 'set'}" in reported.out
    reported = shard("1/2")
    assert (reported.code, reported.out.startswith("2 of 2 recordings are converted; ")) == (0, True)
    assert reported.out.endswith("set is complete\n")


def test_a_shard_prints_one_document(shard):
    reported = json.loads(shard("0/2", "--json").out)
    expected = {"exit_code": 0, "shard": "0/2", "own": 1, "converted": 1, "failed": 0, "total": 2, "written": "waiting"}
    assert expected.items() <= reported.items()
    assert json.loads(shard("1/2", "--json").out)["episodes"] >= 2


def test_a_shard_that_leaves_out_a_recording_ends_with_1(shard, damaged, tmp_path):
    with (tmp_path / "lifts.csv").open("a") as manifest:
        manifest.write(f"{damaged},,\n")
    reported = [shard(f"{index}/3", "--on-error", "skip") for index in (2, 1, 0)]
    assert [finished.code for finished in reported] == [1, 0, 1]
    assert "note failed: " in reported[0].out
    assert "0 of 3 recordings are converted, 1 failed; the last shard writes the dataset" in reported[0].out
    assert "not in the dataset: " in reported[2].out


def test_a_shard_says_that_recordings_of_others_failed(shard, damaged, short, tmp_path):
    (tmp_path / "lifts.csv").write_text(f"recording\n{short}\n{damaged}\n")
    reported = shard("1/2")
    assert (reported.code, reported.out) == (2, "")
    assert "no dataset, because 1 of 1 recording of shard 1/2 failed" in reported.err
    reported = shard("0/2")
    line = "1 of 2 recordings are converted, 1 failed; repair those and run their shards again, or all with"
    assert (reported.code, reported.out) == (0, f"{line} --on-error skip\n")
