"""The sections of a recording: ranges of ticks that a topic, a file or the user makes episodes."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from robocache_ros.bags.fuse import BagRun
from robocache_ros.errors import RoboCacheError
from robocache_ros.export.episodes.episode_file import StatedEpisode
from robocache_ros.export.episodes.topic_messages import Changes

OUTSIDE, IDLE = -1, -2  # instead of the number of a part: in no section; without motion


@dataclass(frozen=True)
class Section:
    """Ticks start <= tick < stop, counted from the recording's first tick."""

    start: int
    stop: int
    task: str | None = None
    success: bool | None = None


def sections_of(changes: Changes, run: BagRun) -> list[Section]:
    """Return the sections that a topic describes.

    A bool is true inside of an episode. A new integer or text begins an episode, and an empty text ends one; before the
    first message there is none. A message without a value ends an episode and begins another.
    """
    messages = changes.messages
    inside_before = bool(messages) and messages[0][1] is None
    starts = [(0, inside_before)]
    for log_ns, value in messages:
        starts.append((run.first_tick_at(log_ns), value is not False and value != ""))
    stops = [start for start, _ in starts[1:]] + [sum(run.ticks_of_spans)]
    return [
        Section(start, stop) for (start, inside), stop in zip(starts, stops, strict=True) if inside and start < stop
    ]


def stated_sections(episodes: Sequence[StatedEpisode], run: BagRun, where: str) -> list[Section]:
    """Return the sections that a file states, in order of time.

    Errors:
        RoboCacheError: two of them overlap; `where` names the file.
    """
    first_ns, end_ns = run.bag.start_ns, run.bag.stop_ns
    placed = [
        (
            max(first_ns, each.start.after(first_ns)) if each.start else first_ns,
            min(end_ns, each.stop.after(first_ns)) if each.stop else end_ns,
            number,
        )
        for number, each in enumerate(episodes)
    ]
    placed.sort()
    for (_, before_ns, one), (after_ns, _, other) in pairwise(placed):
        if after_ns < before_ns:
            raise RoboCacheError(f"{where}: episodes {one + 1} and {other + 1} overlap; correct their times")
    sections = (
        Section(run.first_tick_at(start), run.first_tick_at(stop), episodes[number].task, episodes[number].success)
        for start, stop, number in placed
    )
    return [section for section in sections if section.start < section.stop]


def parts_of(ticks_of_spans: Sequence[int], sections: Sequence[Section] | None) -> NDArray[np.int32]:
    """Return the number of the part of each tick: a part is a section without a time jump.

    Args:
        ticks_of_spans: number of ticks between two time jumps.
        sections: in order, without overlap; None: every tick is in one section.

    Returns:
        (T,) int32; OUTSIDE for ticks in no section. The numbers of two parts are different, and grow with time.
    """
    spans = np.repeat(np.arange(len(ticks_of_spans)), ticks_of_spans)
    numbers = np.zeros(len(spans), np.int64)
    if sections is not None:
        numbers[:] = OUTSIDE
        for number, section in enumerate(sections):
            numbers[section.start : section.stop] = number
    begins = (np.diff(numbers, prepend=-2) != 0) | (np.diff(spans, prepend=-1) != 0)
    parts = np.cumsum(begins & (numbers >= 0)) - 1
    return np.where(numbers < 0, OUTSIDE, parts).astype(np.int32)


def section_at(sections: Sequence[Section], tick: int) -> Section | None:
    """Return the section of a tick; the sections are in order."""
    index = bisect_right(sections, tick, key=lambda section: section.start) - 1
    return sections[index] if index >= 0 and tick < sections[index].stop else None
