"""What a file system of fsspec says of files, and requests to it that are repeated until they are answered."""

from __future__ import annotations

import errno
import hashlib
import os
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from robocache_ros.errors import printable
from robocache_ros.extras import need
from robocache_ros.remote.remote_error import RemoteError
from robocache_ros.remote.store_errors import StoreError, StoreProblem, retried

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


def asked(path: Located, ask: Callable[[Any, str], Any], doing: str = "read") -> Any:
    """Return the answer of the file system to a request, which is repeated if it may succeed later.

    Errors:
        FileNotFoundError: there is no such file.
        StoreError: the credentials have expired, or the server was not reached by the last try.
        RemoteError: another error.
    """
    system, name = system_of(path)

    def once() -> Any:
        try:
            return ask(system, name)
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


def told_of(path: Located) -> dict[str, Any]:
    """Return what the file system says of a file or folder; a process asks once.

    Errors:
        FileNotFoundError, RemoteError: as of `asked`.
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
            found = dict(asked(path, lambda system, name: system.info(name)))
        except FileNotFoundError:
            _absent[path] = time.monotonic()
            raise
        except StoreError as error:
            if "Bad Request" in str(error):  # what S3 answers to a HEAD, without the reason
                asked(path, lambda system, name: system.cat_file(name, start=0, end=1))
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


def remember(path: Located, told: Mapping[str, Any]) -> dict[str, Any]:
    """Keep what a listing says of a file, so that it is not asked for again; return what is kept."""
    for kept in (_known, _absent):
        if len(kept) >= MAX_KNOWN:
            kept.clear()
    _absent.pop(path, None)
    found = dict(told)
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


def version_of(told: Mapping[str, Any]) -> str:
    """Return what identifies the contents of a file: its size, and its checksum or time as far as they are known."""
    known = next((f"{key}={told[key]}" for key in _VERSION if told.get(key) is not None), "")
    return hashlib.sha256(f"{told.get('size')} {known}".encode()).hexdigest()


def _lacks_bucket(error: BaseException) -> bool:
    one: BaseException | None = error
    for _ in range(8):
        if one is None:
            return False
        if "NoSuchBucket" in str(one):
            return True
        one = one.__cause__ or one.__context__
    return False
