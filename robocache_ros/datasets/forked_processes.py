"""How processes of datasets start: forked by a process that has imported torch once, for all of them."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Mapping
from multiprocessing import forkserver
from typing import Any

from robocache_ros.processes import blocked_interrupt, end_with_parent

# What workers of most datasets need. A module that cannot be imported is left to the worker.
IMPORTED_ONCE = (
    "numpy.random",
    "robocache_ros.datasets.timeline_dataset",
    "robocache_ros.datasets.loader.raw_samples",
    "robocache_ros.datasets.loader.worker",
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


def begin(environment: Mapping[str, str]) -> None:
    """Begin a process: it leaves Ctrl-C to its parent, and ends with it.

    Args:
        environment: of its parent, which the process that forked this one may not have.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    os.environ.clear()
    os.environ.update(environment)
    end_with_parent()
