"""Remote files that are downloaded while they are read, and remote files of which only parts are read.

`hold` downloads files into the cache and keeps them there as long as its block runs. Readers need not wait for the
download: `stored` gives them a file whose parts arrive when they are needed, and all others in the background. Without
`hold`, only what is read is fetched.
"""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO, NamedTuple

from robocache_ros.remote.partial_file import PartialFile
from robocache_ros.remote.remote_path import RemotePath


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
def hold(paths: Iterable[Path]) -> Iterator[None]:
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
        self._begun = threading.Event()  # one of the following is known
        self._partial: PartialFile | None = None
        self._file: BinaryIO | None = None
        self._error: BaseException | None = None
        self._given_up = False
        self._thread = threading.Thread(target=self._run, name="download", daemon=True)

    def opened(self) -> LocalFile:
        """Return the file for a reader."""
        self._begun.wait()
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
        self._begun.wait()  # others that open the file now wait for this download
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
            self._begun.set()
            self.ended.set()

    def _download(self, local: Path) -> None:
        """Download the file to a path, from which it can be read at once."""
        partial = PartialFile(os.open(local, os.O_RDWR), self._path.size, self._path.read_range)
        try:
            self._partial = partial
            self._begun.set()
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
