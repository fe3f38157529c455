"""Caches that a fork must not copy: of open files of libraries, decoders, and other native objects.

A fork copies the memory of a process and one of its threads. A native object that has threads of its own, such as the
scaler of FFmpeg, then waits for them for ever; one that has a file shares its position with the parent.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import _lru_cache_wrapper, lru_cache
from typing import TypeVar

T = TypeVar("T")


def cached_until_fork(maxsize: int) -> Callable[[Callable[..., T]], _lru_cache_wrapper[T]]:
    """Cache the results of a function as `functools.lru_cache` does, and drop them before this process forks.

    The parent ends the objects, with their threads, because the child could not.
    """

    def decorate(function: Callable[..., T]) -> _lru_cache_wrapper[T]:
        cached = lru_cache(maxsize=maxsize)(function)
        os.register_at_fork(before=cached.cache_clear)
        return cached

    return decorate
