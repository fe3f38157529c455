"""Paths of local files and of files at URLs."""

from __future__ import annotations

import hashlib
import os
import posixpath
import stat
import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO, TypeAlias

from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.storage import object_store
from robocache_ros.storage.cache import FileCache, default_cache_bytes, keep_open
from robocache_ros.storage.errors import RemoteError
from robocache_ros.storage.object_store import (
    answers_ranges,
    call_with_retries,
    file_info,
    part_of,
    remember,
    system_of,
    version_of,
)


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

    def __truediv__(self, name: str | Path) -> RemotePath:
        return self._at(f"{self.url}/{name}")

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

    def _at(self, url: str) -> RemotePath:
        return RemotePath(url, self.options, self.cache)

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.url.rpartition("/")[2]

    @property
    def stem(self) -> str:
        """The name without its suffix."""
        return Path(self.name).stem

    @property
    def suffix(self) -> str:
        """The end of the name from its last dot; empty if it has none."""
        return Path(self.name).suffix

    @property
    def parent(self) -> RemotePath:
        """The folder."""
        return self._at(self.url.rpartition("/")[0])

    @property
    def parts(self) -> tuple[str, ...]:
        """The protocol and the names of the folders and of the file."""
        return tuple(self.url.split("/"))

    def with_name(self, name: str) -> RemotePath:
        """Return the path with another name."""
        return self.parent / name

    def with_suffix(self, suffix: str) -> RemotePath:
        """Return the path with another suffix."""
        return self.with_name(self.stem + suffix)

    def relative(self, path: str) -> RemotePath:
        """Return the path that another one names from this folder; `..` is the folder above."""
        protocol, mark, rest = self.url.partition("://")
        return self._at(f"{protocol}{mark}{posixpath.normpath(posixpath.join(rest, path))}")

    def absolute(self) -> RemotePath:
        """Return the path."""
        return self

    def check(self) -> None:
        """Refuse a URL whose file system is not known or not installed: RoboCacheError."""
        system_of(self)

    def exists(self) -> bool:
        """Whether there is a file or a folder.

        Errors:
            RemoteError: it cannot be reached, or may not be read; also of the following methods.
        """
        return self._described() is not None

    def is_file(self) -> bool:
        """Whether this is a file."""
        info = self._described()
        return info is not None and info["type"] == "file"

    def is_dir(self) -> bool:
        """Whether this is a folder. Over http a folder is what gives a page of links."""
        info = self._described()
        if info is None:
            return False
        return info["type"] == "directory" or str(info.get("mimetype", "")).startswith("text/html")

    def stat(self) -> SimpleNamespace:
        """Return the size, the kind, and a time that differs between versions; FileNotFoundError if it is not there."""
        info = file_info(self)
        mode = stat.S_IFREG if info["type"] == "file" else stat.S_IFDIR
        time_ns = int(version_of(info)[:15], 16)
        return SimpleNamespace(st_size=int(info["size"] or 0), st_mtime_ns=time_ns, st_mode=mode)

    @property
    def version(self) -> str:
        """What identifies the URL and its contents: 32 hexadecimal digits; FileNotFoundError if it is not there."""
        return hashlib.sha256(f"{self.url}\n{version_of(file_info(self))}".encode()).hexdigest()[:32]

    def iterdir(self) -> Iterator[RemotePath]:
        """Yield the contents of a folder."""
        for name, info in self._listed(lambda system, path: system.ls(path, detail=True)):
            child = self / name.rstrip("/").rpartition("/")[2]
            remember(child, info)
            yield child

    def find(self) -> list[RemotePath]:
        """Return all files below a folder, at any depth, by one listing: a request for 1000 files in S3."""
        _, root = system_of(self)
        start, found = len(root.rstrip("/")) + 1, []
        for name, info in self._listed(lambda system, path: system.find(path, detail=True)):
            if info["type"] == "file" and not name.endswith("/"):  # some tools write empty objects for folders
                found.append(self / name[start:])
                remember(found[-1], info)
        for folder in {file.parent for file in found}:
            remember(folder, {"type": "directory", "size": 0})
        return found

    def glob(self, pattern: str) -> Iterator[RemotePath]:
        """Yield the files below that match a pattern."""
        _, root = system_of(self)
        start = len(root.rstrip("/")) + 1
        for name, _ in self._listed(lambda system, path: system.glob(f"{path.rstrip('/')}/{pattern}", detail=True)):
            yield self / name[start:]

    def rglob(self, pattern: str) -> Iterator[RemotePath]:
        """Yield the files at any depth that match a pattern."""
        yield from self.glob(f"**/{pattern}")

    def open(self, mode: str = "rb") -> BinaryIO:
        """Open the local copy, which stays in the cache until the file is closed.

        Errors:
            OSError: there is no such file, or the disk is full.
            RemoteError: it cannot be reached, is larger than the cache, or has changed.
        """
        assert mode == "rb"
        return self.cache.open(self.version, self.name, self.size, self.download)

    @property
    def size(self) -> int:
        """The number of bytes of a file; RemoteError if the server does not state it."""
        size = file_info(self).get("size")
        if not isinstance(size, int):
            raise RemoteError(f"{printable(self.url)}: its size is not stated; copy it to a local folder")
        return size

    def read_range(self, start: int, stop: int) -> bytes:
        """Return the bytes of [start, stop) without downloading others; RemoteError if other bytes come."""
        data: bytes = call_with_retries(self, lambda system, name: part_of(system, name, start, stop))
        if len(data) != stop - start:
            raise RemoteError(f"{printable(self.url)}: {len(data):,} bytes came, not {stop - start:,}; try again")
        return data

    def has_ranges(self) -> bool:
        """Whether the server answers requests for parts of the file, as all but some http servers do."""
        info = file_info(self)
        if "ranges" not in info:
            info["ranges"] = call_with_retries(self, lambda system, name: answers_ranges(system, name, self.size))
        return bool(info["ranges"])

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
            keep_open(file)
            return str(file.name)

    def require_unchanged(self) -> None:
        """Refuse a file that has changed since it was first described: RemoteError."""
        before = version_of(file_info(self))
        system, name = system_of(self)
        system.invalidate_cache(name)
        if version_of(call_with_retries(self, lambda system, name: system.info(name))) != before:
            object_store.forget(self)
            raise RemoteError(f"{printable(self.url)}: changed while it was downloaded; try again")

    def _described(self) -> dict[str, Any] | None:
        try:
            return file_info(self)
        except FileNotFoundError:
            return None

    def _listed(self, request: Any) -> list[tuple[str, dict[str, Any]]]:
        try:
            found = call_with_retries(self, request, "list")
        except FileNotFoundError:
            return []
        return [(str(one["name"]), one) for one in (found.values() if isinstance(found, dict) else found)]

    def download(self, local: Path) -> None:
        """Download the file to a local path."""
        call_with_retries(self, lambda system, name: system.get_file(name, str(local)))
        self.require_unchanged()


