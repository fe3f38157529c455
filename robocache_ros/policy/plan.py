"""The plan of a robot's commands: the rows of action chunks by tick, blended where chunks overlap.

A policy observes a tick k and answers with a chunk of H rows. Row i is the action of tick k + i + offset, as in the
labels of its training, however long the policy took: a late chunk loses its past rows, and nothing is shifted. This is
the rule of UMI (https://arxiv.org/abs/2402.10329), with integer ticks in place of times.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from robocache_ros.alignments import alignment
from robocache_ros.errors import RoboCacheError
from robocache_ros.spec.run import MAX_TICKS, RunOptions

Float32: TypeAlias = "NDArray[np.float32]"

MAX_HORIZON = MAX_TICKS  # rows of a chunk
MAX_AHEAD = 65_536  # ticks from the next one to the last row of a chunk


@dataclass(frozen=True)
class Chunk:
    """The actions that a policy plans from one observation.

    Attributes:
        tick: index of the observed tick on the tick grid.
        actions: (H, A) float32, in the units of the robot.
    """

    tick: int
    actions: Float32


class Prefix(NamedTuple):
    """The commands of a chunk's first ticks before it is planned, which a policy continues (real-time chunking).

    Attributes:
        rows: (P, A) float32, P >= 1: row i is the command of the tick of the chunk's row i, as sent or as planned now.
        frozen: the first rows that are executed whatever the policy answers: the option `prefix`, at most P.
    """

    rows: Float32
    frozen: int


class Outcome(Enum):
    """What became of a chunk."""

    ACCEPTED = "accepted"  # at least one of its rows is in the plan
    LATE = "late"  # all of its rows are past
    DUPLICATE = "duplicate"  # there is a chunk of this observation; the first one stays
    INVALID = "invalid"  # of another shape, not finite, or too far ahead


class Command(NamedTuple):
    """The row of a tick.

    Attributes:
        tick: index on the tick grid.
        row: (A,) float32.
        sources: the chunks in it by their observed ticks, with their weights, oldest first.
        is_seam: whether the newest of them is another one than in the row before.
    """

    tick: int
    row: Float32
    sources: tuple[tuple[int, float], ...]
    is_seam: bool


class ActionPlan:
    """The rows of the next ticks.

    Args:
        columns: the alignment of each column, by which it is blended: `linear`, `angle`, `slerp` (four columns side by
            side), or `hold` for what is never blended, such as a gripper or an integer.
        options: how rows become commands: `execute_from`, `blend` (`ensemble`: https://arxiv.org/abs/2304.13705),
            `crossfade_ticks` and `decay`.
        offset: tick of a chunk's first row after its observation: `action_offset` of the training labels.

    Attributes:
        late_rows: rows that came after their tick, of all chunks.
    """

    def __init__(self, columns: Sequence[str], options: RunOptions, offset: int = 0) -> None:
        self.options, self.offset = options, offset
        self.width = len(columns)
        self._groups = _groups(columns)
        self._next = -(2**62)  # the first tick that has no command yet
        self._rows: dict[int, list[_Row]] = {}  # by tick, sorted by observation
        self._observed: dict[int, int] = {}  # chunks by observed tick: their last tick
        self._newest: int | None = None  # newest source of the last command
        self.late_rows = 0

    def add(self, chunk: Chunk) -> Outcome:
        """Put the rows of a chunk that are not past into the plan."""
        if not self._is_valid(chunk.actions):
            return Outcome.INVALID
        if chunk.tick in self._observed:
            return Outcome.DUPLICATE
        actions = np.array(chunk.actions, np.float32)  # a copy: the caller may use its memory again
        start, first = chunk.tick + self.offset, self.options.execute_from
        stop = start + len(actions)
        begins = max(start + first, self._next)
        if self._next > -(2**62) and stop - self._next > MAX_AHEAD:
            return Outcome.INVALID
        self.late_rows += max(0, min(begins, stop) - start - first)
        if begins >= stop:
            return Outcome.LATE
        self._observed[chunk.tick] = stop - 1
        fade = 0  # ticks over which the plan so far becomes this chunk: those that it has too, or there is a jump
        while self.options.blend == "crossfade" and fade < self.options.crossfade_ticks and begins + fade in self._rows:
            fade += 1
        for tick in range(begins, stop):
            # The share that this chunk has of what it is blended with.
            share = np.float32(min(1.0, (tick - begins + 1) / (fade + 1)))
            rows = self._rows.setdefault(tick, [])
            rows.append(_Row(chunk.tick, actions[tick - start], share))
            rows.sort(key=lambda row: row.observed)
        return Outcome.ACCEPTED

    def take(self, tick: int) -> Command | None:
        """Return the command of a tick, and None if no chunk has a row for it. Rows up to this tick are then past."""
        self._next = max(self._next, tick + 1)
        rows = self._rows.get(tick, [])
        for past in [each for each in self._rows if each <= tick]:
            del self._rows[past]
        for observed in [each for each, last in self._observed.items() if last < tick - MAX_AHEAD]:
            del self._observed[observed]
        command = self._command(tick, rows) if rows else None
        if command:
            self._newest = command.sources[-1][0]
        return command

    def ahead(self, count: int) -> list[Command]:
        """Return the commands of up to `count` of the next ticks, as they are now, up to the first tick without one."""
        found: list[Command] = []
        for tick in range(self._next, self._next + count):
            if tick not in self._rows:
                break
            found.append(self._command(tick, self._rows[tick]))
        return found

    def prefix(self, tick: int, sent: Mapping[int, Float32]) -> Prefix | None:
        """Return what a chunk of an observation continues, of the last rows that were sent, by tick, and those planned.

        None without the option, or if nothing was sent or is planned at the first tick of the chunk.
        """
        if not self.options.prefix:
            return None
        rows = {**sent, **{command.tick: command.row for command in self.ahead(MAX_HORIZON)}}
        found: list[Float32] = []
        while (row := rows.get(tick + self.offset + len(found))) is not None:
            found.append(row)
        return Prefix(np.stack(found), min(self.options.prefix, len(found))) if found else None

    def clear(self) -> None:
        """Drop all rows, as after a jump of the clock."""
        self._rows.clear()
        self._observed.clear()
        self._next, self._newest = -(2**62), None

    def _is_valid(self, actions: Float32) -> bool:
        shaped = actions.ndim == 2 and actions.shape[1] == self.width and 1 <= len(actions) <= MAX_HORIZON
        return shaped and bool(np.isfinite(actions).all())

    def _command(self, tick: int, rows: list[_Row]) -> Command:
        row, sources = self._blended(rows)
        return Command(tick, row, sources, self._newest is not None and sources[-1][0] != self._newest)

    def _blended(self, rows: list[_Row]) -> tuple[Float32, tuple[tuple[int, float], ...]]:
        """Blend the rows of a tick, oldest first; each with the blend of those before it."""
        if self.options.blend == "none":
            rows = rows[-1:]
        weights = [float(row.share) for row in rows]
        if self.options.blend == "ensemble":
            of_row = np.exp(-self.options.decay * np.arange(len(rows)))
            weights = (of_row / np.cumsum(of_row)).tolist()
        weights[0] = 1.0
        result = rows[0].values.copy()
        shares = [1.0]
        for row, weight in zip(rows[1:], weights[1:], strict=True):
            blended = row.values.copy()  # columns that are not blended are those of the newest row
            for method, columns in self._groups:
                blend = alignment(method).blend
                if blend:
                    blended[columns] = blend(result[columns], row.values[columns], np.full(1, weight, np.float32))
            result = blended
            shares = [share * (1 - weight) for share in shares] + [weight]
        return result, tuple((row.observed, share) for row, share in zip(rows, shares, strict=True))


class _Row(NamedTuple):
    observed: int
    values: Float32
    share: np.float32


def _groups(columns: Sequence[str]) -> list[tuple[str, list[int]]]:
    """Return the columns of each alignment, in whole quaternions."""
    found: dict[str, list[int]] = {}
    for index, name in enumerate(columns):
        found.setdefault(name, []).append(index)
    for name, places in found.items():
        try:
            group = alignment(name).group
        except KeyError:
            raise RoboCacheError(f"columns: {name!r} is not an alignment; use linear, angle, slerp or hold") from None
        if len(places) % group:
            raise RoboCacheError(f"columns: {name} takes {group} columns side by side; here are {len(places)}")
    return list(found.items())
