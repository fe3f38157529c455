"""What differs between Humble, Jazzy, Kilted and later, and what rclpy does not offer in public."""

from __future__ import annotations

import importlib
import time
from collections.abc import Iterable, Sequence
from typing import Any

from rclpy.callback_groups import CallbackGroup
from rclpy.guard_condition import GuardCondition
from rclpy.node import Node
from rclpy.subscription import Subscription
from rclpy.time import Time

try:
    from rclpy.event_handler import SubscriptionEventCallbacks
except ImportError:  # Humble
    from rclpy.qos_event import SubscriptionEventCallbacks

POLL_NS = 2_000_000  # where no wait set can be had


class OwnThread(CallbackGroup):
    """A group of subscriptions that no executor touches: a thread of their own takes the messages.

    An executor builds its wait set anew for every callback and, in Humble, withholds the message info. Their events are
    not for it either: Fast DDS wakes whoever waits for a subscription's events at each of its messages too, and an
    executor that spins on that takes the interpreter from the thread that would take the message.
    """

    def can_execute(self, entity: object) -> bool:
        """Whether an executor may run it: never."""
        return False

    def beginning_execution(self, entity: object) -> bool:
        """Whether an executor may begin to run it."""
        return self.can_execute(entity)

    def ending_execution(self, entity: object) -> None:
        """Nothing is held."""


class Signal:
    """Wakes a Waiter from another thread."""

    def __init__(self, node: Node) -> None:
        self._condition: Any = GuardCondition(lambda: None, None, node.context)
        self.handle: Any = self._condition.handle

    def send(self) -> None:
        """Wake whoever waits, or the next who does."""
        self._condition.trigger()

    def destroy(self) -> None:
        """Let go of the context."""
        self._condition.destroy()


class Waiter:
    """Waits until one of some subscriptions has a message, or a signal is sent."""

    def __init__(self, node: Node, subscriptions: Iterable[Subscription[Any]], signal: Signal | None = None) -> None:
        self._subscriptions = list(subscriptions)
        self._signal = signal
        try:
            # rclpy.wait_for_message does the same, in every distribution; there is no public way.
            rcl = importlib.import_module("rclpy.impl.implementation_singleton").rclpy_implementation
            self._set: Any = rcl.WaitSet(
                len(self._subscriptions), int(signal is not None), 0, 0, 0, 0, node.context.handle
            )
        except (ImportError, AttributeError, TypeError):
            self._set = None

    def wait(self, timeout_ns: int, among: Sequence[Subscription[Any]] | None = None) -> None:
        """Return when a message is there, or after `timeout_ns`."""
        if timeout_ns <= 0:
            return
        if self._set is None:
            time.sleep(min(timeout_ns, POLL_NS) / 1e9)
            return
        self._set.clear_entities()
        for subscription in self._subscriptions if among is None else among:
            self._set.add_subscription(subscription.handle)
        if self._signal:
            self._set.add_guard_condition(self._signal.handle)
        self._set.wait(timeout_ns)

    def destroy(self) -> None:
        """Let go of the context: a wait set that outlives it keeps its threads."""
        self._subscriptions.clear()
        if self._set is not None:
            self._set.clear_entities()
            self._set.destroy_when_not_in_use()
            self._set = None


def no_events() -> SubscriptionEventCallbacks:
    """Event callbacks of a subscription that has none; the graph tells what they would."""
    return SubscriptionEventCallbacks(use_default_callbacks=False)


class NodeClock:
    """Drives a node's clock in sim time from its own /clock subscription.

    rclpy's time source would take every /clock message a second time, in the executor: half the cost of a fast replay.
    """

    def __init__(self, node: Node) -> None:
        self._clock: Any = node.get_clock()
        source: Any = getattr(node, "_time_source", None)
        self._ours = source is not None and hasattr(self._clock, "set_ros_time_override")
        if self._ours:
            source.detach_node()

    def set(self, now_ns: int) -> None:
        """Put the node's clock to a time."""
        if self._ours:
            self._clock.set_ros_time_override(Time(nanoseconds=now_ns, clock_type=self._clock.clock_type))


def load_message_class(type_name: str) -> type[Any] | None:
    """The class of `package/msg/Type`, None if its package is not installed."""
    package, _, name = type_name.split("/")
    try:
        found: type[Any] | None = getattr(importlib.import_module(f"{package}.msg"), name, None)
    except ImportError:
        return None
    return found
