"""A local file that has some parts of a remote one; the others are fetched when they are needed, or in the background.

A reader asks for a part before it reads it. A part that is being fetched is waited for, so that no byte is fetched
twice.
"""

from __future__ import annotations

import os
import stat
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO, NamedTuple

from robocache_ros.buffer_pool import buffer_for, host_pool
from robocache_ros.errors import RoboCacheError
from robocache_ros.storage.errors import NotReadError, RemoteError
from robocache_ros.storage.paths import AnyPath, RemotePath

BLOCK_BYTES = 64 << 10  # the unit of requests
REQUEST_BYTES = 8 << 20  # at most, of one request
THREADS = 4  # requests at once in the background
_MISSING, _COMING, _HERE = b"\0", b"\1", b"\2"


class PartialFile:
    """A file of which parts are fetched.

    Args:
        handle: of the local file; it is closed with this object.
        size: of the remote file in bytes.
        fetch: returns the bytes of [start, stop). Called by several threads.
    """

    def __init__(self, handle: int, size: int, fetch: Callable[[int, int], bytes]) -> None:
        self.handle, self.size, self._fetch = handle, size, fetch
        self._blocks = bytearray(-(-size // BLOCK_BYTES))
        self._changed = threading.Condition()
        self._error: BaseException | None = None
        self._complete = not size

    def ready(self, start: int, stop: int) -> None:
        """Return when the bytes of [start, stop) are in the local file, as far as the file has them.

        Errors:
            RemoteError, OSError: they cannot be fetched; also if the background failed to fetch any others.
            CancelledError: the file was given up.
        """
        first, last = max(start, 0) // BLOCK_BYTES, -(-min(stop, self.size) // BLOCK_BYTES)
        while not self._complete and first < last and self._step(first, last):
            pass

    def fill(self) -> None:
        """Fetch everything, from the front, several parts at once. Errors: as of `ready`."""

        def fetch_all() -> None:
            try:
                while self._step(0, len(self._blocks), wait=False):
                    pass
            except BaseException as error:
                self.fail(error)  # so that the others stop too

        with ThreadPoolExecutor(THREADS, "download") as pool:
            for _ in range(THREADS):
                pool.submit(fetch_all)
        self.ready(0, self.size)  # what readers fetch, and the error
        self._complete = True

    def fail(self, error: BaseException) -> None:
        """Fetch nothing more; readers get the error."""
        with self._changed:
            self._error = self._error or error
            self._changed.notify_all()

    def cancel(self) -> None:
        """Fetch nothing more."""
        self.fail(CancelledError())

    def close(self) -> None:
        """Close the local file."""
        os.close(self.handle)

    def _step(self, first: int, last: int, *, wait: bool = True) -> bool:
        """Fetch one missing part of some blocks, or wait for one that others fetch; false if there is nothing to do."""
        with self._changed:
            if self._error:
                raise self._error
            run = self._missing(first, last)
            if run is None:
                if not wait or self._blocks.count(_HERE, first, last) == last - first:
                    return False
                self._changed.wait()
                return True
            self._mark(run, _COMING)
        start, stop = run.first * BLOCK_BYTES, min(run.last * BLOCK_BYTES, self.size)
        try:
            data = memoryview(self._fetch(start, stop))
            while data:
                written = os.pwrite(self.handle, data, start)
                data, start = data[written:], start + written
        except BaseException:
            with self._changed:
                self._mark(run, _MISSING)
            raise
        with self._changed:
            self._mark(run, _HERE)
        return True

    def _missing(self, first: int, last: int) -> _Run | None:
        """Return the first blocks that nobody fetches yet; at most those of one request."""
        begin = self._blocks.find(_MISSING, first, last)
        if begin < 0:
            return None
        end = begin
        while end < min(last, begin + REQUEST_BYTES // BLOCK_BYTES) and self._blocks[end] == _MISSING[0]:
            end += 1
        return _Run(begin, end)

    def _mark(self, run: _Run, state: bytes) -> None:
        self._blocks[run.first : run.last] = state * (run.last - run.first)
        self._changed.notify_all()


class _Run(NamedTuple):
    """Consecutive blocks."""

    first: int
    last: int


# Remote files that are downloaded while they are read, and remote files of which only parts are read.
#
# `hold` downloads files into the cache and keeps them there as long as its block runs. Readers need not wait for the
# download: `stored` gives them a file whose parts arrive when they are needed, and all others in the background.
# Without `hold`, only what is read is fetched.


_WINDOW = 1 << 20
_POOLED = range(64 << 10, 8 << 20)  # sizes of reads into reused memory
_POOL_BLOCKS = 64  # an export has a second of images in use: as long as a late message may change a tick


class LocalFile(NamedTuple):
    """A local file that has the bytes of a file, or is about to have them.

    Attributes:
        handle: opened for reading; the caller closes it.
        size: of the complete file in bytes.
        ready: returns when the bytes of [start, stop) are there.
        close: closes the file.
        sparse: only what is read is fetched.
    """

    handle: int
    size: int
    ready: Callable[[int, int], None]
    close: Callable[[], None]
    sparse: bool = False


def opened(path: Path) -> LocalFile:
    """Open a local file."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # otherwise a pipe waits for its writer
    return LocalFile(handle, os.fstat(handle).st_size, lambda _start, _stop: None, lambda: os.close(handle))


@contextmanager
def hold(paths: Iterable[AnyPath]) -> Iterator[None]:
    """Download the remote ones of some files, in their order, and keep them as long as the block runs."""
    with ExitStack() as stack:
        before: threading.Event | None = None
        for path in paths:
            if isinstance(path, RemotePath) and _key(path) not in _held:
                holding = stack.enter_context(_Holding(path, before))
                before = holding.ended
        yield


def stored(path: RemotePath) -> LocalFile:
    """Return a local file for a remote one.

    It is the held one, or the one in the cache; otherwise a file to which only the parts that are read are downloaded.

    Errors:
        OSError: there is no such file.
        RemoteError: it cannot be reached, or has changed.
    """
    if holding := _held.get(_key(path)):
        return holding.opened()
    if (file := path.cache.existing(path.version, path.name, path.size)) is not None:
        return _complete(file, path.size)
    if not path.has_ranges():
        return _complete(path.open(), path.size)
    with tempfile.TemporaryFile(prefix="robocache-") as sparse:
        partial = PartialFile(os.dup(sparse.fileno()), path.size, path.read_range)
    return LocalFile(partial.handle, partial.size, partial.ready, partial.close, sparse=True)


class _Holding:
    """A file that is downloaded and kept, in a thread of its own; a context manager."""

    def __init__(self, path: RemotePath, after: threading.Event | None) -> None:
        self.ended = threading.Event()  # downloaded, or failed
        self._path, self._after = path, after
        self._started = threading.Event()  # one of the following is known
        self._partial: PartialFile | None = None
        self._file: BinaryIO | None = None
        self._error: BaseException | None = None
        self._given_up = False
        self._thread = threading.Thread(target=self._run, name="download", daemon=True)

    def opened(self) -> LocalFile:
        self._started.wait()
        if self._error:
            raise self._error
        if self._file is not None:
            return _complete(os.fdopen(os.dup(self._file.fileno()), "rb"), self._path.size)
        assert self._partial
        handle = os.dup(self._partial.handle)
        return LocalFile(handle, self._path.size, self._partial.ready, lambda: os.close(handle))

    def __enter__(self) -> _Holding:
        _held[_key(self._path)] = self
        self._thread.start()
        self._started.wait()  # others that open the file now wait for this download
        return self

    def __exit__(self, *_: object) -> None:
        _held.pop(_key(self._path), None)
        self._given_up = True
        if self._partial:
            self._partial.cancel()
        if self._after:
            self._after.set()
        self._thread.join()
        if self._partial:
            self._partial.close()
        if self._file is not None:
            self._file.close()

    def _run(self) -> None:
        path = self._path
        try:
            download = self._download if path.has_ranges() else path.download
            self._file = path.cache.open(path.version, path.name, path.size, download)
        except BaseException as error:  # raised again in the threads that read
            self._error = error
        finally:
            self._started.set()
            self.ended.set()

    def _download(self, local: Path) -> None:
        """Download the file to a path, from which it can be read at once."""
        partial = PartialFile(os.open(local, os.O_RDWR), self._path.size, self._path.read_range)
        try:
            self._partial = partial
            self._started.set()
            if self._after:  # others are read first
                self._after.wait()
            if self._given_up:
                partial.cancel()
            partial.fill()
            self._path.require_unchanged()
        except BaseException as error:
            partial.fail(error)
            raise


_held: dict[tuple[str, str], _Holding] = {}  # by the folder of the cache and the version


def _key(path: RemotePath) -> tuple[str, str]:
    return str(path.cache.folder), path.version


def _complete(file: BinaryIO, size: int) -> LocalFile:
    return LocalFile(file.fileno(), size, lambda _start, _stop: None, file.close)


class StoredFile:
    """A regular file with reads at positions. A file that is truncated meanwhile returns fewer bytes.

    Args:
        path: the file. Of a remote one, only what is read is downloaded, unless `robocache_ros.storage` holds it.
        window: number of bytes read at once for small reads.

    Errors:
        RoboCacheError: not a regular file, or not readable.
    """

    def __init__(self, path: AnyPath, window: int = _WINDOW) -> None:
        self._path, self._window_bytes = path, window
        try:
            self._file = stored(path) if isinstance(path, RemotePath) else _local(path)
        except OSError as error:
            raise RoboCacheError(f"{path}: cannot be opened: {error.strerror}") from None
        self._fd, self.size = self._file.handle, self._file.size
        if self._file.sparse:
            self._window_bytes = min(window, BLOCK_BYTES)
        self._window, self._window_at = b"", 0
        self._pool = host_pool(_POOL_BLOCKS)

    @contextmanager
    def closed_on_error(self) -> Iterator[None]:
        """Close the file if the block fails; the path is put before a RoboCacheError."""
        try:
            yield
        except BaseException as error:
            self.close()
            if isinstance(error, RoboCacheError):
                raise RoboCacheError(f"{self._path}: {error}") from None
            raise

    def read(self, start: int, stop: int) -> bytes:
        """Return the bytes of [start, stop), or fewer at the end of the file; OSError if the disk fails."""
        if stop - start >= self._window_bytes // 4:
            return self._all(start, min(stop, self.size) - start)
        at = start - self._window_at
        if at < 0 or at + stop - start > len(self._window):
            self._ready(start, start + self._window_bytes)
            self._window, self._window_at, at = os.pread(self._fd, self._window_bytes, start), start, 0
        return self._window[at : at + stop - start]

    def exact(self, start: int, stop: int) -> bytes:
        """Return the same as `read`, without the data after it, which is read for the next small reads otherwise."""
        return self._all(start, min(stop, self.size) - start)

    def block(self, start: int, stop: int) -> bytes | memoryview:
        """Return the same as `read`, for large data; its memory is reused when nothing refers to it.

        The page faults of new memory cost more than copying the data into it.
        """
        size = min(stop, self.size) - start
        if size not in _POOLED:
            return self.read(start, stop)
        self._ready(start, start + size)
        memory = self._pool.acquire(buffer_for(size)).data[:size]
        count = os.preadv(self._fd, [memory], start)
        return memory[:count].toreadonly()

    def _ready(self, start: int, stop: int) -> None:
        try:
            self._file.ready(start, stop)
        except RemoteError as error:
            raise NotReadError(error) from error

    def fetch_all(self) -> None:
        """Download all of a remote file that is not held, with few requests."""
        if self._file.sparse:
            self._ready(0, self.size)

    def _all(self, start: int, size: int) -> bytes:
        self._ready(start, start + size)
        data = os.pread(self._fd, max(size, 0), start)
        while len(data) < size and (more := os.pread(self._fd, size - len(data), start + len(data))):
            data += more  # Linux reads at most 2 GiB per call
        return data

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _local(path: Path) -> LocalFile:
    file = opened(path)
    if not stat.S_ISREG(os.fstat(file.handle).st_mode):
        file.close()
        raise RoboCacheError(f"{path}: not a regular file; give a recording")
    return file
