"""Compiled modules on disk, shared by concurrent processes."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from pathlib import Path

from robocache_ros.errors import RoboCacheError

_chosen: Path | None = None
_enabled = True


def enable_jit_cache(directory: str | os.PathLike[str] | None = None, *, enabled: bool = True) -> Path | None:
    """Choose where compiled kernels are cached between runs. By default they are.

    Args:
        directory: created when needed. None: $ROBOCACHE_CACHE_DIR, else $XDG_CACHE_HOME/robocache_ros, else
            ~/.cache/robocache_ros.
        enabled: False stores nothing on disk; every process compiles its own kernels.

    Returns:
        The directory, or None if nothing is cached.

    Raises:
        RoboCacheError: `directory` is given and cannot be created or written to.
    """
    global _chosen, _enabled
    if directory is not None:
        chosen = Path(directory).expanduser().absolute()
        try:
            chosen.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=chosen):
                pass
        except OSError as error:
            raise RoboCacheError(f"directory: {chosen} cannot be written to ({error}); choose another") from error
        _chosen = chosen
    _enabled = enabled
    return cache_directory()


def cache_directory() -> Path | None:
    """The directory of cached kernels; None if nothing is cached."""
    if not _enabled:
        return None
    if _chosen is not None:
        return _chosen
    named = os.environ.get("ROBOCACHE_CACHE_DIR")
    if named:
        return Path(named).expanduser().absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "robocache_ros"


def load(key: str) -> bytes | None:
    """The module stored under `key`; None if there is none or its bytes are damaged."""
    directory = cache_directory()
    if directory is None:
        return None
    try:
        entry = (directory / f"{key}.cubin").read_bytes()
    except OSError:
        return None
    digest, module = entry[:32], entry[32:]
    return module if module and hashlib.sha256(module).digest() == digest else None


def store(key: str, module: bytes) -> None:
    """Write a module atomically. If that fails, the next process compiles it again."""
    directory = cache_directory()
    if directory is None:
        return
    with contextlib.suppress(OSError):
        directory.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=directory, suffix=".part")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(hashlib.sha256(module).digest() + module)
            os.replace(temporary, directory / f"{key}.cubin")
        except OSError:
            os.unlink(temporary)
