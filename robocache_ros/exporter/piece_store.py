"""Pieces by key, in a folder or in a bucket, shared by any number of processes.

A piece is either complete or does not exist. The layout is the same in both:

<key>/<attempt>/     the files of a piece, which one process has made
     /done.json      put if absent, last: the key, the attempt that is the piece, and the sizes and SHA-256 of its files
<unread>/failed.json the error of a recording, under its key without reading it, in which versions stand for SHA-256
.robocache-notes/    <unread>.piece: the key of a piece, which is then found without reading; a lost note costs time
draft-<id>/          in a folder only: a piece during the conversion, locked with flock by the process that makes it

Nothing is locked but drafts, and two pieces of one key have the same bytes. Of several processes that make the same
piece, the first one that puts done.json has made it; the others delete their attempt. An attempt without done.json is
in progress, or its process was killed: `robocache fleet gc` removes old ones. A piece is used only if all of its files
have their SHA-256; one that is damaged is made again. If its done.json is damaged, its files stay until `fleet gc`.
"""

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
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import TypeAlias

from robocache_ros.errors import printable
from robocache_ros.formats.dataset_folder import digests_of, files_of, sha256, sync
from robocache_ros.storage.cache import FileCache, cache_folder, default_cache_bytes, release
from robocache_ros.storage.errors import RemoteError, StoreError
from robocache_ros.storage.object_store import OBJECT_BYTES, Listed, ObjectStore
from robocache_ros.storage.paths import AnyPath, RemotePath, any_path

DONE, FAILED = "done.json", "failed.json"
NOTES, PIECE = ".robocache-notes", ".piece"
_KEY, _ATTEMPT, _DRAFT = re.compile(r"[0-9a-f]{64}"), re.compile(r"[0-9a-f]{16}"), re.compile(r"draft-[0-9a-f]{16}")
_NEW = ".new-"  # a file that is not complete
_TRIES = 8

PieceFiles: TypeAlias = Mapping[str, tuple[int, str]]  # size and SHA-256 by name


@dataclass(frozen=True)
class PieceFailure:
    """The error of a recording that cannot be converted, as it is recorded for later exports."""

    recording: str  # its path or URL
    error: str  # the message
    dropped: bool = False  # it is the error that `on_invalid: drop` asks for
    permanent: bool = True  # it is an error of the recording itself: the next export would have it too


@dataclass
class KeyState:
    """What a listing tells of a key."""

    # done, failed: whether there is a piece, or the error of a recording
    done: bool = False
    failed: bool = False
    # By name: bytes, and the time of the newest file. One of them is the piece, if there is one
    attempts: dict[str, tuple[int, datetime]] = field(default_factory=dict)


class Drafts:
    """Folders in which processes make files, each locked with flock by its process, in a folder that is created."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @contextmanager
    def new(self) -> Iterator[Path]:
        """Yield a new folder. It is removed on exit, unless it was moved."""
        while True:
            draft = self._folder / f"draft-{secrets.token_hex(8)}"
            draft.mkdir(parents=True)
            with _locked(draft, wait=True):
                if not draft.exists():  # another export removed it before it was locked
                    continue
                try:
                    yield draft
                finally:
                    shutil.rmtree(draft, ignore_errors=True)
                return

    def running(self) -> dict[Path, bool]:
        """Return the drafts, and whether the process of each is alive."""
        found = {}
        for draft in self._all():
            with _locked(draft, wait=False) as locked:
                found[draft] = not locked
        return found

    def tidy(self, *, every: bool = False) -> None:
        """Remove the drafts of processes that were killed, or every draft."""
        for draft in self._all():
            with _locked(draft, wait=False) as locked:  # a new draft is locked after it was made
                if every or locked:
                    shutil.rmtree(draft, ignore_errors=True)

    def _all(self) -> list[Path]:
        return [draft for draft in sorted(self._folder.glob("draft-*")) if _DRAFT.fullmatch(draft.name)]


@contextmanager
def _locked(folder: Path, *, wait: bool) -> Iterator[bool]:
    """Hold the lock of a draft; yield whether there is one: not if it is in use or removed, or without locks."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except FileNotFoundError:
        yield False
        return
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
            locked = True
        except OSError:  # another process has the lock, or the file system has no locks of folders
            locked = False
        yield locked
    finally:
        os.close(handle)


