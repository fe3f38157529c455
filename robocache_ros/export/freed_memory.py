"""Configures glibc's malloc for an export: freed blocks return to the system, which avoids heap fragmentation."""

from __future__ import annotations

import ctypes
import os

# The initial values of glibc. By default, glibc raises them to the size of freed blocks, up to 32 MB. Messages, clouds
# and images are then allocated on the heap between small long-lived objects, and the gaps cannot be returned.
_THRESHOLD_BYTES = 128 << 10
_MALLOPT = {"MALLOC_TRIM_THRESHOLD_": -1, "MALLOC_MMAP_THRESHOLD_": -3}


def return_freed_memory() -> None:
    """Set the malloc thresholds of this process, unless the environment sets them. No effect with another libc."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return
    for variable, option in _MALLOPT.items():
        if variable not in os.environ:
            mallopt(option, _THRESHOLD_BYTES)
