"""Files and folders of other machines, by URLs of fsspec, with the interface of `Path` that readers use."""

from __future__ import annotations

import hashlib
import posixpath
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO

from robocache_ros.errors import printable
from robocache_ros.remote import file_system
from robocache_ros.remote.file_cache import FileCache
from robocache_ros.remote.file_system import answers_ranges, asked, part_of, remember, system_of, told_of, version_of
from robocache_ros.remote.recent_files import keep
from robocache_ros.remote.remote_error import RemoteError


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
        told = self._described()
        return told is not None and told["type"] == "file"

    def is_dir(self) -> bool:
        """Whether this is a folder. Over http a folder is what gives a page of links."""
        told = self._described()
        if told is None:
            return False
        return told["type"] == "directory" or str(told.get("mimetype", "")).startswith("text/html")

    def stat(self) -> SimpleNamespace:
        """Return the size, the kind, and a time that differs between versions; FileNotFoundError if it is not there."""
        told = told_of(self)
        mode = stat.S_IFREG if told["type"] == "file" else stat.S_IFDIR
        time_ns = int(version_of(told)[:15], 16)
        return SimpleNamespace(st_size=int(told["size"] or 0), st_mtime_ns=time_ns, st_mode=mode)

    @property
    def version(self) -> str:
        """What identifies the URL and its contents: 32 hexadecimal digits; FileNotFoundError if it is not there."""
        return hashlib.sha256(f"{self.url}\n{version_of(told_of(self))}".encode()).hexdigest()[:32]

    def iterdir(self) -> Iterator[RemotePath]:
        """Yield the contents of a folder."""
        for name, told in self._listed(lambda system, path: system.ls(path, detail=True)):
            child = self / name.rstrip("/").rpartition("/")[2]
            remember(child, told)
            yield child

    def find(self) -> list[RemotePath]:
        """Return all files below a folder, at any depth, by one listing: a request for 1000 files in S3."""
        _, root = system_of(self)
        start, found = len(root.rstrip("/")) + 1, []
        for name, told in self._listed(lambda system, path: system.find(path, detail=True)):
            if told["type"] == "file" and not name.endswith("/"):  # some tools write empty objects for folders
                found.append(self / name[start:])
                remember(found[-1], told)
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
        size = told_of(self).get("size")
        if not isinstance(size, int):
            raise RemoteError(f"{printable(self.url)}: its size is not stated; copy it to a local folder")
        return size

    def read_range(self, start: int, stop: int) -> bytes:
        """Return the bytes of [start, stop) without downloading others; RemoteError if other bytes come."""
        data: bytes = asked(self, lambda system, name: part_of(system, name, start, stop))
        if len(data) != stop - start:
            raise RemoteError(f"{printable(self.url)}: {len(data):,} bytes came, not {stop - start:,}; try again")
        return data

    def has_ranges(self) -> bool:
        """Whether the server answers requests for parts of the file, as all but some http servers do."""
        told = told_of(self)
        if "ranges" not in told:
            told["ranges"] = asked(self, lambda system, name: answers_ranges(system, name, self.size))
        return bool(told["ranges"])

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
            keep(file)
            return str(file.name)

    def require_unchanged(self) -> None:
        """Refuse a file that has changed since it was first described: RemoteError."""
        before = version_of(told_of(self))
        system, name = system_of(self)
        system.invalidate_cache(name)
        if version_of(asked(self, lambda system, name: system.info(name))) != before:
            file_system.forget(self)
            raise RemoteError(f"{printable(self.url)}: changed while it was downloaded; try again")

    def _described(self) -> dict[str, Any] | None:
        try:
            return told_of(self)
        except FileNotFoundError:
            return None

    def _listed(self, ask: Any) -> list[tuple[str, dict[str, Any]]]:
        try:
            found = asked(self, ask, "list")
        except FileNotFoundError:
            return []
        return [(str(one["name"]), one) for one in (found.values() if isinstance(found, dict) else found)]

    def download(self, local: Path) -> None:
        """Download the file to a local path."""
        asked(self, lambda system, name: system.get_file(name, str(local)))
        self.require_unchanged()