@dataclass(frozen=True)
class LocalObjects:
    """The files below a local folder, with the methods of `ObjectStore`. A file is complete or does not exist.

    Errors:
        OSError: of all methods; FileNotFoundError: of `get`: there is no such file.
    """

    folder: Path

    def get(self, name: str) -> bytes:
        """Return the contents of a file, up to OBJECT_BYTES."""
        with (self.folder / name).open("rb") as file:
            return file.read(OBJECT_BYTES)

    def put(self, name: str, contents: bytes) -> None:
        """Write a file; replace one of this name."""
        self._written(name, contents).rename(self.folder / name)

    def put_files(self, folder: Path, _names: Iterable[str], to: str) -> None:
        """Move a folder, which has these files, to the name `to`."""
        target = self.folder / to
        target.parent.mkdir(parents=True, exist_ok=True)
        folder.rename(target)  # not flushed to disk: who finds a piece after a power failure compares its digests

    def create(self, name: str, contents: bytes) -> bool:
        """Write a file unless there is one of this name; return whether it was written."""
        draft = self._written(name, contents)
        try:
            sync(draft)
            try:
                os.link(draft, self.folder / name)
            except FileExistsError:
                return False
            except OSError:  # the file system has no links
                if (self.folder / name).exists():
                    return False
                draft.rename(self.folder / name)
            sync(draft.parent)
            sync(self.folder)
        finally:
            draft.unlink(missing_ok=True)
        return True

    def listed(self, folder: str = "", *, hexadecimal: bool = False) -> dict[str, Listed]:
        """Return all files below a folder by their names in it; `hexadecimal`: those that begin with such a digit."""
        found = {}
        root = self.folder / folder
        for where, _, files in os.walk(root):
            for file in files:
                path = Path(where) / file
                name = path.relative_to(root).as_posix()
                if not file.startswith(_NEW) and not (hexadecimal and name[0] not in "0123456789abcdef"):
                    with suppress(FileNotFoundError):  # removed meanwhile
                        stat = path.stat()
                        found[name] = Listed(stat.st_size, datetime.fromtimestamp(stat.st_mtime, timezone.utc))
        return dict(sorted(found.items()))

    def entries(self) -> list[str]:
        """Return the names of the files and folders directly in the folder."""
        return sorted(os.listdir(self.folder)) if self.folder.is_dir() else []

    def delete(self, names: Iterable[str]) -> None:
        """Delete files, and the folders that are empty without them."""
        for name in names:
            path = self.folder / name
            path.unlink(missing_ok=True)
            with suppress(OSError):
                for parent in path.relative_to(self.folder).parents[:-1]:
                    (self.folder / parent).rmdir()

    def _written(self, name: str, contents: bytes) -> Path:
        draft = (self.folder / name).with_name(f"{_NEW}{secrets.token_hex(8)}")
        draft.parent.mkdir(parents=True, exist_ok=True)
        draft.write_bytes(contents)
        return draft


