"""What processes need when they start and when they fork: malloc, Ctrl-C, the end of the parent, and caches."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import _lru_cache_wrapper, lru_cache
from multiprocessing import connection, resource_tracker, spawn
from typing import Any, TypeVar

T = TypeVar("T")


def set_malloc(options: Mapping[str, tuple[int, int]]) -> None:
    """Set options of this process' malloc, unless the environment sets them. No effect with another libc than glibc.

    Args:
        options: number and value of `mallopt`, by the name of the environment variable.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return
    for variable, (option, value) in options.items():
        if variable not in os.environ:
            mallopt(option, value)


@contextmanager
def blocked_interrupt() -> Iterator[None]:
    """Ctrl-C reaches the whole process group. A process that starts here ignores it; its parent ends that process."""
    resource_tracker.ensure_running()  # its own start, with the first process, would unblock the signal
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


_PREPARING = threading.Lock()


@contextmanager
def main_left_out(given: bytes = b"") -> Iterator[None]:
    """Start processes here that do not import the main module of this one; multiprocessing has no option for it.

    That of a training or of a notebook may import libraries for many seconds, and runs once more in each process if it
    has no `if __name__ == "__main__":`.

    Args:
        given: what the processes get, pickled. They import the main module if it refers to that module.
    """
    if b"__main__" in given:
        yield
        return
    thread = threading.get_ident()
    with _PREPARING:
        prepare = spawn.get_preparation_data

        def prepare_without_main(name: str) -> dict[str, Any]:
            data: dict[str, Any] = prepare(name)
            kept = {key: value for key, value in data.items() if not key.startswith("init_main_from_")}
            return kept if threading.get_ident() == thread else data

        spawn.get_preparation_data = prepare_without_main
        try:
            yield
        finally:
            spawn.get_preparation_data = prepare


def end_with_parent() -> None:
    """Let this process, which multiprocessing has started, end when its parent has ended, however that ended."""
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent
    connection.wait([parent.sentinel])
    os._exit(1)


def cached_until_fork(maxsize: int) -> Callable[[Callable[..., T]], _lru_cache_wrapper[T]]:
    """Cache the results of a function as `functools.lru_cache` does, and drop them before this process forks.

    It is for native objects, such as open files of libraries, and decoders. A fork copies the memory of a process and
    one of its threads: an object that has threads of its own, such as the scaler of FFmpeg, then waits for them for
    ever, and one that has a file shares its position with the parent. The parent ends the objects, with their threads,
    because the child could not.
    """

    def decorate(function: Callable[..., T]) -> _lru_cache_wrapper[T]:
        cached = lru_cache(maxsize=maxsize)(function)
        os.register_at_fork(before=cached.cache_clear)
        return cached

    return decorate
