"""The rows of episodes: which ticks they have, and the action of each."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from robocache_ros.alignments import angle, angle_deg
from robocache_ros.engine.frames import Frames
from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.formats.pieces import runs
from robocache_ros.spec import FusionSpec, Layout, StreamSpec
from robocache_ros.spec.dataset import DatasetOptions
from robocache_ros.units import NS_PER_S

NOTES = 20  # largest number of notes on parts that are left out


@dataclass(frozen=True)
class EpisodeTicks:
    """Consecutive ticks of an episode."""

    frames: Frames
    first: bool  # whether they begin the episode


class EpisodeCutter:
    """Splits the ticks of a recording into episodes without time jumps and without missing values.

    A tick at which an observation or an action has no value is not part of an episode, unless the stream's `on_invalid`
    is mask. The ticks after it start a new episode. A time jump and a new part of the recording also start one.

    Args:
        spec: the streams.
        min_frames: shorter episodes are omitted.
        max_frames: an episode ends after this many ticks, and another begins; 0: no limit.
        parts: (T,) number of the part of the recording that each tick is in; negative for ticks in no episode. None:
            the recording is one part.
        without: parts to leave out.

    Attributes:
        dropped: part -> why it is left out: a stream whose `on_invalid` is drop has a tick without a value between its
            first and its last value in the part.
    """

    def __init__(
        self,
        spec: FusionSpec,
        min_frames: int,
        *,
        max_frames: int = 0,
        parts: NDArray[np.int32] | None = None,
        without: Collection[int] = (),
    ) -> None:
        self._episodes: list[tuple[int, int, int]] = []  # start, stop, part
        self.dropped: dict[int, str] = {}
        self._spec = spec
        self._min_frames, self._max_frames = min_frames, max_frames
        self._parts = parts
        self._without = frozenset(without)
        masked = np.array([stream.on_invalid == "mask" for stream in spec.streams])
        self._needed = np.array(spec.inputs) & ~masked
        strict = [i for i, s in enumerate(spec.streams) if s.on_invalid in ("fail", "drop") and self._needed[i]]
        self._unbroken = {index: _Unbroken() for index in strict}
        self._started: set[int] = set()  # parts of which ticks were yielded
        self._newest_ns: int | None = None
        self._start = self._stop = 0
        self._part = -1  # of the open episode; -1: none is open
        self._long_enough = False
        self._waiting: list[Frames] = []  # ticks of the open episode, until it has `min_frames`

    @property
    def episodes(self) -> list[tuple[int, int]]:
        """(start, stop) tick numbers of each episode, counted from the recording's first tick; stop is exclusive.

        Complete after `finish`.
        """
        return [(start, stop) for start, stop, part in self._episodes if part not in self.dropped]

    @property
    def incomplete(self) -> bool:
        """Whether ticks of a part were yielded that is left out."""
        return not self._started.isdisjoint(self.dropped)

    @property
    def notes(self) -> list[str]:
        """Say which parts are left out, one line each."""
        reasons = list(self.dropped.values())
        more = [f"and {len(reasons) - NOTES} more episodes are left out"] if len(reasons) > NOTES else []
        return [f"an episode is left out: {reason}" for reason in reasons[:NOTES]] + more

    def complete(self, valid: NDArray[np.uint8]) -> NDArray[np.bool_]:
        """Return which of the (T, N) ticks have a value in every stream that needs one: (T,) bool."""
        return np.asarray(np.all(valid[:, self._needed] > 0, axis=1))

    def cut(self, frames: Frames, at: int) -> Iterator[EpisodeTicks]:
        """Process the next ticks of the recording, from number `at` on; yield those that belong to episodes.

        Errors:
            RoboCacheError: a stream whose `on_invalid` is fail has a value again after a tick without a value.
        """
        if not len(frames):
            return
        first_ns, self._newest_ns, newest_ns = int(frames.ticks_ns[0]), int(frames.ticks_ns[-1]), self._newest_ns
        if newest_ns is not None and not 0 < first_ns - newest_ns < 2 * NS_PER_S / self._spec.rate_hz:
            self.finish()
        parts = np.zeros(len(frames), np.int32) if self._parts is None else self._parts[at : at + len(frames)]
        for index in self._unbroken:
            self._check_unbroken(frames, at, parts, index)
        for start, stop, part in runs(np.where(self.complete(frames.valid), parts, -1)):
            if part != self._part:
                self.finish()
            if part >= 0 and part not in self._without and part not in self.dropped:
                yield from self._add(frames[start:stop], at + start, part)

    def finish(self) -> None:
        """End the open episode."""
        if self._long_enough:
            self._episodes.append((self._start, self._stop, self._part))
        self._part, self._long_enough = -1, False
        self._waiting = []

    def _add(self, frames: Frames, at: int, part: int) -> Iterator[EpisodeTicks]:
        while len(frames):
            if self._part < 0:
                self._part, self._start, self._stop = part, at, at
            room = self._start + self._max_frames - at if self._max_frames else len(frames)
            yield from self._extend(frames[:room])
            at, frames = self._stop, frames[room:]
            if self._max_frames and self._stop - self._start == self._max_frames:
                self.finish()

    def _extend(self, frames: Frames) -> Iterator[EpisodeTicks]:
        """Add ticks to the open episode."""
        self._stop += len(frames)
        if self._long_enough:
            yield EpisodeTicks(frames, first=False)
            return
        self._waiting.append(frames)
        if self._stop - self._start >= self._min_frames:
            self._long_enough = True
            self._started.add(self._part)
            waiting, self._waiting = self._waiting, []
            for number, ticks in enumerate(waiting):
                yield EpisodeTicks(ticks, first=number == 0)

    def _check_unbroken(self, frames: Frames, at: int, parts: NDArray[np.int32], index: int) -> None:
        """Find a tick without a value between two values of a stream in one part."""
        stream, state = self._spec.streams[index], self._unbroken[index]
        for row in np.flatnonzero(parts >= 0).tolist():
            missing = state.next(int(parts[row]), at + row, has_value=frames.valid[row, index] > 0)
            if missing is None:
                continue
            found = f"{stream.name}: has no value {missing / self._spec.rate_hz:.2f} s after the first tick"
            if stream.on_invalid == "fail":
                raise RoboCacheError(
                    f"{found}, and its on_invalid is fail; raise its max_age_ms, or use split, hold or mask"
                )
            self.dropped.setdefault(int(parts[row]), f"{found}, and its on_invalid is drop")


class _Unbroken:
    """The values of a stream in the newest part of a recording."""

    def __init__(self) -> None:
        self._part, self._seen = -1, False
        self._missing: int | None = None  # first tick without a value after one with a value

    def next(self, part: int, tick: int, *, has_value: bool) -> int | None:
        """Add a tick; return the first tick without a value if there is one between two values."""
        if part != self._part:
            self._part, self._seen, self._missing = part, False, None
        if has_value:
            self._seen = True
            return self._missing
        if self._seen and self._missing is None:
            self._missing = tick
        return None


MAX_WAITING_BYTES = 2**29  # limit of the images and voxels of the ticks that wait for their actions


@dataclass(frozen=True)
class _Action:
    """How the values of an action of the dataset are computed from streams of the spec."""

    source: StreamSpec  # its values `offset` ticks after the row
    minus: StreamSpec | None = None  # an observation, whose values at the row are subtracted
    order: tuple[int, ...] = ()  # which value of `minus` belongs to each value
    minus_previous: bool = False  # subtract the values of `source` one tick earlier
    adds: bool = False  # the stream is added to those of the spec

    @property
    def stream(self) -> StreamSpec:
        """The stream of the dataset. Its name says what its values are."""
        source = replace(self.source, role="action", idle=None, quality=None) if self.adds else self.source
        if self.minus or self.minus_previous:
            return replace(source, name=f"delta_{source.name}", label="", delta_from="")
        return replace(source, name=f"next_{source.name}") if self.adds else source


class Labels:
    """Replaces the actions of rows by those that belong to their observations."""

    def __init__(self, spec: FusionSpec, options: DatasetOptions) -> None:
        self.offset = options.offset_ticks(spec.rate_hz)  # how many ticks after its row an action is
        self._actions = _actions(spec, options)
        if self.offset and not self._actions:
            raise RoboCacheError("action_offset: the spec has no action; add role: action to a stream, or leave it out")
        replaced = {action.source.name: action.stream for action in self._actions if not action.adds}
        added = [action.stream for action in self._actions if action.adds]
        self.spec = replace(spec, streams=(*(replaced.get(s.name, s) for s in spec.streams), *added))  # of the dataset
        # Ticks at the start of an episode that have no previous action.
        self.first = int(not self.offset and any(action.minus_previous for action in self._actions))
        self._of_spec, self._of_dataset = Layout(spec), Layout(self.spec)
        self._unchanged = not self.offset and all(a.stream is a.source for a in self._actions)
        self._rows: list[Frames] = []  # ticks of the episode that wait for their actions
        self._vectors: list[Frames] = []  # vectors of these ticks and of those after them, and of one tick before them
        self._at = self._total = 0  # number of the first waiting tick in the episode, and of all ticks so far

    def extent(self, start: int, stop: int) -> tuple[int, int]:
        """Return which of the ticks [start, stop) of an episode are its rows: those with an action."""
        return start + self.first, stop - self.offset

    def rows(self, ticks: EpisodeTicks) -> Iterator[EpisodeTicks]:
        """Take the next ticks of an episode; yield the rows whose actions are known by now.

        Ticks at the end of an episode whose actions are beyond it are never yielded.
        """
        if self._unchanged:
            yield ticks
            return
        if ticks.first:
            self._rows, self._vectors, self._at, self._total = [], [], 0, 0
        self._rows.append(ticks.frames)
        self._total += len(ticks.frames)
        self._vectors = [_joined([*self._vectors, replace(ticks.frames, media={})])]
        ready = self._total - self._at - self.offset
        while ready > 0:
            head = self._rows.pop(0)
            if len(head) > ready:
                self._rows.insert(0, head[ready:])
            rows, ready = head[:ready], ready - len(head)
            begin = max(0, self.first - self._at)  # ticks without a previous action
            if len(rows) > begin:
                yield EpisodeTicks(self._labelled(rows[begin:], self._at + begin), first=self._at <= self.first)
            self._at += len(rows)
        self._vectors = [self._vectors[0][-(self._total - self._at + 1) :]]
        if sum(value.nbytes for frames in self._rows for value in frames.media.values()) > MAX_WAITING_BYTES:
            raise RoboCacheError(
                f"action_offset: the images of {self.offset} ticks exceed {MAX_WAITING_BYTES >> 20} MB; "
                "use a smaller offset, or smaller images"
            )

    def _labelled(self, rows: Frames, number: int) -> Frames:
        """Return rows with their actions; `number` is that of the first one in the episode."""
        vectors = self._vectors[0]
        at = number + self.offset - (self._total - len(vectors))
        ahead = vectors[at : at + len(rows)]
        added = sum(self._of_dataset.widths) - sum(self._of_spec.widths), len(self.spec.streams) - rows.valid.shape[1]
        fused = np.pad(rows.fused.numpy(), ((0, 0), (0, added[0])))
        valid = np.pad(rows.valid, ((0, 0), (0, added[1])))
        age_ns = np.pad(rows.age_ns, ((0, 0), (0, added[1])))
        for action in self._actions:
            source = self._index(action.source)
            values = ahead.fused.numpy()[:, self._of_spec.slots[action.source.name]]
            state = ahead.valid[:, source]
            if action.minus:
                of_minus = rows.fused.numpy()[:, self._of_spec.slots[action.minus.name]]
                values, state = _minus(
                    action, values, state, of_minus[:, action.order], rows.valid[:, self._index(action.minus)]
                )
            elif action.minus_previous:
                before = vectors[at - 1 : at - 1 + len(rows)]
                of_before = before.fused.numpy()[:, self._of_spec.slots[action.source.name]]
                values, state = _minus(action, values, state, of_before, before.valid[:, source])
            column = self._of_dataset.names.index(action.stream.name)
            fused[:, self._of_dataset.slots[action.stream.name]] = values
            valid[:, column] = state
            # Negative for a sample after the tick of the row: tick - age is the stamp of the sample, as everywhere.
            age = ahead.age_ns[:, source] - (ahead.ticks_ns - rows.ticks_ns)
            age_ns[:, column] = np.where(state > 0, age, 0)
        return replace(rows, fused=torch.from_numpy(fused), valid=valid, age_ns=age_ns)

    def _index(self, stream: StreamSpec) -> int:
        return self._of_spec.names.index(stream.name)


def _minus(
    action: _Action,
    values: NDArray[np.float32],
    state: NDArray[np.uint8],
    others: NDArray[np.float32],
    of_others: NDArray[np.uint8],
) -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
    """Return (T, D) differences, zero where a value is missing, and their (T,) states."""
    difference = values - others
    if action.source.align == "angle":
        difference = (angle_deg if action.source.method == "angle_deg" else angle).fold(difference)
    state = np.where((state > 0) & (of_others > 0), np.maximum(state, of_others), 0).astype(np.uint8)
    return np.where(state[:, None] > 0, difference, np.float32(0)), state


def _joined(parts: Sequence[Frames]) -> Frames:
    if len(parts) == 1:
        return parts[0]
    return replace(
        parts[0],
        ticks_ns=np.concatenate([part.ticks_ns for part in parts]),
        fused=torch.cat([part.fused for part in parts]),
        valid=np.concatenate([part.valid for part in parts]),
        age_ns=np.concatenate([part.age_ns for part in parts]),
        sample_age_ms=None,
    )


def _actions(spec: FusionSpec, options: DatasetOptions) -> list[_Action]:
    """Determine how each action of the dataset is computed."""
    given = [stream for stream in spec.vectors if stream.role == "action"]
    if options.is_next:
        return _next_observations(spec, options, given)
    default = options.action
    if options.action_from and default != "delta":
        raise RoboCacheError(f"action_from: is for deltas and next observations, not {default}; leave it out")
    if len(options.action_from) > 1:
        raise RoboCacheError("action_from: one observation is subtracted; name one, or use delta_from in the spec")
    if default == "delta" and not given:
        raise RoboCacheError("action: the spec has no action to compute deltas of; use next-delta")
    actions = []
    for stream in given:
        if (stream.label or default) == "absolute":
            actions.append(_Action(stream))
            continue
        _check_delta(stream)
        name = stream.delta_from or next(iter(options.action_from), "")
        minus = _observation(spec, name) if name else None
        order = _order(stream, minus) if minus else ()
        actions.append(_Action(stream, minus, order, minus_previous=minus is None))
    return actions


def _check_delta(stream: StreamSpec) -> None:
    if stream.is_rotation:
        raise RoboCacheError(
            f"streams.{stream.name}: has a rotation, and a difference of two is not one; use label: absolute for an "
            "action, or action_from to choose observations"
        )


def _next_observations(spec: FusionSpec, options: DatasetOptions, given: Sequence[StreamSpec]) -> list[_Action]:
    if given:
        raise RoboCacheError(
            f"action: {options.action} is for recordings without commands, but {given[0].name} is an action; "
            "use absolute or delta, or give it another role"
        )
    states = [s for s in spec.vectors if s.role == "observation" and not s.rows]
    chosen = [_observation(spec, name) for name in options.action_from] or states
    if not chosen:
        raise RoboCacheError(f"action: {options.action} needs a vector observation; add a stream of the robot's state")
    if options.action == "next-observation":
        return [_Action(stream, adds=True) for stream in chosen]
    for stream in chosen:
        _check_delta(stream)
    return [_Action(stream, stream, tuple(range(stream.dim)), adds=True) for stream in chosen]


def _observation(spec: FusionSpec, name: str) -> StreamSpec:
    known = [s for s in spec.vectors if s.role == "observation" and not s.rows]
    for stream in known:
        if stream.name == name:
            return stream
    names = printable(", ".join(s.name for s in known), 80)
    raise RoboCacheError(f"action_from: {printable(name, 40)} is not an observation vector; there are {names}")


def _order(action: StreamSpec, observation: StreamSpec) -> tuple[int, ...]:
    """Return which value of an observation belongs to each value of an action: by joint name, else by position."""
    at = f"streams.{action.name}: its delta from {observation.name}"
    if action.unit and observation.unit and action.unit != observation.unit:
        raise RoboCacheError(f"{at} is {action.unit} - {observation.unit}; name an observation of the same unit")
    if action.names and observation.names:
        missing = [name for name in action.names if name not in observation.names]
        if missing:
            raise RoboCacheError(f"{at} needs {printable(missing[0], 40)}, which is not in its names; add it there")
        return tuple(observation.names.index(name) for name in action.names)
    if action.dim != observation.dim:
        raise RoboCacheError(f"{at} has {action.dim} values minus {observation.dim}; name one of the same size")
    return tuple(range(action.dim))
