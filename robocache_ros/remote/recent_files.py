"""Local copies whose names were given to libraries: they are kept until the libraries have opened them."""

from __future__ import annotations

import os
import threading
from collections import deque
from typing import BinaryIO

RECENT = 16  # files that are kept
_recent: deque[int] = deque()  # descriptors
_lock = threading.Lock()


def keep(file: BinaryIO) -> None:
    """Keep an open file and its lock, in place of the one that was kept for the longest time."""
    with _lock:
        if len(_recent) == RECENT:
            os.close(_recent.popleft())
        _recent.append(os.dup(file.fileno()))


def let_go(file: BinaryIO) -> None:
    """Keep a file no longer."""
    same = os.fstat(file.fileno())
    with _lock:
        for handle in [each for each in _recent if os.path.samestat(os.fstat(each), same)]:
            _recent.remove(handle)
            os.close(handle)


def let_all_go() -> None:
    """Keep no file longer: no library is about to open one."""
    with _lock:
        while _recent:
            os.close(_recent.popleft())
