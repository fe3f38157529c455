"""The pieces, the failures and the leftovers of exports, in a bucket or in a local folder."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path

from robocache_ros.export.bucket.bucket_pieces import FAILED, BucketPieces, KeyState
from robocache_ros.export.pieces.any_pieces import AnyPieces, PieceFailure
from robocache_ros.export.pieces.store import DONE, NOTES, PieceStore

READ_AT_ONCE = 16
FAILED_NOTE = ".failed"  # of the shards of an export
LONG = timedelta(days=1)  # an attempt without a piece is in progress for so long, then it is left over


@dataclass(frozen=True)
class Attempt:
    """Files of a piece: of one that is complete, or of one that is not, or that another process has made.

    Attributes:
        name: in the folder of the pieces.
        size: bytes.
        age: since its newest file was written.
    """

    name: str
    size: int
    age: timedelta


@dataclass(frozen=True)
class PiecesState:
    """What is in a folder of pieces.

    Attributes:
        done: the pieces, by key.
        failures: the error of each recording that failed, by the name of its record.
        in_progress: attempts that processes are making, as far as one can tell.
        left_over: attempts of processes that were killed.
    """

    done: Mapping[str, Attempt]
    failures: Mapping[str, PieceFailure]
    in_progress: tuple[Attempt, ...]
    left_over: tuple[Attempt, ...]


def pieces_state(pieces: AnyPieces) -> PiecesState:
    """Look at a folder of pieces.

    Errors:
        StoreError: the bucket cannot be used.
    """
    if isinstance(pieces, BucketPieces):
        return _of_bucket(pieces)
    assert isinstance(pieces, PieceStore)
    return _of_folder(pieces)


def forget_failures(pieces: AnyPieces, names: Collection[str]) -> None:
    """Remove the records of failures, so that the next export tries the recordings again."""
    if isinstance(pieces, BucketPieces):
        pieces.store.delete(names)
    else:
        for name in names:
            (pieces.folder / name).unlink(missing_ok=True)


def remove_attempts(pieces: AnyPieces, names: Collection[str]) -> None:
    """Remove attempts, or pieces, with all of their files."""
    for name in names:
        if isinstance(pieces, BucketPieces):
            pieces.store.delete(f"{name}/{file}" for file in pieces.store.listed(f"{name}/"))
        else:
            shutil.rmtree(pieces.folder / name, ignore_errors=True)


def _of_bucket(pieces: BucketPieces) -> PiecesState:
    now = datetime.now(timezone.utc)
    done: dict[str, Attempt] = {}
    attempts: list[Attempt] = []
    others: list[Attempt] = []
    states = pieces.states()
    for key, state in states.items():
        piece = _piece_of(pieces, key, state)
        if state.done:
            size, newest = state.attempts.get(piece, (0, now))
            done[key] = Attempt(key, size, now - newest)
        for attempt, (size, newest) in state.attempts.items():
            if attempt != piece:
                found = Attempt(f"{key}/{attempt}", size, now - newest)
                (others if state.done or found.age > LONG else attempts).append(found)
    failed = [key for key, state in states.items() if state.failed and not state.done]
    with ThreadPoolExecutor(READ_AT_ONCE, "failures") as pool:
        told = dict(zip(failed, pool.map(pieces.failure, failed), strict=True))
    failures = {f"{key}/{FAILED}": failure for key, failure in told.items() if failure}
    return PiecesState(done, failures | _noted_failures(pieces, pieces.notes()), tuple(attempts), tuple(others))


def _piece_of(pieces: BucketPieces, key: str, state: KeyState) -> str:
    """Return the name of the attempt that is the piece, empty if there is none."""
    if not state.done:
        return ""
    if len(state.attempts) == 1:
        return next(iter(state.attempts))
    with suppress(FileNotFoundError, ValueError, TypeError, LookupError, RecursionError):
        return str(json.loads(pieces.store.get(f"{key}/{DONE}"))["attempt"])
    return ""


def _of_folder(pieces: PieceStore) -> PiecesState:
    active, stopped = pieces.drafts()
    drafts = {*active, *stopped}
    done = [path.parent for path in pieces.folder.glob(f"*/{DONE}") if path.parent not in drafts]
    return PiecesState(
        done={each.name: each for each in map(_measured, sorted(done))},
        failures=_noted_failures(pieces, pieces.notes()),
        in_progress=tuple(map(_measured, active)),
        left_over=tuple(map(_measured, stopped)),
    )


def _measured(folder: Path) -> Attempt:
    """Return the bytes and the age of a local folder; it may be removed meanwhile."""
    size, newest = 0, 0.0
    for root, _, files in os.walk(folder):
        for name in files:
            with suppress(OSError):
                found = (Path(root) / name).stat()
                size, newest = size + found.st_size, max(newest, found.st_mtime)
    return Attempt(folder.name, size, timedelta(seconds=time.time() - newest if newest else 0))


def _noted_failures(pieces: AnyPieces, notes: Collection[str]) -> dict[str, PieceFailure]:
    """Return the failures that the shards of an export have noted, unless the recording was converted since."""
    names = (name for name in sorted(notes) if name.endswith(FAILED_NOTE))
    converted = {name.partition(".")[0] for name in notes if name.endswith(".piece")}
    noted = {name: pieces.noted(name) or "" for name in names if name.partition(".")[0] not in converted}
    return {f"{NOTES}/{name}": PieceFailure(text.partition(": ")[0], text) for name, text in noted.items()}
