"""Files and objects of a store, through fsspec: listed, read, and put under conditions."""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Protocol, TypeVar

from robocache_ros.errors import printable
from robocache_ros.extras import need
from robocache_ros.storage.errors import RemoteError, StoreError, StoreProblem, retried

MAX_KNOWN = 1 << 17  # descriptions of files that are kept in each process
FRESH_S = 60.0  # how long a description is recent
ABSENT_S = 30.0  # how long a file that was not there is not asked for again
# What file systems state of the version of a file; the first that is known is used, because listings may state times
# with other digits.
_VERSION = (
    *("ETag", "etag", "md5Hash", "content_md5", "Content-MD5", "generation"),
    *("mtime", "LastModified", "Last-Modified", "last_modified", "updated", "created"),
)
_OF_THE_FILE = (StoreProblem.denied, StoreProblem.missing, StoreProblem.unsupported)  # others may have no such error
_known: dict[Located, tuple[dict[str, Any], float]] = {}  # and when it was asked for
_absent: dict[Located, float] = {}  # and when that was found
_process = os.getpid()


class Located(Protocol):
    """A path with a URL and the options of its file system; hashable."""

    @property
    def url(self) -> str: ...  # noqa: D102

    @property
    def options(self) -> Mapping[str, Any]: ...  # noqa: D102


def system_of(path: Located, extra: str = "remote") -> tuple[Any, str]:
    """Return the file system of a path, which fsspec keeps for each process, and the name of the path in it.

    Args:
        path: with the URL.
        extra: named if fsspec is missing.

    Errors:
        RemoteError: it is not known, or not installed.
    """
    core = need("fsspec.core", extra)
    try:
        found: tuple[Any, str] = core.url_to_fs(path.url, **path.options)
    except (ImportError, ValueError, TypeError) as error:
        how = "pip install 'robocache_ros[fleet]'" if path.url.startswith(("s3:", "s3a:")) else "install what it needs"
        raise RemoteError(f"{printable(path.url, 60)}: {printable(error, 80)}; {how}") from None
    return found


def call_with_retries(path: Located, request: Callable[[Any, str], Any], doing: str = "read") -> Any:
    """Return the answer of the file system to a request, which is repeated if it may succeed later.

    Errors:
        FileNotFoundError: there is no such file.
        StoreError: the credentials have expired, or the server was not reached by the last try.
        RemoteError: another error.
    """
    system, name = system_of(path)

    def once() -> Any:
        try:
            return request(system, name)
        except NotADirectoryError as error:  # below a file
            raise FileNotFoundError(errno.ENOENT, "not there", name) from error

    try:
        return retried(once, printable(path.url, 80), doing)
    except FileNotFoundError as error:
        if _lacks_bucket(error):
            text = "no such bucket; correct the URL"
            raise RemoteError(f"{printable(path.url, 80)}: {text}") from None
        raise
    except StoreError as error:
        if error.problem in _OF_THE_FILE:
            raise RemoteError(str(error)) from None
        raise


def file_info(path: Located) -> dict[str, Any]:
    """Return what the file system says of a file or folder; a process asks once.

    Errors:
        FileNotFoundError, RemoteError: as of `call_with_retries`.
    """
    global _process
    if _process != os.getpid():  # after a fork, what was known may be old
        _known.clear()
        _absent.clear()
        _process = os.getpid()
    found, _ = _known.get(path, (None, 0.0))
    if found is None:
        if time.monotonic() < _absent.get(path, -ABSENT_S) + ABSENT_S:
            raise FileNotFoundError(errno.ENOENT, "not there", printable(path.url, 80))
        try:
            found = dict(call_with_retries(path, lambda system, name: system.info(name)))
        except FileNotFoundError:
            _absent[path] = time.monotonic()
            raise
        except StoreError as error:
            if "Bad Request" in str(error):  # what S3 answers to a HEAD, without the reason
                call_with_retries(path, lambda system, name: system.cat_file(name, start=0, end=1))
            raise
        found = remember(path, found)
    return found


def refresh(path: Located) -> None:
    """Ask for a file again when it is needed, unless it was described a short time ago, as by a search."""
    if time.monotonic() > _known.get(path, ({}, 0.0))[1] + FRESH_S:
        forget(path)


def forget(path: Located) -> None:
    """Ask for a file again when it is needed."""
    _known.pop(path, None)


def remember(path: Located, info: Mapping[str, Any]) -> dict[str, Any]:
    """Keep what a listing says of a file, so that it is not asked for again; return what is kept."""
    for kept in (_known, _absent):
        if len(kept) >= MAX_KNOWN:
            kept.clear()
    _absent.pop(path, None)
    found = dict(info)
    _known[path] = found, time.monotonic()
    return found


