"""Settings of the whole process."""

from __future__ import annotations

import signal
import sys
import threading

import torch

from robocache_ros.malloc import keep_large_blocks

SWITCH_INTERVAL_S = 0.0005  # a tick waits no longer for a callback that holds the interpreter


def prepare() -> None:
    """Make this process fit for large messages and an even beat."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    torch.set_num_threads(1)  # tensors are small; a pool of threads only takes the cores from the middleware
    keep_large_blocks()


def end_in_peace() -> None:
    """Let no second Ctrl-C (a shell sends one to the whole group, launch another) cut the clean end short."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def stop_on_signals() -> threading.Event:
    """An event that Ctrl-C and SIGTERM set, instead of breaking off whatever is under way."""
    stopped = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopped.set())
    return stopped
