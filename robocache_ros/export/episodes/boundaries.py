"""Determines the boundaries of the episodes of a recording before its ticks are computed, and what each one is."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from robocache_ros.bags.fuse import BagRun
from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.export.dataset.row_columns import runs
from robocache_ros.export.episodes.cutter import EpisodeCutter
from robocache_ros.export.episodes.episode_file import episode_file, read_episodes
from robocache_ros.export.episodes.episode_info import EpisodeInfo
from robocache_ros.export.episodes.idle import idle_ticks
from robocache_ros.export.episodes.labels import Labels
from robocache_ros.export.episodes.sections import (
    IDLE,
    OUTSIDE,
    Section,
    parts_of,
    section_at,
    sections_of,
    stated_sections,
)
from robocache_ros.export.episodes.success_values import SuccessValues
from robocache_ros.export.episodes.topic_messages import STRING, read_changes
from robocache_ros.export.export_options import ExportOptions


class EpisodesDropped(RoboCacheError):  # noqa: N818 - asked for by the spec
    """All episodes of a recording are left out because of `on_invalid: drop`."""


class Boundaries:
    """The parts of a recording that become episodes.

    Reads the topics of tasks and of episodes, and for `trim_idle_s` all vectors, before the recording itself is read.

    Args:
        run: of the recording.
        options: of the export.

    Attributes:
        parts: (T,) int32 as `parts_of` returns them, and IDLE for ticks of a part without motion.
        notes: on what was read, one line each.
    """

    def __init__(self, run: BagRun, options: ExportOptions) -> None:
        self.notes: list[str] = []
        self._sections: list[Section] | None = None
        self._tasks: list[tuple[int, str]] = []  # first tick with a task, and the task
        if options.episode_topic:
            changes = read_changes(run.bag, options.episode_topic, "episode_topic")
            self._sections = sections_of(changes, run)
            self.notes += filter(None, [changes.note])
        elif options.episode_file and (path := episode_file(run.bag.path)):
            self._sections = stated_sections(read_episodes(path), run, printable(path, 60))
            self.notes.append(f"{len(self._sections)} episodes are stated by {printable(path.name)}")
        if options.task_topic:
            changes = read_changes(run.bag, options.task_topic, "task_topic", STRING)
            self._tasks = [(run.first_tick_at(log_ns), str(text)) for log_ns, text in changes.messages if text]
            self.notes += filter(None, [changes.note])
        idle = idle_ticks(run, options.trim_idle_s) if options.trim_idle_s else None
        whole = parts_of(run.ticks_of_spans, self._sections)
        self._stops = {
            part: stop for _, stop, part in runs(whole) if part >= 0
        }  # a part with its idle ticks is one run
        self.parts = whole if idle is None else np.where(idle & (whole >= 0), np.int32(IDLE), whole)

    def infos(self, cutter: EpisodeCutter, labels: Labels, success: SuccessValues) -> list[EpisodeInfo]:
        """Return the episodes of a recording after all of its ticks."""
        infos = []
        episodes = cutter.episodes
        for number, (start, stop) in enumerate(episodes):
            section = section_at(self._sections or (), start) or Section(start, stop)
            # Success is often known only after the last row: until the next episode, or the end of the part.
            following = episodes[number + 1][0] if number + 1 < len(episodes) else len(self.parts)
            found = success.last(start, min(following, self._stops[int(self.parts[start])]))
            task = section.task if section.task is not None else self._task(start, stop)
            infos.append(
                EpisodeInfo(*labels.extent(start, stop), task, found if section.success is None else section.success)
            )
        return infos

    def left_out(self, cutter: EpisodeCutter, rows: Sequence[EpisodeInfo], valid: NDArray[np.uint8]) -> dict[str, int]:
        """Return how many ticks are in no row, by the reason.

        Args:
            cutter: after all ticks.
            rows: of its episodes.
            valid: (T, N) of all ticks.
        """
        reasons = np.full(len(self.parts), "in episodes that are too short", object)
        reasons[self.parts == IDLE] = "without motion"
        reasons[~cutter.complete(valid)] = "without a value"
        reasons[self.parts == OUTSIDE] = "outside of episodes"
        reasons[np.isin(self.parts, list(cutter.dropped))] = "in dropped episodes"
        for start, stop in cutter.episodes:
            reasons[start:stop] = "without their action"
        kept = np.zeros(len(reasons), bool)
        for episode in rows:
            kept[episode.start : episode.stop] = True
        return dict(Counter(reasons[~kept].tolist()).most_common())

    def check_kept(self, cutter: EpisodeCutter, run: BagRun, options: ExportOptions) -> None:
        """Refuse a recording with too few ticks in episodes, of those that its boundaries leave.

        Errors:
            EpisodesDropped: all of its episodes are left out because of `on_invalid: drop`.
            RoboCacheError: it has no episode, or a share of ticks below `min_valid`.
        """
        where, complete = printable(run.bag.path, 60), cutter.complete(run.valid)
        left = (self.parts >= 0) & ~np.isin(self.parts, list(cutter.dropped))
        if not cutter.episodes:
            run.check_spans_ticks()
            if cutter.dropped:
                raise EpisodesDropped(f"{where}: left out: {next(iter(cutter.dropped.values()))}; raise its max_age_ms")
            if not left.any():
                raise RoboCacheError(f"{where}: {self._nothing_left()}")
            if complete[left].any():
                raise RoboCacheError(
                    f"{where}: no {options.min_frames} ticks in a row have every stream; raise max_age_ms of those "
                    "with gaps, set on_invalid hold or mask for them, or lower --min-frames"
                )
            raise RoboCacheError(run.why_incomplete())
        kept = sum(stop - start for start, stop in cutter.episodes)
        expected = int(left[cutter.episodes[0][0] :].sum())
        if kept < options.min_valid * expected:
            shares = np.where(run.spec.inputs, (run.valid > 0).mean(axis=0), 1.0)
            worst = int(shares.argmin())
            name = run.spec.streams[worst].name
            advice = run.refusal(name) or "give it a larger max_age_ms, on_invalid hold or mask, or lower --min-valid"
            raise RoboCacheError(
                f"{where}: {kept} of {expected} ticks have every stream, {name} in {shares[worst]:.0%}; {advice}"
            )

    def _nothing_left(self) -> str:
        if (self.parts == IDLE).any():
            return "nothing moves for longer than --trim-idle allows; raise it, or leave the recording out"
        return "no tick is in an episode of its topic or file; correct them, or leave the recording out"

    def _task(self, start: int, stop: int) -> str | None:
        """Return the newest task at or before the first tick of an episode, else the first one within it."""
        after = bisect_right(self._tasks, start, key=lambda task: task[0])
        if after:
            return self._tasks[after - 1][1]
        return self._tasks[0][1] if self._tasks and self._tasks[0][0] < stop else None
