"""A path that a user gives: local, or a URL whose files are downloaded when they are used."""

from __future__ import annotations

import os
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.remote.cache_limit import default_cache_bytes
from robocache_ros.remote.file_cache import FileCache
from robocache_ros.remote.remote_error import RemoteError
from robocache_ros.remote.remote_path import RemotePath

MAX_PATH, MAX_NAME = 4096, 255  # bytes of a path with its NUL, and of a part of it, as Linux has them


def is_url(path: object) -> bool:
    """Whether a path is a URL, such as `s3://bucket/a.mcap`."""
    return isinstance(path, RemotePath) or (isinstance(path, str) and "://" in path)


def any_path(
    path: str | Path,
    kind: str,
    *,
    cache_dir: str | Path | None = None,
    cache_bytes: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Path:
    """Return a local path as it is, and for a URL a path whose files are downloaded when they are used.

    Args:
        path: a path, or a URL of a file system of fsspec, such as s3://, gs://, https:// or memory://.
        kind: of the files, such as `datasets`: the name of the folder of their cache.
        cache_dir: folder of the downloaded files; None: robocache_ros/<kind> in $XDG_CACHE_HOME or ~/.cache. Any
            number of processes may share it.
        cache_bytes: limit of its size; None: that of ROBOCACHE_CACHE_BYTES, or 64 GiB. Files that are open are kept,
            also if they exceed it.
        storage_options: of the file system.

    Errors:
        RoboCacheError: fsspec, or what it needs for this kind of URL, is not installed, or the limit is wrong.
    """
    if not isinstance(path, str) or not is_url(path):
        return as_path(path)
    limit = default_cache_bytes() if cache_bytes is None else cache_bytes
    if not 0 <= limit < 1 << 63:
        raise RemoteError(f"cache_bytes: {limit!r} is not a number of bytes; give one")
    cache = FileCache(Path(cache_dir) if cache_dir else None, int(limit), kind)
    remote = RemotePath(path, storage_options or {}, cache)
    remote.check()
    return as_path(remote)


def as_path(path: Any) -> Path:
    """Return a path of a str; others, such as a `RemotePath`, which has the interface of Path, as they are.

    Errors:
        RoboCacheError: it is too long for a path, or has a NUL.
    """
    text = str(path)
    if len(text) >= MAX_PATH or not (isinstance(path, RemotePath) or may_be_path(text)):
        raise RoboCacheError(f"{printable(text, 40)}: {len(text):,} characters, not a path; give a file or a folder")
    return Path(path) if isinstance(path, str) else cast(Path, path)


def may_be_path(text: str) -> bool:
    """Whether a text may be a local path: systems refuse longer ones, and those with a NUL, in many ways."""
    try:
        data = os.fsencode(text)
    except UnicodeEncodeError:  # half of a character
        return False
    return len(data) < MAX_PATH and b"\0" not in data and all(len(part) <= MAX_NAME for part in data.split(b"/"))


def keep_for(path: Path, holder: Any) -> None:
    """Keep the local copy of a path in the cache as long as an object exists, such as a library's open file."""
    if isinstance(path, RemotePath):
        weakref.finalize(holder, path.open().close)
