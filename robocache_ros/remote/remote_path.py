"""Files and folders of other machines, by URLs of fsspec, with the interface of `Path` that readers use."""

from __future__ import annotations

import errno
import hashlib
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO

from robocache_ros.errors import printable
from robocache_ros.extras import need
from robocache_ros.remote.file_cache import FileCache
from robocache_ros.remote.remote_error import RemoteError

RECENT = 16  # files that are kept after they were given to a library by name, until it has opened them
MAX_KNOWN = 1 << 16  # descriptions of files that are kept in each process
# What file systems state of the version of a file.
_VERSION = (
    *("ETag", "etag", "md5Hash", "content_md5", "Content-MD5", "generation"),
    *("mtime", "LastModified", "last_modified", "updated", "created"),
)
_recent: deque[int] = deque()  # descriptors


class RemotePath:
    """A file or a folder. Where its local name is needed, or it is opened, it is downloaded into the cache.

    A process asks for the description of a file once: a file that changes meanwhile is noticed when it is downloaded.

    Args:
        url: such as `s3://bucket/rtx`.
        options: of the file system of fsspec, such as credentials.
        cache: of the files.
    """

    def __init__(self, url: str, options: Mapping[str, Any], cache: FileCache) -> None:
        self.url, self.options, self.cache = url.rstrip("/"), dict(options), cache

    def __truediv__(self, name: str) -> RemotePath:
        return RemotePath(f"{self.url}/{name}", self.options, self.cache)

    def __str__(self) -> str:
        return self.url

    def __repr__(self) -> str:
        return f"RemotePath({self.url!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RemotePath) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def __lt__(self, other: RemotePath) -> bool:
        return self.url < other.url

    @property
    def _key(self) -> tuple[str, str, str]:
        return self.url, repr(sorted(self.options.items())), str(self.cache.folder)

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.url.rpartition("/")[2]

    @property
    def stem(self) -> str:
        """The name without its suffix."""
        return Path(self.name).stem

    @property
    def parent(self) -> RemotePath:
        """The folder."""
        return RemotePath(self.url.rpartition("/")[0], self.options, self.cache)

    @property
    def cache_folder(self) -> Path:
        """The local folder of the cache."""
        return self.cache.folder

    def check(self) -> None:
        """Refuse a URL whose file system is not known or not installed.

        Errors:
            RoboCacheError: it is not.
        """
        _system(self, os.getpid())

    def exists(self) -> bool:
        """Whether there is a file or a folder.

        Errors:
            RemoteError: it cannot be reached; also of the following methods, up to `open`.
        """
        return self._described() is not None

    def is_file(self) -> bool:
        """Whether this is a file."""
        return self.exists() and not self.is_dir()

    def is_dir(self) -> bool:
        """Whether this is a folder. Over http a folder is what gives a page of links."""
        told = self._described()
        if told is None:
            return False
        return told["type"] == "directory" or str(told.get("mimetype", "")).startswith("text/html")

    def stat(self) -> SimpleNamespace:
        """Return st_size, and a st_mtime_ns that differs between versions of the file; OSError if it is not there."""
        told = _info(self, os.getpid())
        return SimpleNamespace(st_size=int(told["size"] or 0), st_mtime_ns=int(_version(told)[:15], 16))

    def iterdir(self) -> Iterator[RemotePath]:
        """Yield the contents of a folder."""
        system, path = _system(self, os.getpid())
        names = self._listed(lambda: system.ls(path, detail=False))
        yield from (self / str(name).rstrip("/").rpartition("/")[2] for name in names)

    def glob(self, pattern: str) -> Iterator[RemotePath]:
        """Yield the files below that match a pattern."""
        system, path = _system(self, os.getpid())
        for name in self._listed(lambda: system.glob(f"{path.rstrip('/')}/{pattern}")):
            yield self / str(name)[len(path.rstrip("/")) + 1 :]

    def rglob(self, pattern: str) -> Iterator[RemotePath]:
        """Yield the files at any depth that match a pattern."""
        yield from self.glob(f"**/{pattern}")

    def open(self, mode: str = "rb") -> BinaryIO:
        """Open the local copy, which stays in the cache until the file is closed.

        Errors:
            OSError: there is no such file, it cannot be reached, or the disk is full.
            RemoteError: it is larger than the cache, or has changed.
        """
        assert mode == "rb"
        told = _info(self, os.getpid())
        if not isinstance(told.get("size"), int):
            raise RemoteError(f"{printable(self.url)}: its size is not stated; copy it to a local folder")
        version = hashlib.sha256(f"{self.url}\n{_version(told)}".encode()).hexdigest()[:32]
        return self.cache.open(version, self.name, told["size"], lambda local: self._download(told, local))

    def read_bytes(self) -> bytes:
        """Return the contents."""
        with self.open() as file:
            return file.read()

    def read_text(self, encoding: str = "utf-8") -> str:
        """Return the contents as text."""
        return self.read_bytes().decode(encoding)

    def __fspath__(self) -> str:
        """Return the name of the local copy. It stays in the cache until some others were used, or see `keep_for`."""
        with self.open() as file:
            if len(_recent) == RECENT:
                os.close(_recent.popleft())
            _recent.append(os.dup(file.fileno()))  # which keeps the lock
            return str(file.name)

    def _described(self) -> dict[str, Any] | None:
        try:
            return _info(self, os.getpid())
        except FileNotFoundError:
            return None
        except OSError as error:
            raise RemoteError(f"{printable(self.url, 80)}: {error.strerror}; check the URL and the network") from error

    def _listed(self, ask: Callable[[], Any]) -> list[Any]:
        try:
            return list(_reached(self, ask))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise RemoteError(f"{printable(self.url, 80)}: {error.strerror}; check the URL and the network") from error

    def _download(self, told: Mapping[str, Any], local: Path) -> None:
        system, path = _system(self, os.getpid())
        _reached(self, lambda: system.get_file(path, str(local)))
        system.invalidate_cache()
        if _version(_reached(self, lambda: system.info(path))) != _version(told):
            raise RemoteError(f"{printable(self.url)}: changed while it was downloaded; try again")


def _system(path: RemotePath, process: int) -> tuple[Any, str]:
    """Return the file system of a path, and its name in it."""
    core = need("fsspec.core", "remote")
    try:
        found: tuple[Any, str] = core.url_to_fs(path.url, **path.options)
    except (ImportError, ValueError, TypeError) as error:
        raise RemoteError(f"{printable(path.url, 60)}: {printable(error, 100)}; install what it needs") from None
    return found


@lru_cache(maxsize=MAX_KNOWN)
def _info(path: RemotePath, process: int) -> dict[str, Any]:
    system, name = _system(path, process)
    return dict(_reached(path, lambda: system.info(name)))


def _version(told: Mapping[str, Any]) -> str:
    """Return what identifies the contents of a file: its size, and its checksum or time as far as they are known."""
    known = [f"{key}={told[key]}" for key in _VERSION if told.get(key) is not None]
    return hashlib.sha256(f"{told.get('size')} {known}".encode()).hexdigest()


def _reached(path: RemotePath, ask: Callable[[], Any]) -> Any:
    """Return an answer of a file system. Its errors are of any type; here each is an OSError."""
    try:
        return ask()
    except FileNotFoundError:
        raise FileNotFoundError(errno.ENOENT, "not there", path.url) from None
    except Exception as error:
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            raise
        reason = printable(error, 60) or type(error).__name__
        raise OSError(errno.EIO, f"cannot be read: {reason}", path.url) from error
