"""The connection of an export to Ray, and what the machines of its cluster have."""

from __future__ import annotations

import logging
import os
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.export.engines.local_processes import available_cores
from robocache_ros.export.engines.task_engine import Resources
from robocache_ros.extras import need

ADDRESS = "RAY_ADDRESS"
ONLY_LOOPBACK = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"  # 0: a Ray of one machine, which listens on 127.0.0.1 only
CONNECT_S = 10.0  # Ray itself tries for minutes
RECOUNT_S = 5.0  # machines may come and go
TEMPORARY_CHARACTERS = 20  # of the temporary folder: names of sockets in it, with 80 more, have fewer than 108
STORE_BYTES = 100 << 20  # of a Ray that is started here, whose tasks share the plan of the export only

_log = logging.getLogger(__name__)


@contextmanager
def ray_session(address: str | None, *, slots: int | None = None) -> Iterator[Any]:
    """Connect to a cluster; yield the module `ray`.

    Args:
        address: `host:port`, `auto` or `ray://host:port`; None: RAY_ADDRESS, or a Ray that is started on the cores of
            this machine, and stopped on exit. A session that this process has is used, and kept, in any case.
        slots: cores that a Ray that is started takes this machine to have; None: as many as there are.

    Errors:
        RoboCacheError: Ray is not installed, or the cluster cannot be reached.
    """
    address = address or os.environ.get(ADDRESS) or "local"
    if address == "local":  # read when Ray is imported
        os.environ.setdefault(ONLY_LOOPBACK, "0")
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray = need("ray", "fleet")
    with ExitStack() as stack:
        if not ray.is_initialized():
            _connect(ray, address, slots or available_cores(), stack)
        yield ray


def _connect(ray: Any, address: str, slots: int, stack: ExitStack) -> None:
    quiet = {"configure_logging": False, "log_to_driver": False}
    logging.getLogger("ray").setLevel(logging.ERROR)
    # Ray prints which processes were killed to stdout, where the document of --json is.
    if hasattr(ray._private.worker, "print_to_stdstream"):
        ray._private.worker.print_to_stdstream = lambda told, **_: _log.info("%s", told.get("lines"))
    options: dict[str, Any] = {"address": address}
    if address == "local":
        # In a folder of its own, no other program takes this Ray for that of the machine.
        short = None if len(tempfile.gettempdir()) <= TEMPORARY_CHARACTERS else "/tmp"
        made = tempfile.TemporaryDirectory(prefix="ray-", dir=short, ignore_cleanup_errors=True)
        folder = stack.enter_context(made)
        options |= {"num_cpus": slots, "include_dashboard": False, "object_store_memory": STORE_BYTES}
        options["_temp_dir"] = folder
    else:
        _check(address)
    stack.callback(ray.shutdown)
    with _own_handlers():
        try:
            ray.init(**options, **quiet)
        except (OSError, RuntimeError, ValueError) as error:
            reason = printable((str(error).strip().splitlines() or [type(error).__name__])[0], 100)
            raise RoboCacheError(
                f"address: {printable(address, 40)}: no connection to Ray: {reason}; a cluster with tokens needs "
                "RAY_AUTH_MODE=token and RAY_AUTH_TOKEN"
            ) from None


def _check(address: str) -> None:
    """Refuse the address of a machine that does not answer, before Ray tries for minutes."""
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if not host or not port.isdecimal():
        if address != "auto" and "://" not in address:
            raise RoboCacheError(f"address: {printable(address, 60)}: not an address of Ray; give HOST:6379 or auto")
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_S).close()
    except (OSError, OverflowError) as error:
        raise RoboCacheError(
            f"address: {printable(address, 60)}: no Ray answers ({printable(error, 60)}); give that of a cluster"
        ) from None


@contextmanager
def _own_handlers() -> Iterator[None]:
    """Keep the handler of SIGTERM, which Ray replaces."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class Machines:
    """What the machines of a cluster have, counted again from time to time.

    Args:
        ray: the module.
        clock: seconds on a monotonic clock.
    """

    def __init__(self, ray: Any, clock: Callable[[], float] = time.monotonic) -> None:
        self._ray, self._clock = ray, clock
        self._counted_s = -RECOUNT_S
        self._found: list[Mapping[str, float]] = []
        self._told = False

    def slots(self, needs: Resources) -> int:
        """Return how many tasks of these needs run at once: one at least, as a machine may be started for it."""
        wanted = {"CPU": needs.cpus, "GPU": needs.gpus, "memory": needs.memory_bytes}
        found = sum(min(int(has.get(name, 0) / n) for name, n in wanted.items() if n) for has in self._resources())
        if not found and not self._told:
            self._told = True
            _log.warning(
                "robocache: no machine of the cluster has %g cores, %g GPUs and %.1f GB; waiting for one",
                *(needs.cpus, needs.gpus, needs.memory_bytes / 1e9),
            )
        return max(1, found)

    def fitting(self, needs: Resources) -> Resources:
        """Return needs with at most the memory of the largest machine: a task that needs more would never start."""
        able = (has for has in self._resources() if has.get("CPU", 0) >= needs.cpus)
        largest = max((int(has.get("memory", 0)) for has in able), default=0)
        return replace(needs, memory_bytes=min(needs.memory_bytes, largest or needs.memory_bytes))

    def _resources(self) -> list[Mapping[str, float]]:
        if self._clock() - self._counted_s >= RECOUNT_S:
            self._counted_s = self._clock()
            self._found = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        return self._found
