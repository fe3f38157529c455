"""Pieces by key, in a folder or in a bucket, shared by any number of processes."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import re
import secrets
import shutil
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from datetime import datetime
from errno import EEXIST, ENOTEMPTY
from fnmatch import fnmatch
from pathlib import Path
from types import SimpleNamespace
from typing import BinaryIO, Protocol, TypeAlias, cast

from robocache_ros.errors import printable
from robocache_ros.formats.checksums import digests_of, files_of, sha256
from robocache_ros.formats.dataset_folder import sync, sync_all
from robocache_ros.storage.cache import FileCache, cache_folder, default_cache_bytes, let_go
from robocache_ros.storage.errors import RemoteError, StoreError
from robocache_ros.storage.object_store import Listed, ObjectStore
from robocache_ros.storage.paths import RemotePath, any_path

# What the pieces of an export offer, wherever they are: in a local folder, or in a bucket.


@dataclass(frozen=True)
class PieceFailure:
    """The error of a recording that cannot be converted, as it is recorded for later exports.

    Attributes:
        recording: its path or URL.
        error: the message.
        dropped: it is the error that `on_invalid: drop` asks for.
    """

    recording: str
    error: str
    dropped: bool = False


class AnyPieces(Protocol):
    """Pieces by key, shared by several processes: a `PieceStore`, or `BucketPieces`."""

    @property
    def folder(self) -> Path:
        """The folder or the URL, for messages."""

    @property
    def shared(self) -> bool:
        """Whether other exports may use the pieces at the same time."""

    @property
    def keeps_failures(self) -> bool:
        """Whether errors of recordings are recorded for later exports."""

    def find(self, key: str) -> Path | None:
        """Return a complete piece, None if there is none."""

    def failure(self, key: str) -> PieceFailure | None:
        """Return the error that an earlier export recorded, None if there is none."""

    def fail(self, key: str, failure: PieceFailure) -> None:
        """Record the error of a recording for later exports, unless one is recorded."""

    def count(self) -> int:
        """Return the number of complete pieces."""

    def used(self) -> bool:
        """Whether there may be pieces or errors of an earlier export."""

    def note(self, name: str, text: str = "") -> None:
        """Write a note for other exports that share the pieces, in place of one of this name."""

    def noted(self, name: str) -> str | None:
        """Return the text of a note, None if there is none."""

    def notes(self) -> frozenset[str]:
        """Return the names of all notes."""

    def draft(self) -> AbstractContextManager[Path]:
        """Yield a new local folder for a piece, which is removed on exit unless it was committed."""

    def check(self) -> None:
        """Raise an error if a piece cannot be stored."""

    def commit(self, draft: Path, key: str) -> tuple[Path, bool]:
        """Make a draft the piece of a key, unless another process has made the same piece.

        Returns:
            The piece, and whether it replaces a damaged one.
        """

    def tidy(self) -> None:
        """Remove the drafts of stopped processes."""


# A folder of pieces: of one unfinished export, or shared by exports. A piece is either complete or does not exist.
#
# <folder>/<key>/            a complete piece, renamed from its draft
#               /done.json   the key, and the sizes and SHA-256 of its files by name; written last
# <folder>/draft-<id>/       a piece during the conversion, locked with flock by the process that writes it
# <folder>/.robocache-notes/ what exports that share the folder tell each other; a lost note costs time, nothing else
#
# Exports that share a folder need no lock of the folder: the name of a draft is unique, a rename is atomic, and two
# pieces of one key have the same bytes. The lock of a draft shows whether the process that writes it is alive. A piece
# is used only if all of its files have their SHA-256; one that is damaged is replaced.


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


# A file or a folder of a piece in a bucket, with the interface of `Path`. Files are downloaded when they are used.


FETCHED = 16  # files at once: each is small, and waits for the network


class PiecePath(RemotePath):
    """A path in a piece whose files are known: no request is sent before one of them is used.

    Args:
        piece: the objects of the piece.
        files: of the piece.
        cache: of the downloaded files.
        below: the name in the piece; empty: the piece itself.
    """

    def __init__(self, piece: ObjectStore, files: PieceFiles, cache: FileCache, below: str = "") -> None:
        super().__init__(f"{piece.url}/{below}", piece.options, cache)
        self._piece, self._files, self._below = piece, files, below

    @classmethod
    def of(cls, piece: ObjectStore, files: PieceFiles) -> PiecePath:
        """Return the path of a piece, whose files are downloaded into the cache of pieces."""
        return cls(piece, files, FileCache(None, default_cache_bytes(), "pieces"))

    def __truediv__(self, name: str | Path) -> PiecePath:
        return PiecePath(self._piece, self._files, self.cache, f"{self._below}/{name}".strip("/"))

    @property
    def parent(self) -> PiecePath:
        """The folder, in the piece."""
        return PiecePath(self._piece, self._files, self.cache, self._below.rpartition("/")[0])

    def with_name(self, name: str) -> PiecePath:
        """Return the path of another name in the same folder."""
        return self.parent / name

    def exists(self) -> bool:
        """Whether the piece has such a file or folder."""
        return self.is_file() or self.is_dir()

    def is_file(self) -> bool:
        """Whether this is a file of the piece."""
        return self._below in self._files

    def is_dir(self) -> bool:
        """Whether this is a folder of the piece."""
        return not self._below or any(name.startswith(f"{self._below}/") for name in self._files)

    def stat(self) -> SimpleNamespace:
        """Return st_size, and a st_mtime_ns that differs between contents; OSError if the piece has no such file."""
        size, digest = self._described_file()
        return SimpleNamespace(st_size=size, st_mtime_ns=int(digest[:15], 16))

    def iterdir(self) -> Iterator[PiecePath]:
        """Yield the contents of a folder."""
        start = f"{self._below}/" if self._below else ""
        below = (name[len(start) :] for name in self._files if name.startswith(start))
        yield from (self / name for name in dict.fromkeys(name.partition("/")[0] for name in below))

    def glob(self, pattern: str) -> Iterator[PiecePath]:
        """Yield the files directly below that match a pattern."""
        yield from (path for path in self.iterdir() if fnmatch(path.name, pattern))

    def open(self, mode: str = "rb") -> BinaryIO:
        """Open the local copy, which stays in the cache until the file is closed.

        Errors:
            OSError: the piece has no such file, or the disk is full.
            RemoteError: it cannot be downloaded, or is not the file that was uploaded.
        """
        assert mode == "rb"
        size, digest = self._described_file()
        return self.cache.open(self._version(digest), self.name, size, lambda local: self._fetch(local, digest))

    def remove_copies(self) -> None:
        """Remove the local copies of the files of the piece."""
        for name, (size, digest) in self._files.items():
            path = PiecePath(self._piece, self._files, self.cache, name)
            version = path._version(digest)
            if file := self.cache.existing(version, path.name, size):
                with file:
                    let_go(file)
                self.cache.remove(version, path.name, size)

    def _version(self, digest: str) -> str:
        return hashlib.sha256(f"{self.url}\n{digest}".encode()).hexdigest()[:32]

    def _fetch(self, local: Path, digest: str) -> None:
        self._piece.get_file(self._below, local)
        if sha256(local) != digest:
            self._piece.delete([self._below])  # a piece without all of its files is made again
            raise RemoteError(f"{printable(self.url, 110)}: was damaged and is deleted; run the same command again")

    def _described_file(self) -> tuple[int, str]:
        try:
            return self._files[self._below]
        except KeyError:
            raise FileNotFoundError(errno.ENOENT, "not there", self.url) from None


def fetch_ahead(paths: Iterable[Path]) -> None:
    """Download the files of pieces in a bucket, many at once, before they are used one after the other."""

    def fetch(path: PiecePath) -> None:
        path.open().close()

    if remote := _in_buckets(paths):
        with ThreadPoolExecutor(FETCHED, "fetch") as pool:
            for _ in pool.map(fetch, remote):
                pass


def remove_copies(pieces: Iterable[Path]) -> None:
    """Remove the local copies of the files of pieces in a bucket, which no other dataset needs."""
    for piece in _in_buckets(pieces):
        piece.remove_copies()


def _in_buckets(paths: Iterable[Path]) -> list[PiecePath]:
    distinct: list[object] = list(dict.fromkeys(paths))
    return [path for path in distinct if isinstance(path, PiecePath)]


# Pieces in a bucket, which has no rename and no locks. A piece is either complete or does not exist.
#
# <url>/<key>/<attempt>/     the files of a piece, uploaded by one process
#            /done.json      put if absent, last: the key, the attempt that is the piece, and the sizes and SHA-256 of
#                            its files
#            /failed.json    put if absent: the error of a recording that cannot be converted
#
# Processes that make the same piece upload an attempt each. Whoever puts done.json first has made the piece; the others
# delete their attempt. An attempt without done.json is in progress, or its process was killed: `robocache fleet gc`
# removes old ones.


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
