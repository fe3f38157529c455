"""How processes of datasets start: forked by a process that has imported torch once, for all of them."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from multiprocessing import context, forkserver, spawn
from typing import Any

from robocache_ros.processes import blocked_interrupt, end_with_parent

# What workers of most datasets need. A module that cannot be imported is left to the worker.
IMPORTED_ONCE = (
    "numpy.random",
    "robocache_ros.datasets.timeline_dataset",
    "robocache_ros.datasets.loader.raw_samples",
    "robocache_ros.datasets.loader.worker",
)


def worker_context(given: bytes) -> Any:
    """Start the process that forks workers, if it is not running, and return the context of multiprocessing.

    It imports in the background, and ends with this process. Torch has no threads in it: they do not survive a fork.

    Args:
        given: what the workers get, pickled. They import the main module of this process only where it refers to that
            module. The one of a training may import libraries for many seconds, and each worker would do so again.
    """
    forkserver.set_forkserver_preload(list(IMPORTED_ONCE))
    try:
        with blocked_interrupt():
            forkserver.ensure_running()
    except ChildProcessError:  # this process was itself forked, by one whose workers are forked
        return multiprocessing.get_context("spawn")
    return multiprocessing.get_context("forkserver") if b"__main__" in given else _ContextWithoutMain()


class _ProcessWithoutMain(context.ForkServerProcess):
    """A process that does not import the main module of its parent."""

    @staticmethod
    def _Popen(process: Any) -> Any:  # noqa: N802 - multiprocessing's name
        with _main_left_out(process.name):
            return context.ForkServerProcess._Popen(process)


class _ContextWithoutMain(context.ForkServerContext):
    Process = _ProcessWithoutMain


_PREPARING = threading.Lock()


@contextmanager
def _main_left_out(process: str) -> Iterator[None]:
    """Leave the main module out of what the process of a name prepares; multiprocessing has no option for it."""
    with _PREPARING:
        prepare = spawn.get_preparation_data

        def prepare_without_main(name: str) -> dict[str, Any]:
            data: dict[str, Any] = prepare(name)
            kept = {key: value for key, value in data.items() if not key.startswith("init_main_from_")}
            return kept if name == process else data

        spawn.get_preparation_data = prepare_without_main
        try:
            yield
        finally:
            spawn.get_preparation_data = prepare


def begin(environment: Mapping[str, str]) -> None:
    """Begin a process: it leaves Ctrl-C to its parent, and ends with it.

    Args:
        environment: of its parent, which the process that forked this one may not have.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    os.environ.clear()
    os.environ.update(environment)
    end_with_parent()
