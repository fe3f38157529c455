"""Formats operating system errors as one line: the path, the reason and what to do."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager

from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.storage.paths import AnyPath

_ADVICE = {
    errno.ENOSPC: "free some space, or choose a folder on another disk",
    errno.EDQUOT: "free some space, or choose a folder on another disk",
    errno.EFBIG: "raise the limit on file sizes, or choose a folder on another file system",
    errno.ENOENT: "check that it is still there",
    errno.EROFS: "choose a folder that can be written",
    errno.EACCES: "check its permissions, or choose another folder",
    errno.EPERM: "check its permissions, or choose another folder",
    errno.ENAMETOOLONG: "choose a shorter name",
    errno.EMFILE: "close other programs, or raise the limit with ulimit -n",
}
_NUMBER = re.compile(r"\[errno (\d{1,3})\]", re.IGNORECASE)


@contextmanager
def file_errors(path: AnyPath, *, but: Collection[int] = ()) -> Iterator[None]:
    """Convert an OSError to a RoboCacheError that names its file, or `path` if the error names no file.

    Args:
        path: the file or folder in use.
        but: error numbers (errno) that are not converted.
    """
    try:
        yield
    except OSError as error:
        if error_number(error) in but:
            raise
        raise RoboCacheError(_described(error, path)) from error


def error_number(error: OSError) -> int:
    """Return the errno of an error, 0 if it has none."""
    if isinstance(error.errno, int) and error.errno > 0:
        return error.errno
    in_text = _NUMBER.search(str(error))  # some versions of pyarrow give the errno only in the text
    return int(in_text[1]) if in_text else 0


def _described(error: OSError, path: AnyPath) -> str:
    number = error_number(error)
    reason = os.strerror(number) if number else printable(" ".join(str(error).split()) or type(error).__name__, 80)
    where = os.fsdecode(error.filename) if isinstance(error.filename, (str, bytes)) and error.filename else path
    return f"{printable(where)}: {reason}; {_ADVICE.get(number, 'choose another folder')}"
