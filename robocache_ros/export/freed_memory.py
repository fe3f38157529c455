"""Configures glibc's malloc for an export: freed blocks return to the system, which avoids heap fragmentation."""

from __future__ import annotations

import ctypes
import os

# By default, glibc raises the thresholds to the size of freed blocks, up to 32 MB. Large messages, clouds and images
# are then allocated on the heap between small long-lived objects, and the gaps cannot be returned. With lower
# thresholds than these, the memory of each frame for an encoder is mapped anew, whose page faults take a tenth of the
# time of an export.
_MALLOPT = {"MALLOC_TRIM_THRESHOLD_": (-1, 16 << 20), "MALLOC_MMAP_THRESHOLD_": (-3, 4 << 20)}


def return_freed_memory() -> None:
    """Set the malloc thresholds of this process, unless the environment sets them. No effect with another libc."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return
    for variable, (option, nbytes) in _MALLOPT.items():
        if variable not in os.environ:
            mallopt(option, nbytes)
