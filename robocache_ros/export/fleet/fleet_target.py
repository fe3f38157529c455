"""The target of the exports of a fleet: its state, and what can be removed from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from enum import Enum
from fnmatch import fnmatchcase
from pathlib import Path

from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.export.bucket.bucket_pieces import BucketPieces
from robocache_ros.export.bucket.target_plans import TargetPlan, TargetPlans
from robocache_ros.export.fleet.pieces_state import (
    Attempt,
    PiecesState,
    forget_failures,
    pieces_state,
    remove_attempts,
)
from robocache_ros.export.outputs.new_dataset import BUCKET_APPENDS, piece_store
from robocache_ros.export.pieces.any_pieces import PieceFailure
from robocache_ros.export.pieces.store import DONE
from robocache_ros.export.publish import LISTING, listed_entries
from robocache_ros.remote.any_path import is_url
from robocache_ros.remote.object_store import Listed, ObjectStore


class State(Enum):
    """The state of a target; the value is the exit code of `robocache fleet status`."""

    complete = 0
    failed = 1  # recordings failed, and the dataset is not complete
    unfinished = 3


@dataclass(frozen=True)
class FleetStatus:
    """What exports to a target have made.

    Attributes:
        state: of the target.
        pieces: its pieces, failures and leftovers.
        needed: number of pieces of the dataset; None if it is not known.
        started: time at which the export of the plan began; empty if it is not known.
        stopped: whether this export has ended without a dataset.
    """

    state: State
    pieces: PiecesState
    needed: int | None = None
    started: str = ""
    stopped: bool = False


@dataclass(frozen=True)
class Removed:
    """What was removed: attempts, pieces, and their bytes."""

    attempts: int
    pieces: int
    size: int


class FleetTarget:
    """A target, a folder or a URL, and its pieces.

    Args:
        out: the target.
        pieces: a folder or a URL of pieces that exports share; None: those in the target.

    Errors:
        StoreError: of all methods: the bucket cannot be used.
    """

    def __init__(self, out: str | Path, pieces: str | Path | None = None) -> None:
        self._out, self._pieces = out, piece_store(out, pieces)
        self._plans = TargetPlans(ObjectStore(str(out))) if is_url(out) else None

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
        forget_failures(self._pieces, list(chosen))
        return list(chosen.values())

    def collect(self, older_than: timedelta, *, give_up: bool = False) -> Removed:
        """Remove attempts that are left over, and the pieces of exports that were stopped.

        Args:
            older_than: of attempts, and of pieces in a target that no export needs: those of a stopped export.
            give_up: end the plan of an export that was killed, so that one of another plan may begin.
        """
        plan = self._current()
        if plan and give_up and self._plans and not plan.stopped:
            self._plans.stop(plan)
            plan = self._current()
        found = pieces_state(self._pieces)
        attempts = list(found.left_over)  # in a local folder, locks tell which processes were killed
        if isinstance(self._pieces, BucketPieces):
            attempts = [each for each in (*found.in_progress, *found.left_over) if each.age > older_than]
        unneeded: list[Attempt] = []
        if self._plans and not self._pieces.shared and (plan is None or plan.stopped or self._is_complete(plan)):
            unneeded = [piece for piece in found.done.values() if piece.age > older_than]
        removed = [*attempts, *unneeded]
        remove_attempts(self._pieces, [each.name for each in removed])
        appends = self._removed_appends(older_than)
        size = sum(each.size for each in removed) + sum(each.size for each in appends.values())
        return Removed(len(attempts), len(unneeded) + sum(name.endswith(f"/{DONE}") for name in appends), size)

    def _removed_appends(self, older_than: timedelta) -> dict[str, Listed]:
        """Remove the pieces in the bucket of appends that were stopped; return their objects."""
        if self._plans is None or self._pieces.shared:
            return {}
        store, until = ObjectStore(f"{self._out}/{BUCKET_APPENDS}"), datetime.now(timezone.utc) - older_than
        found = {name: each for name, each in store.listed().items() if each.modified < until}
        store.delete(found)
        return found

    def _current(self) -> TargetPlan | None:
        return self._plans.current() if self._plans else None

    def _is_complete(self, plan: TargetPlan | None) -> bool:
        if self._plans is None:
            return bool(listed_entries(Path(self._out)))
        if completed := self._plans.completed():
            return plan is None or completed.get("token") == plan.token
        return plan is None and LISTING in ObjectStore(str(self._out)).entries()  # made by appends alone


def _matches(recording: str, patterns: Sequence[str]) -> bool:
    name = recording.rstrip("/").rpartition("/")[2]
    return any(fnmatchcase(recording, pattern) or fnmatchcase(name, pattern) for pattern in patterns)
