"""The target folder of an export: readers find a complete dataset in it, or no dataset.

During an export, the target folder contains a lock file, the piece of each recording, and a partial folder, in which
the dataset is written:

    <out>/.robocache-lock                    locked with flock by the active export
    <out>/.robocache-pieces/<key>            the piece of a recording; kept until the dataset is complete. With a
                                             shared folder of pieces, they are there
    <out>/.robocache-partial-<id>/dataset    the new dataset
                                 /scratch    its files that are not complete
                                 /replaced   the entries of the old dataset, after they are moved
                                 /moves.json the list of moves, written when the new dataset is complete

All files are on the file system of `out`, which may be a mount point or a link. At the end, the entries are moved to
`out`, the one by which readers recognize a dataset last. `.robocache-dataset` lists them, unless they are LeRobot's.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from errno import EINVAL, ENOLCK, ENOSYS, EOPNOTSUPP
from pathlib import Path

from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.export.file_errors import file_errors
from robocache_ros.export.outputs.new_dataset import OWN_PIECES, NewDataset, piece_store
from robocache_ros.export.pieces.any_pieces import AnyPieces
from robocache_ros.export.pieces.store import PieceStore
from robocache_ros.export.publish import (
    INFO,
    LISTING,
    LOCK,
    MOVES,
    finish_moves,
    list_entries,
    listed_entries,
    publish,
    sync_all,
)

PARTIAL = ".robocache-partial-"
APPEND = ".robocache-append-"  # the folder of an append that is not complete
_FOREIGN = ("lost+found",)  # present in a new ext file system
_NO_LOCKS = (ENOLCK, EOPNOTSUPP, ENOSYS, EINVAL)  # errors of file systems without locks


class TargetInUse(RoboCacheError):  # noqa: N818 - the name says what it adds
    """Another export writes to the target."""


# More than 50 lines, because of its docstring.
@contextmanager
def new_dataset(
    out: Path, last: str = "meta", *, overwrite: bool = False, pieces: str | Path | None = None
) -> Iterator[NewDataset]:
    """Yield a folder for a new dataset. On exit its contents move to `out`; on an exception it is removed.

    A dataset that is replaced stays readable until the new one is complete. A killed process leaves its partial folder
    in `out`. The next export to `out` removes this folder, or completes the moves if they had started. Complete pieces
    stay after an exception. When a dataset is complete, all pieces in `out` are removed, also those of others.

    Args:
        out: the dataset's folder: new, empty, or with `overwrite` an existing dataset.
        last: the file or folder by which readers recognize the dataset; it is moved to `out` after the others.
        overwrite: replace the dataset in `out`; other files in `out` are kept.
        pieces: a folder of pieces that are kept, and that other exports use as well; None: in `out`.

    Errors:
        RoboCacheError: `out` is in use or not empty, is not a dataset to overwrite, or cannot be written; or `pieces`
            cannot be written.
    """
    out = Path(os.path.abspath(out))
    store: AnyPieces = piece_store(out, pieces)
    with file_errors(out):
        made = _make(out, overwrite)
        try:
            with _locked(out) as exclusive:
                notes = _clear(out, exclusive)
                _check(out, overwrite)
                partial = out / f"{PARTIAL}{secrets.token_hex(4)}"
                (partial / "dataset").mkdir(parents=True)
                if not exclusive and not store.shared:
                    # Without locks another export may be active: do not use its pieces, do not keep new ones.
                    store = PieceStore(partial / "pieces")
                store.tidy()
                new = NewDataset(partial / "dataset", partial / "scratch", store, notes=notes)
                try:
                    if store.shared:
                        store.check()
                    yield new
                    list_entries(new.folder)
                    sync_all(new.folder)
                    _check(out, overwrite)  # check again: files may have been added during the export
                    publish(out, partial, last)
                    if exclusive:
                        shutil.rmtree(out / OWN_PIECES, ignore_errors=True)
                finally:
                    store.tidy()
                    shutil.rmtree(partial, ignore_errors=True)
                if partial.exists():
                    notes.append(f"{partial.name} in {out}: cannot be removed; remove it by hand")
        finally:
            if made:
                with suppress(OSError):
                    out.rmdir()  # the export produced no files


def _make(out: Path, overwrite: bool) -> bool:
    """Create the folder if it is missing. Refuse an unsuitable folder before anything is written."""
    if out.exists():
        check_target(out, overwrite=overwrite)
        return False
    out.parent.mkdir(parents=True, exist_ok=True)
    out.mkdir()
    return True


def check_target(out: Path, *, overwrite: bool = False) -> None:
    """Refuse a folder that an export would refuse, without writing to it."""
    if not out.exists():
        return
    if not out.is_dir():
        raise RoboCacheError(f"{printable(out)}: is a file; give a new folder")
    if not any(out.glob(f"{PARTIAL}*")):  # partial folders are handled first: they may contain a complete dataset
        _check(out, overwrite)


def _check(out: Path, overwrite: bool) -> None:
    own = (LOCK, PARTIAL, APPEND, OWN_PIECES, LISTING)
    present = [f.name for f in out.iterdir() if not f.name.startswith(own) and f.name not in _FOREIGN]
    if not present:
        return
    where = printable(out)
    if not overwrite:
        raise RoboCacheError(f"{where}: exists; choose another folder, or replace it with --overwrite")
    entries = listed_entries(out)
    if not entries:
        raise RoboCacheError(f"{where}: not a dataset (no {INFO}), so it is not overwritten; choose another folder")
    for name in entries:
        if os.path.ismount(out / name):
            raise RoboCacheError(
                f"{where}: {name} in it is a mount point and cannot be replaced; choose another folder"
            )


@contextmanager
def _locked(out: Path) -> Iterator[bool]:
    """Hold the lock of a target; yield false if its file system does not support locks."""
    path = out / LOCK
    exclusive = True
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            raise TargetInUse(
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
        os.close(handle)  # the previous export removed this file between open and lock
    try:
        yield exclusive
    finally:
        with suppress(OSError):
            path.unlink()
        os.close(handle)


def _clear(out: Path, exclusive: bool) -> list[str]:
    """Remove the partial folders of killed exports, or complete their moves; return notes on what was done."""
    notes = []
    for partial in sorted(out.glob(f"{PARTIAL}*")):
        if not exclusive:  # its export may still be running
            notes.append(f"{partial.name} in {out}: left by another export or in use by one; remove it if none runs")
            continue
        if (partial / MOVES).exists():
            finish_moves(out, partial)
            shutil.rmtree(out / OWN_PIECES, ignore_errors=True)
            notes.append(f"{partial.name}: an export was stopped while it moved its files; they were moved")
        else:
            notes.append(f"{partial.name}: left by an export that was stopped; it was removed")
        shutil.rmtree(partial)
    return notes
