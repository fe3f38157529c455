"""Checksums of the recordings that a dataset is made of, computed while they are read."""

from __future__ import annotations

import hashlib
import os
import stat
import threading
from collections.abc import Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any

from robocache_ros.bags.reader import storage_files
from robocache_ros.errors import RoboCacheError, printable

_BLOCK_BYTES = 1 << 20

Identity = tuple[int, int, int, int]  # device, inode, size, time of the last change in ns


class Checksums:
    """SHA-256 of the storage files of recordings, on a thread of its own; a context manager, whose end stops it.

    Args:
        recordings: folders or files. Their sizes and times are noted now, before anything reads them.

    Errors:
        RoboCacheError: a storage file is not a regular file.
    """

    def __init__(self, recordings: Sequence[Path]) -> None:
        self._files = [storage_files(recording) for recording in recordings]
        self._before = {file: regular_file_identity(file) for files in self._files for file in files}
        self._stopped = threading.Event()
        self._pool = ThreadPoolExecutor(1, "checksums")
        self._digests = {file: self._pool.submit(self._sha256, file) for file in self._before}

    def result(self) -> list[list[dict[str, Any]]]:
        """Name, size and SHA-256 of every file, by recording; waits for them.

        Errors:
            RoboCacheError: a file has changed since the beginning, so that its checksum is not of what was read.
        """
        digests = {file: digest.result() for file, digest in self._digests.items()}
        for file, before in self._before.items():
            if regular_file_identity(file) != before:
                raise RoboCacheError(f"{printable(file)}: changed while it was read; export it once it is complete")
        return [
            [
                {"name": printable(file.name, 255), "size": self._before[file][2], "sha256": digests[file]}
                for file in files
            ]
            for files in self._files
        ]

    def __enter__(self) -> Checksums:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped.set()
        self._pool.shutdown(cancel_futures=True)

    def _sha256(self, file: Path) -> str:
        digest = hashlib.sha256()
        with file.open("rb") as stream:
            while block := stream.read(_BLOCK_BYTES):
                if self._stopped.is_set():
                    raise CancelledError
                digest.update(block)
        return digest.hexdigest()


def regular_file_identity(file: Path) -> Identity:
    """What changes where a file changes; RoboCacheError where it is a pipe or a device, whose reading may never end."""
    found = os.stat(file)
    if not stat.S_ISREG(found.st_mode):
        raise RoboCacheError(f"{printable(file)}: not a regular file; give a rosbag2 folder or its .mcap or .db3 file")
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
