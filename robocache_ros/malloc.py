"""glibc's malloc, told to keep the blocks of large messages: faulting them in again costs more than copying them."""

from __future__ import annotations

import ctypes
import os

_MALLOPT = {
    "MALLOC_TRIM_THRESHOLD_": (-1, 2**31 - 1),
    "MALLOC_TOP_PAD_": (-2, 64 << 20),
    "MALLOC_MMAP_THRESHOLD_": (-3, 32 << 20),
}


def keep_large_blocks() -> None:
    """Set it for this process, except where the user's environment says otherwise; another libc is left as it is."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return
    for variable, (option, value) in _MALLOPT.items():
        if variable not in os.environ:
            mallopt(option, value)
