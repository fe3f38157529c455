"""What the exports of a fleet have made, what failed, and what they left."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from enum import Enum
from fnmatch import fnmatchcase
from pathlib import Path

from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.exporter.piece_store import DONE, FAILED, PIECE, PieceFailure, PieceStore
from robocache_ros.exporter.target import BUCKET_APPENDS, BucketTarget, TargetPlan, piece_store
from robocache_ros.formats.dataset_folder import LISTING, listed_entries
from robocache_ros.storage.object_store import Listed, ObjectStore
from robocache_ros.storage.paths import AnyPath, is_url

READ_AT_ONCE = 16
IN_PROGRESS_FOR = timedelta(days=1)  # an attempt without a piece is in progress for so long, then it is left over


@dataclass(frozen=True)
class Attempt:
    """Files of a piece: of one that is complete, or of one that is not, or that another process has made."""

    name: str  # in the folder of the pieces
    size: int  # bytes
    age: timedelta  # since its newest file was written
    # Whether the process that makes it is alive, as the lock of a local draft shows; None: not known
    running: bool | None = None

    def is_stopped(self, older_than: timedelta) -> bool:
        """Whether its process was killed, as the lock or the age shows."""
        return self.age > older_than if self.running is None else not self.running


@dataclass(frozen=True)
class PiecesState:
    """What is in a folder of pieces."""

    done: Mapping[str, Attempt]  # the pieces, by key
    failures: Mapping[str, PieceFailure]  # the error of each recording that failed, by the name of its record
    in_progress: tuple[Attempt, ...]  # attempts that processes are making, as far as one can tell
    left_over: tuple[Attempt, ...]  # attempts of processes that were killed


def pieces_state(pieces: PieceStore) -> PiecesState:
    """Look at a folder of pieces."""
    now = datetime.now(timezone.utc)
    done: dict[str, Attempt] = {}
    drafts = pieces.drafts.running() if pieces.local else {}
    attempts = [_draft(pieces, draft.name, now, running) for draft, running in drafts.items()]
    extra: list[Attempt] = []
    states = pieces.states()
    for key, state in states.items():
        piece = ""
        if state.done:
            piece = next(iter(state.attempts)) if len(state.attempts) == 1 else pieces.attempt_of(key)
            size, newest = state.attempts.get(piece, (0, now))
            done[key] = Attempt(key, size, now - newest)
        for attempt, (size, newest) in state.attempts.items():
            if attempt != piece:
                (extra if state.done else attempts).append(Attempt(f"{key}/{attempt}", size, now - newest))
    failed = [key for key, state in states.items() if state.failed and not state.done]
    if failed:
        converted = pieces.notes()
        failed = [key for key in failed if key + PIECE not in converted]
    with ThreadPoolExecutor(READ_AT_ONCE, "failures") as pool:
        found = zip(failed, pool.map(pieces.failure, failed), strict=True)
        failures = {f"{key}/{FAILED}": failure for key, failure in found if failure}
    stopped = [each for each in attempts if each.is_stopped(IN_PROGRESS_FOR)]
    return PiecesState(
        done,
        failures,
        tuple(each for each in attempts if each not in stopped),
        (*stopped, *extra),
    )


def _draft(pieces: PieceStore, name: str, now: datetime, running: bool) -> Attempt:
    files = pieces.objects.listed(f"{name}/").values()
    newest = max((file.modified for file in files), default=now)
    return Attempt(name, sum(file.size for file in files), now - newest, running)


class State(Enum):
    """The state of a target; the value is the exit code of `robocache fleet status`."""

    complete = 0
    failed = 1  # recordings failed, and the dataset is not complete
    unfinished = 3


@dataclass(frozen=True)
class FleetStatus:
    """What exports to a target have made."""

    state: State  # of the target
    pieces: PiecesState  # its pieces, failures and leftovers
    needed: int | None = None  # number of pieces of the dataset; None if it is not known
    started: str = ""  # time at which the export of the plan began; empty if it is not known
    stopped: bool = False  # whether this export has ended without a dataset


@dataclass(frozen=True)
class Removed:
    """What was removed: attempts, pieces, and their bytes."""

    attempts: int
    pieces: int
    size: int


class FleetTarget:
    """A target, a folder or a URL, and its pieces: those in it, or in `pieces`, which exports share."""

    def __init__(self, out: str | AnyPath, pieces: str | AnyPath | None = None) -> None:
        self._out, self._pieces = out, piece_store(out, pieces)
        self._target = BucketTarget(str(out)) if is_url(out) else None

    def status(self) -> FleetStatus:
        """Return the state of the target.

        Errors:
            RoboCacheError: there is neither a dataset nor a piece, nor the plan of an export.
        """
        pieces, plan = pieces_state(self._pieces), self._current()
        if self._is_complete(plan):
            return FleetStatus(State.complete, pieces)
        known = pieces.done or pieces.failures or pieces.in_progress or pieces.left_over
        if plan is None and not known:
            raise RoboCacheError(f"{printable(self._out, 80)}: no export; check the path, or name its --pieces")
        state = State.failed if pieces.failures else State.unfinished
        if plan is None:
            return FleetStatus(state, pieces)
        return FleetStatus(state, pieces, plan.pieces, plan.started, plan.stopped)

    def retry(self, patterns: Sequence[str] = ()) -> list[PieceFailure]:
        """Forget failures, so that the next export tries the recordings again; return them.

        Args:
            patterns: of paths or URLs of recordings, or of their names, with * and ?; empty: all.
        """
        failures = pieces_state(self._pieces).failures
        chosen = {name: each for name, each in failures.items() if not patterns or _matches(each.recording, patterns)}
        self._pieces.objects.delete(chosen)
        return list(chosen.values())

    def collect(self, older_than: timedelta, *, give_up: bool = False) -> Removed:
        """Remove attempts that are left over, and the pieces of exports that were stopped.

        Args:
            older_than: of attempts, and of pieces in a target that no export needs: those of a stopped export.
            give_up: end the plan of an export that was killed, so that one of another plan may begin.
        """
        plan = self._current()
        if plan and give_up and self._target and not plan.stopped:
            self._target.stop(plan)
            plan = self._current()
        found = pieces_state(self._pieces)
        attempts = [each for each in (*found.in_progress, *found.left_over) if each.is_stopped(older_than)]
        unneeded: list[Attempt] = []
        if self._target and not self._pieces.shared and (plan is None or plan.stopped or self._is_complete(plan)):
            unneeded = [piece for piece in found.done.values() if piece.age > older_than]
        removed = [*attempts, *unneeded]
        for each in removed:
            if self._pieces.local:
                shutil.rmtree(self._pieces.local / each.name, ignore_errors=True)
            else:
                objects = self._pieces.objects
                objects.delete([f"{each.name}/{file}" for file in objects.listed(f"{each.name}/")])
        appends = self._removed_appends(older_than)
        size = sum(each.size for each in removed) + sum(each.size for each in appends.values())
        return Removed(len(attempts), len(unneeded) + sum(name.endswith(f"/{DONE}") for name in appends), size)

    def _removed_appends(self, older_than: timedelta) -> dict[str, Listed]:
        """Remove the pieces in the bucket of appends whose newest object is old; return their objects."""
        if self._target is None or self._pieces.shared:
            return {}
        store, until = ObjectStore(f"{self._out}/{BUCKET_APPENDS}"), datetime.now(timezone.utc) - older_than
        listed = store.listed()
        running = {name.partition("/")[0] for name, each in listed.items() if each.modified >= until}
        found = {name: each for name, each in listed.items() if name.partition("/")[0] not in running}
        store.delete(found)
        return found

    def _current(self) -> TargetPlan | None:
        return self._target.current() if self._target else None

    def _is_complete(self, plan: TargetPlan | None) -> bool:
        if self._target is None:
            return bool(listed_entries(Path(self._out)))
        if completed := self._target.completed():
            return plan is None or completed.get("token") == plan.token
        return plan is None and LISTING in ObjectStore(str(self._out)).entries()  # made by appends alone


def _matches(recording: str, patterns: Sequence[str]) -> bool:
    name = recording.rstrip("/").rpartition("/")[2]
    return any(fnmatchcase(recording, pattern) or fnmatchcase(name, pattern) for pattern in patterns)
