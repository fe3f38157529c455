"""The progress of an export: rates, the time left, few lines, and a log in JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from robocache_ros.cli.progress import EVERY_S, JsonLog, Lines, Tally, duration
from robocache_ros.exporter.planned_recording import PlannedRecording
from robocache_ros.exporter.progress import Advanced, Converted, Ended, Event, Failed, Merging, Started

A, B, C = (PlannedRecording(Path(name)) for name in "abc")


class Clock:
    """A clock that is set by hand."""

    seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


def events() -> list[Event]:
    return [
        Started((A, B, C), (3_000_000, 1_000_000, 6_000_000), 2),
        Advanced(A, 0.5, 100),
        Converted(B, reused=True),
        Failed(C, "c: damaged; copy it again"),
        Advanced(A, 1.0, 200),
        Converted(A, reused=False),
        Merging(("lerobot",), 2),
        Ended(Path("out"), 3, 400, 2.5),
    ]


def test_rates_and_the_time_left_are_those_of_the_recordings_that_are_converted() -> None:
    clock = Clock()
    tally = Tally(clock)
    tally.add(events()[0])
    clock.seconds += 2
    tally.add(events()[1])
    assert (tally.frames_per_s, tally.mb_per_s, tally.share) == (50, 0.75, 0.15)
    for event in events()[2:4]:
        tally.add(event)
    assert (tally.done, tally.reused, tally.failed) == (2, 1, 1)
    assert (tally.share, tally.left_s) == (0.5, 2)  # the reused and the failed recording are no work
    assert tally.text() == "2 of 3 recordings, 1 failed, 50 frames/s, 0.8 MB/s, 2 s left"


def test_a_fast_export_prints_no_line_and_a_slow_one_few() -> None:
    clock = Clock()
    lines: list[str] = []
    shown = Lines(lines.append, clock)
    for event in events():
        shown(event)
    assert lines == []
    for event in events()[:2] * 1000:
        clock.seconds += EVERY_S / 100
        shown(event)
    assert 10 <= len(lines) <= 21


def test_the_log_has_an_object_for_each_event() -> None:
    lines: list[tuple[str, dict[str, Any]]] = []
    log = JsonLog(lambda event, **content: lines.append((event, content)), Clock())
    for event in events():
        log(event)
    names = ["start", "recording_done", "recording_failed", "recording_done", "merge", "end"]
    assert [name for name, _ in lines] == names
    assert lines[0][1] == {"recordings": 3, "size_bytes": 10_000_000, "jobs": 2}
    assert lines[1][1]["reused"] is True
    assert lines[2][1]["reason"] == "c: damaged; copy it again"
    assert lines[-1][1] == {"out": Path("out"), "episodes": 3, "frames": 400, "seconds": 2.5}


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0 s"), (99, "99 s"), (700, "12 min"), (11_100, "3 h 5 min")])
def test_durations_are_short(seconds: float, text: str) -> None:
    assert duration(seconds) == text