class PieceStore:
    """Pieces by key. It holds no connection: other processes may receive it.

    Args:
        place: a folder, which is created with the first piece, or the objects below a URL.
        shared: exports to other targets may use the pieces at the same time, and there may be other files.

    Attributes:
        local: the folder; None: the pieces are in a bucket.
        remembers_failures: whether exports leave out recordings with a permanent error. Local exports try again.

    Errors:
        StoreError: of all methods: the bucket cannot be used.
    """

    def __init__(self, place: Path | ObjectStore, *, shared: bool = False) -> None:
        self.objects = place if isinstance(place, ObjectStore) else LocalObjects(place)
        self.local = None if isinstance(place, ObjectStore) else place
        self.shared = shared
        self.remembers_failures = self.local is None

    @property
    def folder(self) -> AnyPath:
        """The folder or the URL, for messages."""
        if isinstance(self.objects, LocalObjects):
            return self.objects.folder
        return any_path(self.objects.url, "pieces", storage_options=self.objects.options)

    def find(self, key: str) -> AnyPath | None:
        """Return a complete piece, None if there is none. Files of a bucket are compared when they are downloaded."""
        described = self._described(key)
        return self._whole(key, *described) if described else None

    def failure(self, key: str) -> PieceFailure | None:
        """Return the error that an earlier export recorded, None if there is none."""
        with suppress(FileNotFoundError, ValueError, TypeError, LookupError, RecursionError):
            found = json.loads(self.objects.get(f"{key}/{FAILED}"))
            permanent = found.get("permanent") is not False
            return PieceFailure(str(found["recording"]), str(found["error"]), found["dropped"] is True, permanent)
        return None

    def fail(self, key: str, failure: PieceFailure) -> None:
        """Record the error of a recording for later exports and other shards."""
        self.objects.put(f"{key}/{FAILED}", json.dumps(asdict(failure)).encode())

    def ended(self, keys: Iterable[str]) -> dict[str, KeyState]:
        """Return which keys have a piece or an error; in a bucket from one listing, of keys of others too."""
        if self.local is None:
            return self.states()
        folders = ((key, self.local / key) for key in keys)
        return {key: KeyState((folder / DONE).exists(), (folder / FAILED).exists()) for key, folder in folders}

    def states(self) -> dict[str, KeyState]:
        """Return what there is of each key, from one listing of all files."""
        states: dict[str, KeyState] = {}
        for name, file in self.objects.listed(hexadecimal=True).items():
            key, _, rest = name.partition("/")
            if _KEY.fullmatch(key):
                attempt, slash, _ = rest.partition("/")
                state = states.setdefault(key, KeyState())
                state.done |= rest == DONE
                state.failed |= rest == FAILED
                if slash:
                    size, newest = state.attempts.get(attempt, (0, file.modified))
                    state.attempts[attempt] = (size + file.size, max(newest, file.modified))
        return states

    def attempt_of(self, key: str) -> str:
        """Return the name of the attempt that is the piece, empty if there is none."""
        described = self._described(key)
        return described[0] if described else ""

    def count(self) -> int:
        """Return the number of complete pieces."""
        if self.local is None:
            return sum(state.done for state in self.states().values())
        return sum(bool(_KEY.fullmatch(done.parent.name)) for done in self.local.glob(f"*/{DONE}"))

    def used(self) -> bool:
        """Whether there may be pieces or errors of an earlier export."""
        return any(_KEY.fullmatch(name) for name in self.objects.entries())

    def note(self, name: str, text: str = "") -> None:
        """Write a note for other exports that share the pieces, in place of one of this name."""
        self.objects.put(f"{NOTES}/{name}", text.encode() or b"\n")  # a range of an empty object cannot be read

    def noted(self, name: str) -> str | None:
        """Return the text of a note, None if there is none."""
        with suppress(OSError, ValueError):
            return self.objects.get(f"{NOTES}/{name}").decode().rstrip("\n")
        return None

    def notes(self) -> frozenset[str]:
        """Return the names of all notes."""
        return frozenset(self.objects.listed(f"{NOTES}/", hexadecimal=True))

    @property
    def drafts(self) -> Drafts:
        """The folders on this machine in which pieces are made, each of which is removed unless it was committed."""
        return Drafts(self.local or cache_folder("drafts"))

    def check(self) -> None:
        """Refuse a place in which no piece can be made; OSError of a folder."""
        if isinstance(self.objects, LocalObjects):
            with self.drafts.new():
                pass
        else:
            self.objects.check()

    def commit(self, draft: Path, key: str) -> tuple[AnyPath, bool]:
        """Make a draft the piece of a key, unless another process has made the same piece.

        Returns:
            The piece, and whether it replaces a damaged one.
        """
        attempt = secrets.token_hex(8)
        files = _described(draft)
        done = json.dumps({"key": key, "attempt": attempt, "files": files}).encode()
        where = f"{key}/{attempt}"
        try:
            self.objects.put_files(draft, files, f"{where}/")
            piece, damaged = self._path(where, files), False
            if not self.objects.create(f"{key}/{DONE}", done):
                found = self._other(key, done)
                piece, damaged = found or piece, not found
        except BaseException:
            with suppress(StoreError, OSError):
                self._delete(where, files)
            raise
        if piece.name != attempt:
            self._delete(where, files)
        return piece, damaged

    def tidy(self) -> None:
        """Remove the drafts of stopped processes, and the folder if it contains no piece and is not shared."""
        self.drafts.tidy(every=bool(self.local) and not self.shared)
        if self.local and not self.shared:
            with suppress(OSError):
                self.local.rmdir()

    def _described(self, key: str) -> tuple[str, PieceFiles] | None:
        """Return the attempt that is the piece, and its files; None if there is none, or its list is damaged."""
        with suppress(OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
            found = json.loads(self.objects.get(f"{key}/{DONE}"))
            if found["key"] == key and _ATTEMPT.fullmatch(found["attempt"]):
                files = {str(name): (int(size), str(digest)) for name, (size, digest) in found["files"].items()}
                return found["attempt"], files
        return None

    def _whole(self, key: str, attempt: str, files: PieceFiles) -> AnyPath | None:
        """Return an attempt if its files are there."""
        there = {name: file.size for name, file in self.objects.listed(f"{key}/{attempt}/").items()}
        if there != {name: size for name, (size, _) in files.items()}:
            return None
        if self.local:
            with suppress(OSError):
                found = digests_of(self.local / key / attempt, list(files))
                if all(found[name] == digest for name, (_, digest) in files.items()):
                    return self.local / key / attempt
            return None
        return self._path(f"{key}/{attempt}", files)

    def _other(self, key: str, done: bytes) -> AnyPath | None:
        """Return the piece that another process has made; None if it is damaged and ours takes its place."""
        for _ in range(_TRIES):
            described = self._described(key)
            if described and (found := self._whole(key, *described)):
                return found
            self.objects.delete([f"{key}/{DONE}"])
            if self.objects.create(f"{key}/{DONE}", done):
                if described:
                    self._delete(f"{key}/{described[0]}", described[1])
                return None
        where = printable(self.folder / key, 100)
        raise StoreError(f"{where}: its files vanish; stop the program or the lifecycle rule that deletes them")

    def _delete(self, where: str, files: PieceFiles) -> None:
        self.objects.delete([f"{where}/{name}" for name in files])

    def _path(self, where: str, files: PieceFiles) -> AnyPath:
        if isinstance(self.objects, LocalObjects):
            return self.objects.folder / where
        cache = FileCache(None, default_cache_bytes(), "pieces")
        return _PiecePath(self.objects.below(where), files, cache)


def _described(draft: Path) -> PieceFiles:
    """Return the sizes and SHA-256 of the files of a draft, by name."""
    names = files_of(draft)
    digests = digests_of(draft, names)
    return {name: ((draft / name).stat().st_size, digests[name]) for name in names}


FETCHED = 16  # files at once: each is small, and waits for the network


class _PiecePath(RemotePath):
    """A path in a piece whose files are known: no request is sent before one of them is used."""

    def __init__(self, piece: ObjectStore, files: PieceFiles, cache: FileCache, below: str = "") -> None:
        super().__init__(f"{piece.url}/{below}", piece.options, cache)
        self._piece, self._files, self._below = piece, files, below

    def _at(self, url: str) -> _PiecePath:
        return _PiecePath(self._piece, self._files, self.cache, url.removeprefix(self._piece.url).strip("/"))

    def is_file(self) -> bool:
        return self._below in self._files

    def stat(self) -> SimpleNamespace:
        """Return st_size, and a st_mtime_ns that differs between contents; OSError if the piece has no such file."""
        size, digest = self._described_file()
        return SimpleNamespace(st_size=size, st_mtime_ns=int(digest[:15], 16))

    @property
    def version(self) -> str:
        return hashlib.sha256(f"{self.url}\n{self._described_file()[1]}".encode()).hexdigest()[:32]

    @property
    def size(self) -> int:
        return self._described_file()[0]

    def download(self, local: Path) -> None:
        """Download the file; RemoteError if it is not the one that was uploaded."""
        self._piece.get_file(self._below, local)
        if sha256(local) != self._described_file()[1]:
            self._piece.delete([self._below])  # a piece without all of its files is made again
            raise RemoteError(f"{printable(self.url, 110)}: was damaged and is deleted; run the same command again")

    def remove_copies(self) -> None:
        for name, (size, _) in self._files.items():
            path = self / name
            if file := self.cache.existing(path.version, path.name, size):
                with file:
                    release(file)
                self.cache.remove(path.version, path.name, size)

    def _described_file(self) -> tuple[int, str]:
        try:
            return self._files[self._below]
        except KeyError:
            raise FileNotFoundError(errno.ENOENT, "not there", self.url) from None


def fetch_ahead(paths: Iterable[AnyPath]) -> None:
    """Download the files of pieces in a bucket, many at once, before they are used one after the other."""

    def fetch(path: _PiecePath) -> None:
        path.open().close()

    if remote := _in_buckets(paths):
        with ThreadPoolExecutor(FETCHED, "fetch") as pool:
            for _ in pool.map(fetch, remote):
                pass


def remove_copies(pieces: Iterable[AnyPath]) -> None:
    """Remove the local copies of the files of pieces in a bucket, which no other dataset needs."""
    for piece in _in_buckets(pieces):
        piece.remove_copies()


def _in_buckets(paths: Iterable[AnyPath]) -> list[_PiecePath]:
    distinct: list[object] = list(dict.fromkeys(paths))
    return [path for path in distinct if isinstance(path, _PiecePath)]
