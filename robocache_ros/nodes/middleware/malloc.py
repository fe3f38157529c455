"""Settings of glibc's malloc to keep the blocks of large messages: page faults cost more than copying a message."""

from __future__ import annotations

import ctypes
import os

_MALLOPT = {
    "MALLOC_TRIM_THRESHOLD_": (-1, 2**31 - 1),
    "MALLOC_TOP_PAD_": (-2, 64 << 20),
    "MALLOC_MMAP_THRESHOLD_": (-3, 32 << 20),
}


def keep_large_blocks() -> None:
    """Configure malloc, except for settings in the user's environment; do nothing with another libc."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return
    for variable, (option, value) in _MALLOPT.items():
        if variable not in os.environ:
            mallopt(option, value)
