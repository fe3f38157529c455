"""A folder of pieces: of one unfinished export, or shared by exports. A piece is either complete or does not exist.

<folder>/<key>/            a complete piece, renamed from its draft
              /done.json   the key, and the sizes and SHA-256 of its files by name; written last
<folder>/draft-<id>/       a piece during the conversion, locked with flock by the process that writes it
<folder>/.robocache-notes/ what exports that share the folder tell each other; a lost note costs time, nothing else

Exports that share a folder need no lock of the folder: the name of a draft is unique, a rename is atomic, and two
pieces of one key have the same bytes. The lock of a draft shows whether the process that writes it is alive. A piece
is used only if all of its files have their SHA-256; one that is damaged is replaced.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from errno import EEXIST, ENOTEMPTY
from pathlib import Path
from typing import TypeAlias

from robocache_ros.export.pieces.any_pieces import PieceFailure
from robocache_ros.export.publish import sync, sync_all
from robocache_ros.export.validate.checksum_list import digests_of, files_of

DONE = "done.json"
DONE_BYTES = 64 << 20  # at most, of done.json
NOTES = ".robocache-notes"
_DRAFT = re.compile(r"draft-[0-9a-f]{16}")

PieceFiles: TypeAlias = Mapping[str, tuple[int, str]]  # size and SHA-256 by name


class PieceStore:
    """Pieces by key, in a folder shared by several processes.

    Args:
        folder: created with the first draft.
        shared: other exports may use the folder at the same time, and it may contain other files.
    """

    keeps_failures = False  # every local export tries recordings that failed again

    def __init__(self, folder: Path, *, shared: bool = False) -> None:
        self.folder = folder
        self.shared = shared

    def find(self, key: str) -> Path | None:
        """Return a complete piece whose files have their SHA-256, None if there is none."""
        piece = self.folder / key
        try:
            with (piece / DONE).open("rb") as file:
                files = files_in(file.read(DONE_BYTES), key)
            there = {name: (piece / name).stat().st_size for name in files_of(piece) if name != DONE}
            if there != {name: size for name, (size, _) in files.items()}:
                return None
            found = digests_of(piece, list(there))
        except (OSError, ValueError):
            return None
        return piece if all(found[name] == digest for name, (_, digest) in files.items()) else None

    def failure(self, key: str) -> PieceFailure | None:
        """Return None; see `keeps_failures`."""
        return None

    def fail(self, key: str, failure: PieceFailure) -> None:
        """Record nothing; see `keeps_failures`."""

    def used(self) -> bool:
        """Whether there are pieces of an earlier export."""
        return self.count() > 0

    def count(self) -> int:
        """Return the number of complete pieces."""
        return sum(1 for done in self.folder.glob(f"*/{DONE}") if not _DRAFT.fullmatch(done.parent.name))

    @contextmanager
    def draft(self) -> Iterator[Path]:
        """Yield a new folder for a piece. It is removed on exit unless it was committed."""
        while True:
            folder = self.folder / f"draft-{secrets.token_hex(8)}"
            folder.mkdir(parents=True)
            lock = _locked(folder, wait=True)
            if folder.exists():
                break
            _unlock(lock)  # another export removed it before it was locked
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            _unlock(lock)

    def check(self) -> None:
        """Raise an OSError, with the name of a folder, if a draft cannot be made."""
        with self.draft():
            pass

    def commit(self, draft: Path, key: str) -> tuple[Path, bool]:
        """Commit a draft as the piece of a key, unless another process has committed the same piece.

        Returns:
            The piece, and whether it replaces a damaged one.
        """
        piece = self.folder / key
        files = described(draft)
        sync_all(draft)
        (draft / DONE).write_text(json.dumps({"key": key, "files": files}), encoding="utf-8")
        sync(draft / DONE)
        damaged = False
        if not _moved(draft, piece):
            lock = _locked(self.folder, wait=True)  # of two processes, the second finds what the first puts there
            try:
                if damaged := not self.find(key):
                    shutil.rmtree(piece, ignore_errors=True)
                    _moved(draft, piece)
            finally:
                _unlock(lock)
        sync(self.folder)
        return piece, damaged

    def note(self, name: str, text: str = "") -> None:
        """Write a note, in place of one of this name."""
        folder = self.folder / NOTES
        folder.mkdir(parents=True, exist_ok=True)
        draft = folder / f".{secrets.token_hex(8)}"
        draft.write_text(text, encoding="utf-8")
        draft.rename(folder / name)

    def noted(self, name: str) -> str | None:
        """Return the text of a note, None if there is none."""
        try:
            return (self.folder / NOTES / name).read_text(encoding="utf-8")
        except (OSError, ValueError):
            return None

    def notes(self) -> frozenset[str]:
        """Return the names of all notes."""
        with suppress(FileNotFoundError):
            return frozenset(os.listdir(self.folder / NOTES))
        return frozenset()

    def drafts(self) -> tuple[list[Path], list[Path]]:
        """Return the drafts of running processes, and those of processes that were killed."""
        found: tuple[list[Path], list[Path]] = ([], [])
        for draft in sorted(self.folder.glob("draft-*")):
            if _DRAFT.fullmatch(draft.name):
                lock = _locked(draft, wait=False)
                found[lock is not None].append(draft)
                _unlock(lock)
        return found

    def tidy(self) -> None:
        """Remove the drafts of stopped processes, and the folder if it contains no piece and is not shared."""
        for draft in self.folder.glob("draft-*"):
            if not _DRAFT.fullmatch(draft.name):
                continue
            lock = _locked(draft, wait=False)
            if lock is not None or not self.shared:
                shutil.rmtree(draft, ignore_errors=True)
            _unlock(lock)
        if not self.shared:
            with suppress(OSError):
                os.rmdir(self.folder)


def described(draft: Path) -> PieceFiles:
    """Return the sizes and SHA-256 of the files of a draft, by name."""
    names = files_of(draft)
    digests = digests_of(draft, names)
    return {name: ((draft / name).stat().st_size, digests[name]) for name in names}


def files_in(done: bytes, key: str) -> PieceFiles:
    """Return the files that the done.json of a key lists; ValueError if it is damaged, or of another key."""
    try:
        told = json.loads(done)
        if told["key"] == key:
            return {str(name): (int(size), str(digest)) for name, (size, digest) in told["files"].items()}
    except (LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{DONE}: not a list of files") from error
    raise ValueError(f"{DONE}: of another piece")


def _moved(draft: Path, piece: Path) -> bool:
    """Rename a draft to a piece; return false if there is one."""
    try:
        draft.rename(piece)
    except OSError as error:
        if error.errno not in (EEXIST, ENOTEMPTY):
            raise
        return False
    return True


def _locked(folder: Path, *, wait: bool) -> int | None:
    """Lock a draft; return the handle of the lock, None if it has none: no locks, in use, or removed."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # another process has the lock, or the file system has no locks of folders
        os.close(handle)
        return None
    return handle


def _unlock(lock: int | None) -> None:
    if lock is not None:
        os.close(lock)
