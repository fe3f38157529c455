"""Errors of the operating system as one line: the path, the reason and what to do."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from robocache_ros.errors import RoboCacheError, printable

_ADVICE = {
    errno.ENOSPC: "free some space, or choose a folder on another disk",
    errno.EDQUOT: "free some space, or choose a folder on another disk",
    errno.EFBIG: "raise the limit on file sizes, or choose a folder on another file system",
    errno.EROFS: "choose a folder that can be written",
    errno.EACCES: "check its permissions, or choose another folder",
    errno.EPERM: "check its permissions, or choose another folder",
    errno.ENAMETOOLONG: "choose a shorter name",
    errno.EMFILE: "close other programs, or raise the limit with ulimit -n",
}


@contextmanager
def file_errors(path: Path) -> Iterator[None]:
    """Raise an OSError as a RoboCacheError that names its file, or `path` where it names none."""
    try:
        yield
    except OSError as error:
        raise RoboCacheError(_described(error, path)) from error


def _described(error: OSError, path: Path) -> str:
    # pyarrow gives the number in its text alone, PyAV as a code of its own.
    number = error.errno if isinstance(error.errno, int) and error.errno > 0 else 0
    reason = os.strerror(number) if number else printable(" ".join(str(error).split()) or type(error).__name__, 80)
    where = os.fsdecode(error.filename) if isinstance(error.filename, (str, bytes)) and error.filename else path
    return f"{printable(where)}: {reason}; {_ADVICE.get(number, 'choose another folder')}"
