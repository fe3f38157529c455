"""A local file that has some parts of a remote one; the others are fetched when they are needed, or in the background.

A reader asks for a part before it reads it. A part that is being fetched is waited for, so that no byte is fetched
twice.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, ThreadPoolExecutor
from typing import NamedTuple

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
