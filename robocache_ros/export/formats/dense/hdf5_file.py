"""HDF5 files that survive a full disk: h5py cannot close a file whose writes fail, and crashes when Python exits."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from robocache_ros.extras import need

LIBVER = ("earliest", "v110")  # the same bytes with every version of HDF5


@contextmanager
def new_hdf5(path: Path) -> Iterator[tuple[Any, Callable[[], None]]]:
    """Open a new file for writing; yield an `h5py.File`, and a function that raises the first error of the disk.

    The error is raised at the end too. Call the function now and then, to stop soon after the disk is full.

    Errors:
        OSError: the file cannot be written.
    """
    with _KeepsErrors(path) as disk:
        with need("h5py", "hdf5").File(disk, "w", libver=LIBVER) as file:
            yield file, disk.check
        disk.check()


class _KeepsErrors(io.FileIO):
    """A file that keeps the first error of a write, and ignores what is written afterwards."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, "w+")
        self._error: OSError | None = None

    def check(self) -> None:
        """Raise the error, if there is one."""
        if self._error:
            raise self._error

    def write(self, data: Any) -> int:
        rest = memoryview(data).cast("B")
        with self._kept():
            while len(rest):
                rest = rest[super().write(rest) :]
        return memoryview(data).nbytes

    def truncate(self, size: int | None = None) -> int:
        with self._kept():
            super().truncate(size)
        return self.tell() if size is None else size

    @contextmanager
    def _kept(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self._error = self._error or OSError(error.errno, error.strerror, str(self.name))
