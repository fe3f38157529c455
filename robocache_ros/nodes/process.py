"""Settings of the whole process."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

import torch

SWITCH_INTERVAL_S = 0.0005  # a tick waits no longer for a callback that holds the interpreter
# glibc's mallopt: keep the blocks of large messages instead of giving them back and faulting them in again, which costs
# more than copying them.
_MALLOPT = {
    "MALLOC_TRIM_THRESHOLD_": (-1, 2**31 - 1),
    "MALLOC_TOP_PAD_": (-2, 64 << 20),
    "MALLOC_MMAP_THRESHOLD_": (-3, 32 << 20),
}


def prepare() -> None:
    """Make this process fit for large messages and an even beat."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    torch.set_num_threads(1)  # tensors are small; a pool of threads only takes the cores from the middleware
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):  # another libc
        return
    for variable, (option, value) in _MALLOPT.items():
        if variable not in os.environ:
            mallopt(option, value)


def end_in_peace() -> None:
    """Let no second Ctrl-C (a shell sends one to the whole group, launch another) cut the clean end short."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
