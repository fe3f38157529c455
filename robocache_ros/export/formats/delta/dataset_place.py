"""Where the tables of a dataset are: in a folder, or below a URL."""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.export.formats.delta.new_episodes import APPENDS, EPISODES, TICKS
from robocache_ros.export.publish import LISTING, LOCK, sync, sync_files
from robocache_ros.remote.any_path import is_url
from robocache_ros.remote.object_store import ObjectStore

WAIT_S = 10.0  # for the lock of a folder, which an append that ends takes for a moment
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")  # as botocore reads them


class DatasetPlace:
    """A dataset of Delta Lake tables, which several processes may append to at the same time.

    Args:
        out: a local folder or a URL, such as s3://bucket/lift.
    """

    def __init__(self, out: str | Path) -> None:
        self.out = str(out)
        self._store = ObjectStore(self.out) if is_url(self.out) else None

    @property
    def storage(self) -> dict[str, str]:
        """Options of deltalake; credentials are those of the environment.

        A commit is put if absent (If-None-Match), so that no other is replaced.
        """
        if not self.out.startswith(("s3://", "s3a://")):
            return {}
        endpoint = next((os.environ[name] for name in _ENDPOINTS if os.environ.get(name)), "")
        options = {"aws_conditional_put": "etag"}
        if endpoint:
            options |= {"aws_endpoint_url": endpoint, "aws_allow_http": str(endpoint.startswith("http://")).lower()}
        return options

    def check(self) -> None:
        """Refuse a bucket that does not put if absent, in which commits of others would be lost."""
        if self._store is not None:
            self._store.check()

    def uri(self, table: str) -> str:
        """Return the URI of a table for deltalake."""
        return f"{self.out}/{table}"

    def created(self, table: str) -> str:
        """Return the URI of a table, after creating its folder."""
        if self._store is None:
            (Path(self.out) / table).mkdir(parents=True, exist_ok=True)
        return self.uri(table)

    def put(self, folder: Path, names: Sequence[str], to: str = "") -> None:
        """Put files of a local folder, which may be moved, at their names below `to`.

        Files of one name have equal contents.
        """
        if self._store is not None:
            self._store.put_files(folder, names, to)
            return
        sync_files(folder / name for name in names)
        folders = {}
        for name in names:
            target = Path(self.out) / to / name
            target.parent.mkdir(parents=True, exist_ok=True)
            os.replace(folder / name, target)
            folders.update(dict.fromkeys((target.parent, *target.parent.parents)))
        for each in folders:
            if each.is_relative_to(self.out):
                sync(each)

    def list_entries(self) -> None:
        """List what a dataset consists of, so that an export may replace it, if nothing lists it."""
        path, listing = Path(self.out) / LISTING, json.dumps([APPENDS, EPISODES, TICKS])
        if self._store is not None:
            self._store.create(LISTING, listing.encode())
        elif not path.exists():
            draft = path.with_name(f"{LISTING}-{os.getpid()}")
            draft.write_text(listing, encoding="utf-8")
            draft.replace(path)

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Keep an export that replaces the dataset in the folder away; other appends may run.

        Errors:
            RoboCacheError: such an export runs.
        """
        if self._store is not None:
            yield
            return
        path = Path(self.out) / LOCK
        handle = _locked(path)
        try:
            yield
        finally:
            with suppress(OSError):  # another append, which will remove the file, or a file system without locks
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()
            os.close(handle)


def _locked(path: Path) -> int:
    """Return the handle of a lock that others share."""
    until = time.monotonic() + WAIT_S
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(handle), os.stat(path)):
                    return handle
        except BlockingIOError:
            if time.monotonic() > until:
                os.close(handle)
                raise RoboCacheError(
                    f"{printable(path.parent)}: another export is writing to it; wait for it, then run this again"
                ) from None
            time.sleep(0.01)
        except OSError:  # a file system without locks
            return handle
        os.close(handle)
