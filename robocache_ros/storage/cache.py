"""The cache of downloaded files, and its limit."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from robocache_ros.errors import printable
from robocache_ros.storage.errors import RemoteError

VARIABLE = "ROBOCACHE_CACHE_BYTES"  # as a number, or with a unit: 16GB
CACHE_BYTES = 64 << 30
UNITS = {"": 1, "MB": 10**6, "GB": 10**9, "TB": 10**12, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_SIZE = re.compile(rf"(\d{{1,15}}(?:\.\d{{1,6}})?) ?({'|'.join(UNITS)})")
_MAXIMUM = 1 << 62


def default_cache_bytes() -> int:
    """Return the bytes that ROBOCACHE_CACHE_BYTES states, or 64 GiB.

    Errors:
        RemoteError: it is not a size.
    """
    text = os.environ.get(VARIABLE, "")
    return cache_bytes_of(text, VARIABLE) if text else CACHE_BYTES


def cache_bytes_of(text: str, where: str) -> int:
    """Return a number of bytes that is given as text, such as `16GB`; 0: only files in use are kept.

    Args:
        text: a number and a unit.
        where: it is given, for the error.

    Errors:
        RemoteError: it is not a size.
    """
    found = _SIZE.fullmatch(text)
    if not found or (size := int(float(found[1]) * UNITS[found[2]])) > _MAXIMUM:
        raise RemoteError(f"{where}: {printable(text, 40)!r} is not a size; write for example 16GB")
    return size


# Local copies whose names were given to libraries: they are kept until the libraries have opened them.


MAX_RECENT_FILES = 16  # files that are kept
_recent: deque[int] = deque()  # descriptors
_lock = threading.Lock()


def keep_open(file: BinaryIO) -> None:
    """Keep an open file and its lock, in place of the one that was kept for the longest time."""
    with _lock:
        if len(_recent) == MAX_RECENT_FILES:
            os.close(_recent.popleft())
        _recent.append(os.dup(file.fileno()))


def release(file: BinaryIO) -> None:
    """Release a kept file."""
    same = os.fstat(file.fileno())
    with _lock:
        for handle in [each for each in _recent if os.path.samestat(os.fstat(each), same)]:
            _recent.remove(handle)
            os.close(handle)


def release_all() -> None:
    """Release all kept files: no library is about to open one."""
    with _lock:
        while _recent:
            os.close(_recent.popleft())


# A folder of downloaded files with a limit on its size, shared by any number of processes.
#
# A file is downloaded to a temporary name under an exclusive lock, checked, and renamed: a file with its final name
# is complete. A process that reads one holds a shared lock on it. To make space, the files that were used least
# recently are removed, except those that are locked. The locks end with the processes that hold them, however they
# end.


MAX_NAME = 100  # characters kept of a file's name
KEPT_SHARE = 0.9  # of the limit, after files were removed: so that it is not done for each download
DISK_SHARE = 0.9  # of the free disk that files may use
_LOCK = "cache.lock"  # contains the bytes of all files
_PARTIAL = ".partial"
_ENTRY = re.compile(r"[0-9a-f]{32}-.+")


class FileCache:
    """The files in a folder.

    Args:
        folder: created when needed; used only by this cache. None: `kind` in robocache_ros in $XDG_CACHE_HOME or
            ~/.cache, of each process that uses the cache.
        limit: bytes of all files; never more than a share of the free disk. Files in use are kept, also if they exceed
            it.
        kind: of the files.
    """

    def __init__(self, folder: Path | None, limit: int, kind: str = "") -> None:
        self._folder, self.limit, self._kind = folder, limit, kind

    @property
    def folder(self) -> Path:
        """The folder of the files."""
        return self._folder or cache_folder(self._kind)

    def existing(self, key: str, name: str, size: int) -> BinaryIO | None:
        """Return a file, open for reading, if it is in the cache."""
        return self._opened(self.folder / f"{key}-{name[-MAX_NAME:]}", size)

    def open(self, key: str, name: str, size: int, download: Callable[[Path], None]) -> BinaryIO:
        """Return a file, open for reading. It is not removed before it is closed.

        Args:
            key: 32 hexadecimal digits that stand for the file and its version.
            name: of the file, at the end of the local name.
            size: of the file in bytes.
            download: writes the file to a path.

        Errors:
            RemoteError: the file is larger than the limit of a given folder, or the download has another size.
            OSError: the disk is full, or the download fails.
        """
        if size > self.limit and self._folder:  # a default limit is for the files together
            shown = printable(name, 60)
            raise RemoteError(f"{shown}: {size:,} bytes are more than the cache of {self.limit:,}; raise cache_bytes")
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"{key}-{name[-MAX_NAME:]}"
        while True:
            if (file := self._opened(path, size)) is not None:
                return file
            self._download(path, size, download)

    def remove(self, key: str, name: str, size: int) -> None:
        """Remove a file, unless a process has it open."""
        path = self.folder / f"{key}-{name[-MAX_NAME:]}"
        if path.exists():
            with self._locked() as total:
                total.value -= size if _removed(path) else 0

    def _opened(self, path: Path, size: int) -> BinaryIO | None:
        """Return the file with a shared lock; None if it is not there."""
        try:
            file = path.open("rb")
        except FileNotFoundError:
            return None
        fcntl.flock(file, fcntl.LOCK_SH)
        if _is_at(path, file.fileno()):
            if os.fstat(file.fileno()).st_size == size:
                now_ns = time.time_ns()  # the clock of the file system may advance every 4 ms only
                os.utime(file.fileno(), ns=(now_ns, now_ns))
                return file
            path.unlink(missing_ok=True)  # changed by someone else
        file.close()
        return None

    def _download(self, path: Path, size: int, download: Callable[[Path], None]) -> None:
        """Download a file, or wait for the process that does."""
        partial = path.with_name(path.name + _PARTIAL)
        handle = os.open(partial, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            if not self._reserved(partial, handle, size):
                fcntl.flock(handle, fcntl.LOCK_SH)  # until the other process is done, or gone; it may read on then
                return
            if path.exists():  # it was complete in between
                self._drop(partial, size)
                return
            try:
                download(partial)
                if (found := partial.stat().st_size) != size or not _is_at(partial, handle):
                    name = printable(path.name[33:], 60)
                    raise RemoteError(f"{name}: {found:,} bytes came, not {size:,}; try again")
                os.fsync(handle)
                partial.rename(path)
            except BaseException:
                self._drop(partial, size)
                raise
        finally:
            os.close(handle)

    def _reserved(self, partial: Path, handle: int, size: int) -> bool:
        """Make space for a file, and return True; False if another process downloads it, or has done so."""
        with self._locked() as total:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            if not _is_at(partial, handle):  # it was completed, or removed, before it was locked
                return False
            limit = min(self.limit, total.value + int(DISK_SHARE * shutil.disk_usage(self.folder).free))
            if total.value + size > limit:
                total.value = self._make_space(limit, size, partial)
            os.ftruncate(handle, size)  # from now on it counts
            total.value += size
            return True

    def _drop(self, partial: Path, size: int) -> None:
        with self._locked() as total:
            partial.unlink(missing_ok=True)
            total.value -= size

    def _make_space(self, limit: int, size: int, keep: Path) -> int:
        """Remove files until another one of a size fits; return the bytes of the others."""
        found = []
        for entry in os.scandir(self.folder):
            if _ENTRY.fullmatch(entry.name) and entry.name != keep.name:
                with suppress(FileNotFoundError):
                    status = entry.stat()
                    found.append((status.st_mtime_ns, status.st_size, Path(entry.path)))
        total = sum(nbytes for _, nbytes, _ in found)
        goal = min(int(limit * KEPT_SHARE), limit - size)
        for _, nbytes, path in sorted(found):
            if total <= goal:
                break
            total -= nbytes if _removed(path) else 0
        return total

    @contextmanager
    def _locked(self) -> Iterator[_Total]:
        """Lock the cache for all other processes; yield the bytes in it."""
        with (self.folder / _LOCK).open("a+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            text = file.read(32)
            total = _Total(int(text)) if text.isdigit() else _Total(self.limit)  # the files are counted then
            yield total
            file.truncate(0)
            file.write(str(max(0, total.value)).encode())


def cache_folder(kind: str) -> Path:
    """Return the default folder of the cache of a kind of files, in $XDG_CACHE_HOME or ~/.cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "robocache_ros" / kind


class _Total:
    def __init__(self, value: int) -> None:
        self.value = value


def _is_at(path: Path, handle: int) -> bool:
    """Whether an open file is still the one with this name."""
    try:
        return os.path.samestat(path.stat(), os.fstat(handle))
    except FileNotFoundError:
        return False


def _removed(path: Path) -> bool:
    """Remove a file that no process has open; a partial one if no process writes it."""
    with suppress(FileNotFoundError), path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        path.unlink()
    return True
