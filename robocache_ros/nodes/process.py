"""Settings of the whole process."""

from __future__ import annotations

import ctypes
import gc
import signal
import sys
import threading
from contextlib import suppress

import torch

from robocache_ros.malloc import keep_large_blocks

_PR_SET_TIMERSLACK = 29
SWITCH_INTERVAL_S = 0.0005  # a tick waits no longer for a callback that holds the interpreter


def prepare() -> None:
    """Make this process fit for large messages and an even beat."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    torch.set_num_threads(1)  # tensors are small; a pool of threads only takes the cores from the middleware
    keep_large_blocks()


def be_punctual() -> None:
    """Make this thread's sleeps end when they were asked to; the kernel puts them off by 50 us to wake fewer times."""
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1)


def settle() -> None:
    """Take all that is there out of the garbage collector's sight: what comes later is soon looked through."""
    gc.collect()
    gc.freeze()


def unsettle() -> None:
    """Undo `settle`: what was there may go, such as the node that stops."""
    gc.unfreeze()


def end_in_peace() -> None:
    """Let no second Ctrl-C (a shell sends one to the whole group, launch another) cut the clean end short."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def stop_on_signals() -> threading.Event:
    """An event that Ctrl-C and SIGTERM set, instead of breaking off whatever is under way."""
    stopped = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopped.set())
    return stopped