MAX_PATH, MAX_NAME = 4096, 255  # bytes of a path with its NUL, and of a part of it, as Linux has them


AnyPath: TypeAlias = Path | RemotePath


def is_url(path: object) -> bool:
    """Whether a path is a URL, such as `s3://bucket/a.mcap`."""
    return isinstance(path, RemotePath) or (isinstance(path, str) and "://" in path)


def any_path(
    path: str | AnyPath,
    kind: str,
    *,
    cache_dir: str | Path | None = None,
    cache_bytes: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> AnyPath:
    """Return a local path as it is, and for a URL a path whose files are downloaded when they are used.

    Args:
        path: a path, or a URL of a file system of fsspec, such as s3://, gs://, https:// or memory://.
        kind: of the files, such as `datasets`: the name of the folder of their cache.
        cache_dir: folder of the downloaded files; None: robocache_ros/<kind> in $XDG_CACHE_HOME or ~/.cache. Any
            number of processes may share it.
        cache_bytes: limit of its size; None: that of ROBOCACHE_CACHE_BYTES, or 64 GiB. Files that are open are kept,
            also if they exceed it.
        storage_options: of the file system.

    Errors:
        RoboCacheError: fsspec, or what it needs for this kind of URL, is not installed, or the limit is wrong.
    """
    if not isinstance(path, str) or not is_url(path):
        return as_path(path)
    limit = default_cache_bytes() if cache_bytes is None else cache_bytes
    if not 0 <= limit < 1 << 63:
        raise RemoteError(f"cache_bytes: {limit!r} is not a number of bytes; give one")
    cache = FileCache(Path(cache_dir) if cache_dir else None, int(limit), kind)
    remote = RemotePath(path, storage_options or {}, cache)
    remote.check()
    return as_path(remote)


def as_path(path: str | AnyPath) -> AnyPath:
    """Return a path of a str; others, such as a `RemotePath`, which has the interface of Path, as they are.

    Errors:
        RoboCacheError: it is too long for a path, or has a NUL.
    """
    text = str(path)
    if len(text) >= MAX_PATH or not (isinstance(path, RemotePath) or may_be_path(text)):
        raise RoboCacheError(f"{printable(text, 40)}: {len(text):,} characters, not a path; give a file or a folder")
    return Path(path) if isinstance(path, str) else path


def may_be_path(text: str) -> bool:
    """Whether a text may be a local path: systems refuse longer ones, and those with a NUL, in many ways."""
    try:
        data = os.fsencode(text)
    except UnicodeEncodeError:  # half of a character
        return False
    return len(data) < MAX_PATH and b"\0" not in data and all(len(part) <= MAX_NAME for part in data.split(b"/"))


def keep_for(path: AnyPath, holder: Any) -> None:
    """Keep the local copy of a path in the cache as long as an object exists, such as a library's open file."""
    if isinstance(path, RemotePath):
        weakref.finalize(holder, path.open().close)
