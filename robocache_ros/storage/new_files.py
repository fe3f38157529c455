"""Single files that a command writes: not over another one unasked, and whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.storage.errors import file_errors


def check_new(*files: Path | None, overwrite: bool) -> None:
    """Refuse a folder, and a file that exists unless it may be replaced.

    Errors:
        RoboCacheError: names the file.
    """
    for file in filter(None, files):
        with file_errors(file):
            if file.is_dir() or (file.exists() and not overwrite):
                raise RoboCacheError(f"{printable(file)}: exists; choose another file, or replace it with --overwrite")


def write_new(file: Path, text: str) -> None:
    """Write a text file, atomically.

    Errors:
        RoboCacheError: it cannot be written.
    """
    with file_errors(file):
        handle, draft = tempfile.mkstemp(file.suffix, ".robocache-", file.parent)
        try:
            with open(handle, "w", encoding="utf-8") as opened:
                os.fchmod(handle, 0o644)
                opened.write(text)
            os.replace(draft, file)
        except BaseException as error:
            os.unlink(draft)
            if isinstance(error, UnicodeError):  # a name from outside that is not text
                raise RoboCacheError(f"{printable(file)}: cannot be written ({error}); choose another file") from None
            raise
