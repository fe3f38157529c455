"""A file or a folder of a piece in a bucket, with the interface of `Path`. Files are downloaded when they are used."""

from __future__ import annotations

import errno
import hashlib
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatch
from pathlib import Path
from types import SimpleNamespace
from typing import BinaryIO

from robocache_ros.errors import printable
from robocache_ros.export.pieces.store import PieceFiles
from robocache_ros.export.validate.checksum_list import sha256
from robocache_ros.remote.cache_limit import default_cache_bytes
from robocache_ros.remote.file_cache import FileCache
from robocache_ros.remote.object_store import ObjectStore
from robocache_ros.remote.recent_files import let_go
from robocache_ros.remote.remote_error import RemoteError
from robocache_ros.remote.remote_path import RemotePath

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
