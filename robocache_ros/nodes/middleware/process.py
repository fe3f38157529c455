"""Settings of the process."""

from __future__ import annotations

import ctypes
import gc
import signal
import sys
import threading
from contextlib import suppress

import torch

from robocache_ros.nodes.middleware.malloc import keep_large_blocks

_PR_SET_TIMERSLACK = 29
SWITCH_INTERVAL_S = 0.0005  # longest time that a tick waits for a callback that holds the interpreter's lock


def prepare() -> None:
    """Set up this process for large messages and evenly spaced ticks."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    torch.set_num_threads(1)  # tensors are small; a thread pool would only take cores from the middleware
    keep_large_blocks()


def reduce_timer_slack() -> None:
    """Make this thread's sleeps end on time; by default the kernel delays the end by up to 50 us to save power."""
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1)


def freeze_gc() -> None:
    """Exclude all existing objects from garbage collection, so that later collections are short."""
    gc.collect()
    gc.freeze()


def unfreeze_gc() -> None:
    """Undo `freeze_gc`, so that objects such as a stopped node are collected."""
    gc.unfreeze()


def ignore_sigint() -> None:
    """Ignore further SIGINTs, which would interrupt the shutdown: at Ctrl-C the shell sends one, and launch another."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def stop_on_signals() -> threading.Event:
    """An event that Ctrl-C and SIGTERM set, instead of interrupting the program."""
    stopped = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopped.set())
    return stopped
