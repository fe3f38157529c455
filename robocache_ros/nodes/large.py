"""Images and clouds, taken from the middleware by a thread of their own: no tick waits behind one."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence

from rclpy.node import Node

from robocache_ros.nodes import compat, process
from robocache_ros.nodes.intake import Feed, Intake
from robocache_ros.nodes.taking import Taken, Taker

IDLE_NS = 100_000_000  # how often the thread looks whether it shall stop
PAUSE_S = 0.001  # while what was taken is not fetched


class LargeMessages:
    """Takes the messages of some feeds as they come; for a node on the wall clock.

    Taking a camera's frame is 2 ms of copying, without the interpreter's lock. What is not through when a tick is made
    arrives after it.

    Args:
        node: whose subscriptions they are.
        intake: whose large feeds are taken.
        failed: called once, from the thread, where it ends with an error.
    """

    def __init__(self, node: Node, intake: Intake, failed: Callable[[Exception], None]) -> None:
        self.news = compat.Signal(node)  # that something is there to be read
        self._feeds: Sequence[Feed] = [feed for feed in intake.feeds if feed.large]
        self._failed = failed
        self._most = sum(feed.depth for feed in self._feeds)
        self._taken: deque[tuple[Feed, Taken]] = deque()
        self._taker = Taker()
        self._stopped = threading.Event()
        self._waiter = compat.Waiter(node, (feed.subscription for feed in self._feeds))
        self._thread = threading.Thread(target=self._run, name="robocache-large", daemon=True)
        if self._feeds:
            self._thread.start()

    def read(self) -> list[tuple[Feed, Taken]]:
        """What was taken since."""
        return [self._taken.popleft() for _ in range(len(self._taken))]

    def destroy(self) -> None:
        """Stop, and give the wait set back."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()
        self._waiter.destroy()
        self.news.destroy()

    def _run(self) -> None:
        process.be_punctual()
        try:
            while not self._stopped.is_set():
                if len(self._taken) >= self._most:  # a stall: what comes now waits in the middleware's queues
                    self._stopped.wait(PAUSE_S)
                    continue
                for feed in self._feeds:
                    for message in feed.take_all(self._taker):
                        self._taken.append((feed, message))
                        self.news.send()
                self._waiter.wait(IDLE_NS)
        except Exception as error:
            if not self._stopped.is_set():
                self._failed(error)