def part_of(system: Any, name: str, start: int, stop: int) -> bytes:
    """Request the bytes of [start, stop) of a file."""
    if not _is_http(system):
        return bytes(system.cat_file(name, start=start, end=stop))
    with system.open(name, size=stop, cache_type="none") as file:  # refuses an answer that is not the part
        return bytes(file._fetch_range(start, stop))


def answers_ranges(system: Any, name: str, size: int) -> bool:
    """Request the last byte of a file; return whether the server can answer that."""
    try:
        return not _is_http(system) or len(part_of(system, name, max(size - 1, 0), size)) <= 1
    except ValueError:
        return False


def _is_http(system: Any) -> bool:
    return "http" in (system.protocol if isinstance(system.protocol, tuple) else (system.protocol,))


def version_of(info: Mapping[str, Any]) -> str:
    """Return what identifies the contents of a file: its size, and its checksum or time as far as they are known."""
    known = next((f"{key}={info[key]}" for key in _VERSION if info.get(key) is not None), "")
    return hashlib.sha256(f"{info.get('size')} {known}".encode()).hexdigest()


def _lacks_bucket(error: BaseException) -> bool:
    one: BaseException | None = error
    for _ in range(8):
        if one is None:
            return False
        if "NoSuchBucket" in str(one):
            return True
        one = one.__cause__ or one.__context__
    return False


# Objects in a bucket: put, put if absent, get, list, delete. Buckets have folders only as parts of names.


EXTRA = "fleet"  # which brings what a store needs
THREADS = 8  # requests at once of a process
OBJECT_BYTES = 512 << 20  # of an object that is read into memory, such as the list of the files of a dataset
_MODIFIED = ("LastModified", "last_modified", "mtime", "updated", "created")  # as file systems name it
_PROBE = ".robocache-probe-"  # an object that is put and deleted, to see what a bucket can do
_DIGITS = "0123456789abcdef"

T = TypeVar("T")


@dataclass(frozen=True)
class Listed:
    """An object in a listing."""

    size: int  # bytes
    modified: datetime  # in UTC; of file systems that do not state it: the epoch


