"""The limit on the size of the cache of downloaded files."""

from __future__ import annotations

import os
import re

from robocache_ros.errors import printable
from robocache_ros.remote.remote_error import RemoteError

VARIABLE = "ROBOCACHE_CACHE_BYTES"  # as a number, or with a unit: 16GB
CACHE_BYTES = 64 << 30
UNITS = {"": 1, "MB": 10**6, "GB": 10**9, "TB": 10**12, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_SIZE = re.compile(rf"(\d{{1,15}}(?:\.\d{{1,6}})?) ?({'|'.join(UNITS)})")
_MAXIMUM = 1 << 62


def default_cache_bytes() -> int:
    """Return the bytes that ROBOCACHE_CACHE_BYTES states, or 64 GiB.

    Errors:
        RemoteError: it is not a size.
    """
    text = os.environ.get(VARIABLE, "")
    return cache_bytes_of(text, VARIABLE) if text else CACHE_BYTES


def cache_bytes_of(text: str, where: str) -> int:
    """Return a number of bytes that is given as text, such as `16GB`; 0: only files in use are kept.

    Args:
        text: a number and a unit.
        where: it is given, for the error.

    Errors:
        RemoteError: it is not a size.
    """
    found = _SIZE.fullmatch(text)
    if not found or (size := int(float(found[1]) * UNITS[found[2]])) > _MAXIMUM:
        raise RemoteError(f"{where}: {printable(text, 40)!r} is not a size; write for example 16GB")
    return size
