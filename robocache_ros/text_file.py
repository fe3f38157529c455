"""Reads a text file that a user wrote, with a limit on its size."""

from __future__ import annotations

from pathlib import Path

from robocache_ros.errors import RoboCacheError, printable


def read_text(path: Path, hint: str, max_bytes: int) -> str:
    """Return the text of a file.

    Args:
        path: a regular file of UTF-8 text, with or without a byte order mark.
        hint: what to do if it is not, for the error.
        max_bytes: limit on its size.

    Errors:
        RoboCacheError: the file cannot be read, is not UTF-8 text, or is larger than the limit.
    """
    shown = printable(path, 60)
    try:
        if not path.is_file() and path.exists():
            raise RoboCacheError(f"{shown}: not a regular file; {hint}")
        with path.open("rb") as file:
            data = file.read(max_bytes + 1)
        text = data.decode("utf-8-sig")
    except OSError as error:
        raise RoboCacheError(f"{shown}: cannot be read ({error.strerror}); {hint}") from None
    except UnicodeDecodeError as error:
        raise RoboCacheError(f"{shown}: not UTF-8 text (byte {error.start}); save it as UTF-8") from None
    except ValueError as error:
        if isinstance(error, RoboCacheError):
            raise
        raise RoboCacheError(f"{shown}: not a path ({printable(error, 60)}); {hint}") from None
    if len(data) > max_bytes:
        raise RoboCacheError(f"{shown}: larger than {max_bytes // 1024} KiB; {hint}")
    return text
