"""Reads the episodes of a recording from a file beside it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.export.recordings.moment import Moment
from robocache_ros.export.recordings.row_table import EPISODE_KEYS, MAX_CSV_BYTES, RowKind, read_table, values_of
from robocache_ros.spec.problems import Problem, SpecError, below
from robocache_ros.text_file import read_text

SUFFIXES = (".yaml", ".csv")
MAX_EPISODES = 100_000
ROWS = RowKind("episodes", "{from: SECONDS, to: SECONDS}", EPISODE_KEYS)


@dataclass(frozen=True)
class StatedEpisode:
    """An episode as a file states it: from <= log time < to."""

    start: Moment | None  # None: from the start of the recording
    stop: Moment | None  # None: to its end
    task: str | None
    success: bool | None


def episode_file(recording: Path) -> Path | None:
    """Return the file with the episodes of a recording; None if there is none.

    It is `episodes.yaml` or `episodes.csv` in the folder of a recording, and `<name>.episodes.yaml` or
    `<name>.episodes.csv` beside a recording that is the file `<name>.<suffix>`.

    Errors:
        RoboCacheError: there are both.
    """
    stem = recording / "episodes" if recording.is_dir() else recording.with_suffix(".episodes")
    found = [path for path in (stem.with_name(stem.name + suffix) for suffix in SUFFIXES) if path.exists()]
    if len(found) > 1:
        raise RoboCacheError(f"{printable(found[0], 60)}: there is {found[1].name} too; remove one of them")
    return found[0] if found else None


def episode_text(path: Path) -> str:
    """Return the text of such a file; RoboCacheError if it cannot be read, or is too large."""
    return read_text(path, "give a list of episodes in YAML or CSV", MAX_CSV_BYTES)


def read_episodes(path: Path) -> list[StatedEpisode]:
    """Read the episodes that a file states, in its order.

    The file is a list of rows with the keys `from`, `to`, `task` and `success`, all of them optional. In YAML it is a
    list of mappings; a file named *.csv has a line of column names and a line per row.

    Errors:
        RoboCacheError: the file cannot be read or is not such a list. The message has one line per error, with its
            position in the file.
    """
    table = read_table(path, ROWS)
    if not 0 < len(table.rows) <= MAX_EPISODES:
        raise RoboCacheError(f"{table.place(())}: {len(table.rows):,} episodes; give 1 to {MAX_EPISODES:,}")
    episodes, problems = [], []
    for number, row in enumerate(table.rows):
        try:
            values = values_of(row, ROWS)
        except SpecError as error:
            problems += below((number,), error)
            continue
        start, stop = values.get("from"), values.get("to")
        if start and stop and start.relative == stop.relative and stop.ns <= start.ns:
            problems.append(Problem((number, "to"), "is not after from; exchange them, or correct one"))
        episodes.append(StatedEpisode(start, stop, values.get("task"), values.get("success")))
    if problems:
        raise SpecError(problems, table.place)
    return episodes
