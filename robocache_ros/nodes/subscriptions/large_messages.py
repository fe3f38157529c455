"""Receives images and clouds in a separate thread, so that no tick waits for one."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence

from rclpy.node import Node

from robocache_ros.nodes.middleware import compat, process
from robocache_ros.nodes.subscriptions.raw_subscriber import RawSubscriber, ReceivedMessage
from robocache_ros.nodes.subscriptions.topics import Topic, TopicSubscriptions

IDLE_NS = 100_000_000  # how often the thread checks whether to stop
PAUSE_S = 0.002  # pause while the received messages are not read, and in a flood
BATCH = 8  # messages of a topic in a row; more indicate a flood, or waited during a stall
MOST = 64  # messages received and not read; others wait in the middleware's queues


class LargeMessages:
    """Receives the messages of the large topics as they arrive; for a node on the wall clock.

    Copying a camera image takes 2 ms, without the interpreter's lock. A message whose copy is not complete when a tick
    is computed counts as arrived after the tick.

    Args:
        node: owns the subscriptions.
        subscriptions: the topics; only the large ones are received.
        failed: called once, from the thread, if it ends with an error.
    """

    def __init__(self, node: Node, subscriptions: TopicSubscriptions, failed: Callable[[Exception], None]) -> None:
        self.news = compat.Signal(node)  # sent for each message
        self._subscriptions = subscriptions
        self._topics: Sequence[Topic] = [topic for topic in subscriptions.topics if topic.large]
        self._failed = failed
        self._received: deque[tuple[Topic, ReceivedMessage]] = deque()
        self._raw_subscriber = RawSubscriber()
        self._stopped = threading.Event()
        self._waiter = compat.Waiter(node, len(self._topics))
        self._thread = threading.Thread(target=self._run, name="robocache-large", daemon=True)
        if self._topics:
            self._thread.start()

    def read(self, limit: int) -> list[tuple[Topic, ReceivedMessage]]:
        """The messages received and not yet read, oldest first, at most `limit`."""
        return [self._received.popleft() for _ in range(min(limit, len(self._received)))]

    def destroy(self) -> None:
        """Stop, and release the wait set."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()
        self._waiter.destroy()
        self.news.destroy()

    def _run(self) -> None:
        process.reduce_timer_slack()
        try:
            while not self._stopped.is_set():
                flooded = len(self._received) >= MOST
                for topic in self._topics if not flooded else ():
                    flooded = self._receive(topic) or flooded
                if flooded:
                    self._stopped.wait(PAUSE_S)
                else:
                    self._waiter.wait(IDLE_NS, [topic.subscription for topic in self._topics])
        except Exception as error:
            if not self._stopped.is_set():
                self._failed(error)

    def _receive(self, topic: Topic) -> bool:
        """Receive the messages of a topic; returns whether there may be more."""
        self._subscriptions.resubscribe(topic)
        count = 0
        for message in topic.take(self._raw_subscriber, BATCH):
            self._received.append((topic, message))
            self.news.send()
            count += 1
        return count == BATCH
