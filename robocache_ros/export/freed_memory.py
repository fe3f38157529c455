"""glibc's malloc for an export: freed blocks go back to the system, so that the heap does not fragment."""

from __future__ import annotations

import ctypes
import os

# glibc's own first values. Left alone, it raises them to the size of what is freed, up to 32 MB: then messages, clouds
# and images live on the heap among small objects that stay, and the holes between them cannot be returned.
_THRESHOLD_BYTES = 128 << 10
_MALLOPT = {"MALLOC_TRIM_THRESHOLD_": -1, "MALLOC_MMAP_THRESHOLD_": -3}


def return_freed_memory() -> None:
    """Set it for this process, except where the user's environment sets it; another libc stays as it is."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return
    for variable, option in _MALLOPT.items():
        if variable not in os.environ:
            mallopt(option, _THRESHOLD_BYTES)
