"""Pieces in a bucket, which has no rename and no locks. A piece is either complete or does not exist.

<url>/<key>/<attempt>/     the files of a piece, uploaded by one process
           /done.json      put if absent, last: the key, the attempt that is the piece, and the sizes and SHA-256 of
                           its files
           /failed.json    put if absent: the error of a recording that cannot be converted

Processes that make the same piece upload an attempt each. Whoever puts done.json first has made the piece; the others
delete their attempt. An attempt without done.json is in progress, or its process was killed: `robocache fleet gc`
removes old ones.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import cast

from robocache_ros.errors import printable
from robocache_ros.export.bucket.piece_path import PiecePath
from robocache_ros.export.pieces.any_pieces import PieceFailure
from robocache_ros.export.pieces.store import DONE, NOTES, PieceFiles, PieceStore, described, files_in
from robocache_ros.remote.any_path import any_path
from robocache_ros.remote.file_cache import cache_folder
from robocache_ros.remote.object_store import Listed, ObjectStore
from robocache_ros.remote.store_errors import StoreError

FAILED = "failed.json"


@dataclass
class KeyState:
    """What a listing tells of a key.

    Attributes:
        done, failed: whether there is a piece, or the error of a recording.
        attempts: by name: bytes, and the time of the newest object. One of them is the piece, if there is one.
    """

    done: bool = False
    failed: bool = False
    attempts: dict[str, tuple[int, datetime]] = field(default_factory=dict)


@dataclass(frozen=True)
class BucketPieces:
    """Pieces by key, below a URL that is shared by any number of processes. Has the methods of `PieceStore`.

    Args:
        store: the objects below the URL.
        shared: exports to other targets may use the pieces too.

    Errors:
        StoreError: of all methods: the bucket cannot be used.
    """

    store: ObjectStore
    shared: bool = False
    keeps_failures = True

    @property
    def folder(self) -> Path:
        """The URL, for messages."""
        return any_path(self.store.url, "pieces", storage_options=self.store.options)

    def find(self, key: str) -> Path | None:
        """Return a complete piece, None if there is none."""
        with suppress(FileNotFoundError, ValueError, LookupError):
            done = self.store.get(f"{key}/{DONE}")
            files, attempt = files_in(done, key), str(json.loads(done)["attempt"])
            there = self.store.listed(f"{key}/{attempt}/")
            if all(name in there and there[name].size == size for name, (size, _) in files.items()):
                return self._path(f"{key}/{attempt}", files)
        return None

    def failure(self, key: str) -> PieceFailure | None:
        """Return the error of an earlier export, None if there is none."""
        with suppress(FileNotFoundError, ValueError, TypeError, LookupError, RecursionError):
            told = json.loads(self.store.get(f"{key}/{FAILED}"))
            return PieceFailure(str(told["recording"]), str(told["error"]), told["dropped"] is True)
        return None

    def fail(self, key: str, failure: PieceFailure) -> None:
        """Record the error of a recording, unless one is recorded."""
        self.store.create(f"{key}/{FAILED}", json.dumps(asdict(failure)).encode())

    def states(self) -> dict[str, KeyState]:
        """Return what there is of each key, from one listing."""
        return key_states(self.store.listed(hexadecimal=True))

    def count(self) -> int:
        """Return the number of complete pieces."""
        return sum(state.done for state in self.states().values())

    def used(self) -> bool:
        """Whether there may be pieces or errors of an earlier export."""
        return bool(self.store.entries())

    def note(self, name: str, text: str = "") -> None:
        """Write a note for other exports that share the pieces, in place of one of this name."""
        self.store.put(f"{NOTES}/{name}", text.encode() or b"\n")  # a range of an empty object cannot be read

    def noted(self, name: str) -> str | None:
        """Return the text of a note, None if there is none."""
        with suppress(FileNotFoundError, ValueError):
            return self.store.get(f"{NOTES}/{name}").decode().rstrip("\n")
        return None

    def notes(self) -> frozenset[str]:
        """Return the names of all notes."""
        return frozenset(self.store.listed(f"{NOTES}/", hexadecimal=True))

    @contextmanager
    def draft(self) -> Iterator[Path]:
        """Yield a new local folder for a piece. It is removed on exit."""
        with local_drafts().draft() as folder:
            yield folder

    def check(self) -> None:
        """Refuse a bucket in which no piece can be made."""
        self.store.check()

    def commit(self, draft: Path, key: str) -> tuple[Path, bool]:
        """Upload a draft as the piece of a key, unless another process has made the same piece.

        Returns:
            The piece, and whether it replaces one whose files are not there.
        """
        attempt = secrets.token_hex(8)
        files = described(draft)
        done = json.dumps({"key": key, "attempt": attempt, "files": files}).encode()
        where = f"{key}/{attempt}"
        try:
            self.store.put_files(draft, files, f"{where}/")
            piece, damaged = self._path(where, files), False
            if not self.store.create(f"{key}/{DONE}", done):
                found = self._other(key, done)
                piece, damaged = found or piece, not found
        except BaseException:
            with suppress(StoreError):
                self._delete(where, files)
            raise
        if piece.name != attempt:
            self._delete(where, files)
        return piece, damaged

    def tidy(self) -> None:
        """Remove the local drafts of stopped processes."""
        local_drafts().tidy()

    def _other(self, key: str, done: bytes) -> Path | None:
        """Return the piece that another process has made; None if its files are gone and ours take their place."""
        for _ in range(8):
            if found := self.find(key):
                return found
            self.store.delete([f"{key}/{DONE}"])
            if self.store.create(f"{key}/{DONE}", done):
                return None
        where = printable(f"{self.store.url}/{key}", 100)
        raise StoreError(f"{where}: its files vanish; stop the program or the lifecycle rule that deletes them")

    def _delete(self, where: str, files: Mapping[str, object]) -> None:
        self.store.delete([f"{where}/{name}" for name in files])

    def _path(self, where: str, files: PieceFiles) -> Path:
        return cast(Path, PiecePath.of(self.store.below(where), files))


def key_states(listed: Mapping[str, Listed]) -> dict[str, KeyState]:
    """Return what a listing of pieces tells of each key."""
    states: dict[str, KeyState] = {}
    for name, object_ in listed.items():
        key, _, rest = name.partition("/")
        attempt, slash, _ = rest.partition("/")
        state = states.setdefault(key, KeyState())
        state.done |= rest == DONE
        state.failed |= rest == FAILED
        if slash:
            size, newest = state.attempts.get(attempt, (0, object_.modified))
            state.attempts[attempt] = (size + object_.size, max(newest, object_.modified))
    return states


def local_drafts() -> PieceStore:
    """Return the local folder of what is made for a bucket; drafts of processes that were killed are found there."""
    return PieceStore(cache_folder("drafts"), shared=True)
