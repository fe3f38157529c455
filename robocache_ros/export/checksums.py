"""Checksums of a source recording, computed while the recording is read."""

from __future__ import annotations

import hashlib
import os
import stat
import threading
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, cast

from robocache_ros.bags.reader import storage_files
from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.remote.file_system import refresh
from robocache_ros.remote.held_files import hold, opened, stored
from robocache_ros.remote.remote_path import RemotePath

_BLOCK_BYTES = 1 << 20

Identity = tuple[int, int, int, int]  # device, inode, size, ctime in ns


class Checksums:
    """Computes the SHA-256 of a recording's files on a separate thread. A context manager: exit stops the thread.

    Files at URLs are downloaded meanwhile, and kept until exit: other readers read what has arrived.

    Args:
        recording: a folder or a file. The constructor notes the sizes and times of its files, before any read.

    Attributes:
        unread: what identifies the files without reading them: see `unread_files`.

    Errors:
        RoboCacheError: a storage file is not a regular file.
    """

    def __init__(self, recording: Path) -> None:
        self.unread = unread_files(recording)
        self._before = {file: regular_file_identity(file) for file in storage_files(recording)}
        self._held = ExitStack()
        self._held.enter_context(hold(self._before))
        self._stopped = threading.Event()
        self._pool = ThreadPoolExecutor(1, "checksums")
        self._digests = {file: self._pool.submit(self._sha256, file) for file in self._before}

    def result(self) -> list[dict[str, Any]]:
        """Wait for the checksums; return the name, size and SHA-256 of every file.

        Errors:
            RoboCacheError: a file changed since construction, so its checksum may not match the data that was read.
        """
        try:
            digests = {file: digest.result() for file, digest in self._digests.items()}
            after = {file: regular_file_identity(file) for file in self._before}
        except FileNotFoundError as error:
            gone = printable(error.filename)
            raise RoboCacheError(f"{gone}: vanished while it was read; export it once it is back") from None
        for file, before in self._before.items():
            if after[file] != before:
                raise RoboCacheError(f"{printable(file)}: changed while it was read; export it once it is complete")
        return [
            {"name": printable(file.name, 255), "size": before[2], "sha256": digests[file]}
            for file, before in self._before.items()
        ]

    def __enter__(self) -> Checksums:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped.set()
        self._held.close()
        self._pool.shutdown(cancel_futures=True)

    def _sha256(self, file: Path) -> str:
        digest = hashlib.sha256()
        block = memoryview(bytearray(_BLOCK_BYTES))  # reused: new memory costs half as much as the hash, in page faults
        local = stored(file) if isinstance(file, RemotePath) else opened(file)
        try:
            for at in range(0, local.size, _BLOCK_BYTES):
                if self._stopped.is_set():
                    raise CancelledError
                local.ready(at, at + _BLOCK_BYTES)
                digest.update(block[: os.preadv(local.handle, [block], at)])
        finally:
            local.close()
        if isinstance(file, RemotePath):
            file.require_unchanged()
        return digest.hexdigest()


def regular_file_identity(file: Path) -> Identity:
    """Return an identity that changes with the file; RoboCacheError for a pipe or device: a read may never end."""
    found: Any = file.stat() if isinstance(file, RemotePath) else os.stat(file)
    if not stat.S_ISREG(found.st_mode):
        raise RoboCacheError(f"{printable(file)}: not a regular file; give a rosbag2 folder or its .mcap or .db3 file")
    if isinstance(file, RemotePath):
        return 0, 0, found.st_size, found.st_mtime_ns
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def unread_files(recording: Path) -> list[dict[str, Any]]:
    """Return the path, size and times of every file of a recording, or its URL and version: they change with it.

    They stand for its checksums where reading it again would take long. The times are those of its file system, so
    that all machines that mount it see the same ones.
    """
    files = storage_files(recording)
    if isinstance(recording, RemotePath):
        for file in files:
            refresh(cast(RemotePath, file))
        return [{"path": str(file), "version": file.version} for file in files if isinstance(file, RemotePath)]
    found = [(os.path.realpath(file), os.stat(file)) for file in files]
    return [{"path": p, "size": s.st_size, "mtime_ns": s.st_mtime_ns, "ctime_ns": s.st_ctime_ns} for p, s in found]
