"""The folder of a new dataset: it holds a complete dataset, or none that a reader opens.

While an export runs, the target folder holds a lock file, the pieces that are made of each recording, and a partial
folder, in which the dataset is written:

    <out>/.robocache-lock                    flock'ed by the export that writes here
    <out>/.robocache-pieces/<key>            the piece of a recording; finished ones stay until the dataset is complete
    <out>/.robocache-partial-<id>/dataset    the new dataset
                                 /replaced   the entries of the old one, once they are moved away
                                 /moves.json what is moved where, once the new dataset is complete

Everything is on the file system of `out`, which may be a mount point or a link. At the end the entries are moved into
`out`, `meta` with its info.json last: without it no reader takes the folder for a dataset.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from errno import EINVAL, ENOLCK, ENOSYS, EOPNOTSUPP
from pathlib import Path

from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.export.file_errors import file_errors
from robocache_ros.export.pieces.store import PieceStore
from robocache_ros.export.publish import ENTRIES, INFO, MOVES, finish_moves, publish, sync_all

LOCK = ".robocache-lock"
PIECES = ".robocache-pieces"
PARTIAL = ".robocache-partial-"
_FOREIGN = ("lost+found",)  # an empty file system has it
_NO_LOCKS = (ENOLCK, EOPNOTSUPP, ENOSYS, EINVAL)  # what file systems without locks answer


@dataclass
class NewDataset:
    """A dataset that is being written."""

    folder: Path  # where its files are written
    pieces: PieceStore  # those of earlier exports too, which were stopped or failed
    notes: list[str] = field(default_factory=list)  # what the user must know about left-overs


def finished_pieces(out: Path) -> int:
    """How many converted recordings an export has left in `out`, for the next one."""
    return PieceStore(out / PIECES).count()


@contextmanager
def new_dataset(out: Path, *, overwrite: bool = False) -> Iterator[NewDataset]:
    """A folder to write a dataset into, whose contents move to `out` at the end; any exception removes it.

    A dataset that is replaced stays readable until the new one is complete. A process that is killed leaves its partial
    folder in `out`; the next export to `out` removes it, or finishes the moves where they had begun. Pieces that are
    complete stay after an exception, and are removed, whatever they are of, once a dataset is complete.

    Args:
        out: the dataset's folder: new, empty, or with `overwrite` a dataset.
        overwrite: replace the dataset in `out`; other files in `out` are kept.

    Errors:
        RoboCacheError: `out` is in use or not empty, is not a dataset to overwrite, or cannot be written.
    """
    out = Path(os.path.abspath(out))
    with file_errors(out):
        made = _make(out, overwrite)
        try:
            with _locked(out) as exclusive:
                notes = _clear(out, exclusive)
                _check(out, overwrite)
                partial = out / f"{PARTIAL}{secrets.token_hex(4)}"
                (partial / "dataset").mkdir(parents=True)
                # Without locks another export may be at work: its pieces are not touched, and these not kept.
                pieces = PieceStore(out / PIECES if exclusive else partial / "pieces")
                pieces.tidy()
                new = NewDataset(partial / "dataset", pieces, notes)
                try:
                    yield new
                    sync_all(new.folder)
                    _check(out, overwrite)  # again: files may have come while this dataset was written
                    publish(out, partial)
                    shutil.rmtree(pieces.folder, ignore_errors=True)
                finally:
                    pieces.tidy()
                    shutil.rmtree(partial, ignore_errors=True)
                if partial.exists():
                    notes.append(f"{partial.name} in {out}: cannot be removed; remove it by hand")
        finally:
            if made:
                with suppress(OSError):
                    out.rmdir()  # where nothing came of it


def _make(out: Path, overwrite: bool) -> bool:
    """Make the folder where it is missing; refuse one that is in the way before anything is written."""
    if out.exists():
        if not out.is_dir():
            raise RoboCacheError(f"{printable(out)}: is a file; give a new folder")
        if not any(out.glob(f"{PARTIAL}*")):  # left-overs are cleared first: they may hold a complete dataset
            _check(out, overwrite)
        return False
    out.parent.mkdir(parents=True, exist_ok=True)
    out.mkdir()
    return True


def _check(out: Path, overwrite: bool) -> None:
    own = (LOCK, PARTIAL, PIECES)
    present = [f.name for f in out.iterdir() if not f.name.startswith(own) and f.name not in _FOREIGN]
    if not present:
        return
    where = printable(out)
    if not overwrite:
        raise RoboCacheError(f"{where}: exists; choose another folder, or replace it with --overwrite")
    if not (out / INFO).exists():
        raise RoboCacheError(f"{where}: not a dataset (no {INFO}), so it is not overwritten; choose another folder")
    for name in ENTRIES:
        if os.path.ismount(out / name):
            raise RoboCacheError(
                f"{where}: {name} in it is a mount point and cannot be replaced; choose another folder"
            )


@contextmanager
def _locked(out: Path) -> Iterator[bool]:
    """Hold the lock of a target; false where its file system has no locks."""
    path = out / LOCK
    exclusive = True
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            raise RoboCacheError(
                f"{printable(out)}: another export is writing to it; wait for it, or choose another folder"
            ) from None
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                os.close(handle)
                raise
            exclusive = False
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(handle), os.stat(path)):
                break
        os.close(handle)  # the export before removed this file between our open and our lock
    try:
        yield exclusive
    finally:
        with suppress(OSError):
            path.unlink()
        os.close(handle)


def _clear(out: Path, exclusive: bool) -> list[str]:
    """Remove what killed exports left, or finish their moves; says what was done."""
    notes = []
    for partial in sorted(out.glob(f"{PARTIAL}*")):
        if not exclusive:  # its export may be alive
            notes.append(f"{partial.name} in {out}: left by another export or in use by one; remove it if none runs")
            continue
        if (partial / MOVES).exists():
            finish_moves(out, partial)
            shutil.rmtree(out / PIECES, ignore_errors=True)
            notes.append(f"{partial.name}: an export was stopped while it moved its files; they were moved")
        else:
            notes.append(f"{partial.name}: left by an export that was stopped; it was removed")
        shutil.rmtree(partial)
    return notes
