"""A folder that appears under its name when it is whole, and not before."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from robocache_ros.errors import RoboCacheError

_MARK = Path("meta") / "info.json"  # what tells a dataset from any other folder


@contextmanager
def whole_folder(out: Path, *, overwrite: bool = False) -> Iterator[Path]:
    """A new folder beside `out` to write into; it takes `out`'s name at the end, and is gone after any exception.

    Errors:
        RoboCacheError: `out` is there, and `overwrite` is not asked for or it is no dataset.
    """
    out = Path(os.path.abspath(out))
    _check(out, overwrite)
    out.parent.mkdir(parents=True, exist_ok=True)
    partial = out.parent / f".{out.name}.partial-{os.getpid()}"
    partial.mkdir()
    try:
        yield partial
        for folder, _, files in os.walk(partial):
            for file in files:
                _sync(Path(folder) / file)
            _sync(Path(folder))
        _check(out, overwrite)  # again: it may have come while this one was written
        _take_name(partial, out)
        _sync(out.parent)
    except BaseException:  # Ctrl-C too
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _check(out: Path, overwrite: bool) -> None:
    if not out.exists():
        return
    if not out.is_dir():
        raise RoboCacheError(f"{out}: is a file; give a folder that does not exist yet")
    if not any(out.iterdir()):
        return
    if not overwrite:
        raise RoboCacheError(f"{out}: exists; choose another folder, or say overwrite")
    if not (out / _MARK).exists():
        raise RoboCacheError(f"{out}: is no dataset (it has no {_MARK}) and is not overwritten; choose another folder")


def _take_name(partial: Path, out: Path) -> None:
    if not out.exists():
        partial.rename(out)
        return
    old = out.parent / f".{out.name}.old-{os.getpid()}"
    out.rename(old)
    try:
        partial.rename(out)
    except BaseException:
        old.rename(out)
        raise
    shutil.rmtree(old)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