@dataclass(frozen=True)
class ObjectStore:
    """The objects below a URL. It holds no connection: other processes may receive it.

    Requests that fail for a reason that passes are sent again, a bounded number of times and after longer and longer
    waits. That includes errors that s3fs and botocore do not repeat, or have repeated in vain.

    Args:
        url: such as `s3://bucket/lift`.
        options: of the file system of fsspec, such as credentials.

    Errors:
        StoreError: of all methods: a request that fails. The message is one line.
        FileNotFoundError: of `get`, `get_file` and `copy_files`: there is no such object.
    """

    url: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "url", self.url.rstrip("/"))

    def below(self, name: str) -> ObjectStore:
        """Return the objects below a folder of this store."""
        return ObjectStore(f"{self.url}/{name}", self.options)

    def get(self, name: str) -> bytes:
        """Return an object, which may be large as long as it fits into memory: OBJECT_BYTES."""
        contents: bytes = self._request(name, lambda system, path: system.cat_file(path, start=0, end=OBJECT_BYTES + 1))
        if len(contents) > OBJECT_BYTES:
            raise RemoteError(f"{self._shown(name)}: more than {OBJECT_BYTES >> 20} MiB; remove it")
        return contents

    def get_file(self, name: str, local: Path) -> None:
        """Download an object."""
        self._request(name, lambda system, path: system.get_file(path, str(local)))

    def put(self, name: str, contents: bytes) -> None:
        """Write an object; replace one of this name."""
        self._request(name, lambda system, path: system.pipe_file(path, contents), "write")

    def put_file(self, name: str, local: Path) -> None:
        """Upload a file; replace an object of this name."""
        self._request(name, lambda system, path: system.put_file(str(local), path), "write")

    def put_files(self, folder: Path, names: Iterable[str], to: str = "") -> None:
        """Upload files of a folder, several at once, to their names below `to`."""
        self._all(lambda name: self.put_file(f"{to}{name}", folder / name), names)

    def copy_files(self, names: Iterable[str], source: ObjectStore) -> None:
        """Copy objects of the same names from another store of the same bucket, several at once, in the bucket.

        Errors:
            FileNotFoundError: the other store has no such object.
        """

        def copy(name: str) -> None:
            origin = system_of(source, EXTRA)[1].rstrip("/")
            self._request(name, lambda system, path: system.cp_file(f"{origin}/{name}", path), "copy")

        self._all(copy, names)

    def create(self, name: str, contents: bytes) -> bool:
        """Write an object unless there is one of this name; return whether there now is one with these contents.

        It is put with If-None-Match, or what the file system has in its place. An object with these contents counts as
        ours, because the answer to a request that succeeded may have been lost. Writers whose race matters write
        different contents.
        """
        try:
            self._request(name, lambda system, path: system.pipe_file(path, contents, mode="create"), "write")
        except FileExistsError:
            try:
                return self.get(name) == contents
            except FileNotFoundError:
                return False  # removed in between
        return True

    def listed(self, folder: str = "", *, hexadecimal: bool = False) -> dict[str, Listed]:
        """Return all objects below a folder by their names in it, sorted.

        Args:
            folder: with a slash at its end; empty: everything.
            hexadecimal: the names begin with a hexadecimal digit, so that 16 listings can run at once.
        """
        found: dict[str, Listed] = {}

        def request(prefix: str) -> None:
            options = {"prefix": prefix} if prefix else {}
            with suppress(FileNotFoundError):
                found.update(
                    self._request(folder, lambda system, path: _found(system, path.rstrip("/"), options), "list")
                )

        self._all(request, _DIGITS if hexadecimal else ("",))
        return dict(sorted(found.items()))

    def entries(self) -> list[str]:
        """Return the names of the objects and folders directly below the URL, without listing what is in folders."""
        try:
            paths = self._request("", lambda system, path: system.ls(path.rstrip("/"), detail=False), "list")
        except FileNotFoundError:
            return []
        names = (str(path).rstrip("/").rpartition("/")[2] for path in paths)
        return sorted(name for name in names if name)

    def delete(self, names: Iterable[str]) -> None:
        """Delete objects, several at once; those that are not there are left out."""

        def remove(name: str) -> None:
            with suppress(FileNotFoundError):
                self._request(name, lambda system, path: system.rm_file(path), "delete")

        self._all(remove, names)

    def check(self) -> None:
        """Refuse a store that cannot be written to, deleted from, or that does not put if absent.

        Some servers ignore If-None-Match. So one object is put twice, and the second time must fail.
        """
        name = f"{_PROBE}{secrets.token_hex(8)}"
        try:
            kept = self.create(name, b"1") and not self.create(name, b"2")
        except StoreError as error:
            if error.problem is not StoreProblem.unsupported:
                raise
            kept = False
        if not kept:
            with suppress(StoreError):
                self.delete([name])
            raise StoreError(
                f"{printable(self.url, 60)}: the bucket does not support conditional puts (If-None-Match), which "
                "exports need; use one that does, or a local folder",
                StoreProblem.unsupported,
            )
        self.delete([name])

    def _request(self, name: str, request: Callable[[Any, str], T], doing: str = "read") -> T:
        """Send a request until it is answered."""

        def once() -> T:
            system, path = system_of(self, EXTRA)
            system.invalidate_cache()
            return request(system, f"{path.rstrip('/')}/{name}" if name else path)

        return retried(once, self._shown(name), doing)

    def _all(self, each: Callable[[str], None], names: Iterable[str]) -> None:
        with ThreadPoolExecutor(THREADS, "objects") as pool:
            running = [pool.submit(each, name) for name in names]
            try:
                for one in running:
                    one.result()
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise

    def _shown(self, name: str) -> str:
        return printable(f"{self.url}/{name}" if name and not name.startswith(_PROBE) else self.url, 80)


def _found(system: Any, folder: str, options: Mapping[str, str]) -> dict[str, Listed]:
    """Return the objects below a folder whose names begin with the prefix, where the file system knows prefixes."""
    details = system.find(folder, detail=True, **options)
    prefix, start = options.get("prefix", ""), len(folder) + 1
    return {
        name[start:]: Listed(int(info["size"] or 0), _modified(info))
        for name, info in details.items()
        if info["type"] == "file" and name[start:].startswith(prefix)
    }


def _modified(info: Mapping[str, Any]) -> datetime:
    found = next((info[key] for key in _MODIFIED if info.get(key) is not None), 0)
    if isinstance(found, str):
        with suppress(ValueError):
            found = datetime.fromisoformat(found.replace("Z", "+00:00"))
    if isinstance(found, (int, float)):
        found = datetime.fromtimestamp(found, timezone.utc)
    if not isinstance(found, datetime):
        found = datetime.fromtimestamp(0, timezone.utc)
    return found if found.tzinfo else found.replace(tzinfo=timezone.utc)


def name_below(root: Path, file: Path) -> str:
    """Return the name of an object for a file below a folder."""
    return os.fspath(file.relative_to(root)).replace(os.sep, "/")
