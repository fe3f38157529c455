"""How worker processes start: forked by a process that has imported torch once, for all of them."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import forkserver, resource_tracker
from typing import Any

# What workers of most datasets need. A module that cannot be imported is left to the worker.
IMPORTED_ONCE = (
    "numpy.random",
    "robocache_ros.datasets.timeline_dataset",
    "robocache_ros.datasets.loader.device.raw_samples",
    "robocache_ros.datasets.loader.workers.worker_process",
)


def worker_context() -> Any:
    """Start the process that forks workers, if it is not running, and return the context of multiprocessing.

    It imports in the background, and ends with this process. Torch has no threads in it: they do not survive a fork.
    """
    forkserver.set_forkserver_preload(list(IMPORTED_ONCE))
    try:
        with blocked_interrupt():
            forkserver.ensure_running()
    except ChildProcessError:  # this process was itself forked, by one whose workers are forked
        return multiprocessing.get_context("spawn")
    return multiprocessing.get_context("forkserver")


@contextmanager
def blocked_interrupt() -> Iterator[None]:
    """Ctrl-C reaches the whole process group. A process that starts here ignores it; the loader ends that process."""
    resource_tracker.ensure_running()  # its own start, with the first process, would unblock the signal
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
