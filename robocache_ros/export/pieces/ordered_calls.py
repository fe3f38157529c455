"""Runs calls in a thread, in their order, while the caller continues."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import ParamSpec

WAITING = 2  # calls whose arguments are in memory, besides those of the running call

P = ParamSpec("P")


class OrderedCalls:
    """Runs calls one after the other in one thread, so that their results do not depend on timing.

    Args:
        name: of the thread.
    """

    def __init__(self, name: str) -> None:
        self._pool = ThreadPoolExecutor(1, name)
        self._calls: deque[Future[None]] = deque()

    def add(self, call: Callable[P, None], *args: P.args, **options: P.kwargs) -> None:
        """Run a call after those before it. Waits while too many calls wait; raises the error of an earlier call."""
        self._calls.append(self._pool.submit(call, *args, **options))
        while len(self._calls) > WAITING + 1:
            self._calls.popleft().result()

    def wait(self) -> None:
        """Wait for all calls; raise the first error of one."""
        while self._calls:
            self._calls.popleft().result()

    def close(self) -> None:
        """Wait for the running call, and discard the calls after it."""
        self._pool.shutdown(cancel_futures=True)
