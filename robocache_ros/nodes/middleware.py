"""What differs between ROS releases, and the QoS of topics."""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from rclpy.callback_groups import CallbackGroup
from rclpy.duration import Duration
from rclpy.exceptions import ParameterException
from rclpy.guard_condition import GuardCondition
from rclpy.node import Node
from rclpy.qos import DurabilityPolicy, HistoryPolicy, QoSProfile, ReliabilityPolicy
from rclpy.qos_overriding_options import QoSOverridingOptions
from rclpy.subscription import Subscription

from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.spec import QosSpec

try:
    from rclpy.event_handler import SubscriptionEventCallbacks
except ImportError:  # Humble
    from rclpy.qos_event import SubscriptionEventCallbacks

_MESSAGE_TYPE = re.compile(r"(?P<package>[a-z][a-z0-9_]*)/msg/(?P<name>[A-Z][A-Za-z0-9_]*)", re.ASCII)
POLL_NS = 2_000_000  # period of polling where a wait set is not available


class ManualCallbackGroup(CallbackGroup):
    """A callback group of subscriptions that no executor runs: a separate thread takes the messages.

    An executor rebuilds its wait set for every callback and, in Humble, does not pass on the message info. It does not
    handle the events of these subscriptions either: Fast DDS wakes an executor that waits for the events of a
    subscription at each message too, and the executor then holds the interpreter's lock while the thread needs it.
    """

    def can_execute(self, entity: object) -> bool:
        """Whether an executor may run it: never."""
        return False

    def beginning_execution(self, entity: object) -> bool:
        """Whether an executor may start to run it."""
        return self.can_execute(entity)

    def ending_execution(self, entity: object) -> None:
        """Do nothing."""


def signal(node: Node) -> Any:
    """A guard condition that wakes a Waiter from another thread: `trigger()` also wakes the next thread that waits."""
    return GuardCondition(lambda: None, None, node.context)


class Waiter:
    """Waits until one of at most `most` subscriptions has a message, or a `signal` is triggered."""

    def __init__(self, node: Node, most: int, signal: Any = None) -> None:
        self._signal = signal
        try:
            # rclpy.wait_for_message does the same in every distribution; there is no public interface.
            rcl = importlib.import_module("rclpy.impl.implementation_singleton").rclpy_implementation
            self._set: Any = rcl.WaitSet(most, int(signal is not None), 0, 0, 0, 0, node.context.handle)
        except (ImportError, AttributeError, TypeError):
            self._set = None

    def wait(self, timeout_ns: int, subscriptions: Iterable[Subscription[Any]]) -> None:
        """Return when a message has arrived, or after `timeout_ns`."""
        if timeout_ns <= 0:
            return
        if self._set is None:
            time.sleep(min(timeout_ns, POLL_NS) / 1e9)
            return
        self._set.clear_entities()
        for subscription in subscriptions:
            self._set.add_subscription(subscription.handle)
        if self._signal:
            self._set.add_guard_condition(self._signal.handle)
        self._set.wait(timeout_ns)

    def destroy(self) -> None:
        """Release the wait set: if it outlives its context, the threads of the context do not end."""
        if self._set is not None:
            self._set.clear_entities()
            self._set.destroy_when_not_in_use()
            self._set = None


def no_events() -> Any:
    """Callbacks of a subscription for no event, on a node that another thread may spin.

    An executor of rclpy that meets the handler of an event as the subscription is destroyed raises InvalidHandle.
    """
    return SubscriptionEventCallbacks(use_default_callbacks=False)


def raw_subscription(node: Node, message_class: type[Any], topic: str, qos: QoSProfile) -> Any:
    """A subscription to serialized messages, which a thread takes with a `RawSubscriber`; no executor handles it."""
    return node.create_subscription(
        message_class,
        topic,
        lambda _: None,  # rclpy requires it
        qos,
        callback_group=ManualCallbackGroup(),
        event_callbacks=no_events(),  # `TopicChecks` reads the ROS graph
        raw=True,
    )


def load_message_class(type_name: str) -> type[Any] | None:
    """The class of `package/msg/Type`; None if its package is not installed.

    The name may come from a recording. It must be a valid ROS name, and its package must not be a folder or a file
    in the working directory, which Python would import before an installed package.
    """
    match = _MESSAGE_TYPE.fullmatch(type_name)
    if match is None or _is_beside(match["package"]):
        return None
    package, name = match["package"], match["name"]
    try:
        found: type[Any] | None = getattr(importlib.import_module(f"{package}.msg"), name, None)
    except ImportError:
        return None
    return found


def message_class(type_name: str, where: str) -> type[Any]:
    """The class of `package/msg/Type`; RoboCacheError about the key `where` if its package is not installed."""
    found = load_message_class(type_name)
    if found is None:
        package = type_name.partition("/")[0]
        raise RoboCacheError(
            f"{where}: {type_name} is not installed; install the package {package} or source the workspace it is in"
        )
    return found


def _is_beside(package: str) -> bool:
    """Whether a package would be imported from the working directory although PYTHONPATH does not name it."""
    here = Path.cwd()
    named = [Path(entry).resolve() for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    spec = importlib.util.find_spec(package)
    if spec is None or here in named:
        return False
    files = [*(spec.submodule_search_locations or ()), *([spec.origin] if spec.has_location and spec.origin else [])]
    return any(Path(file).resolve().parent in (here, here / package) for file in files)


SMALL_DEPTH, LARGE_DEPTH = 5000, 500  # messages that are queued for a busy node during a replay
CLOCK_DEPTH = 10_000


def profile(qos: QosSpec) -> QoSProfile:
    """The profile of a spec's `qos`."""
    return QoSProfile(
        history=HistoryPolicy.KEEP_LAST,
        depth=qos.depth,
        reliability=ReliabilityPolicy.RELIABLE if qos.reliability == "reliable" else ReliabilityPolicy.BEST_EFFORT,
        durability=DurabilityPolicy.TRANSIENT_LOCAL
        if qos.durability == "transient_local"
        else DurabilityPolicy.VOLATILE,
    )


def for_replay(requested: QosSpec, *, large: bool) -> QosSpec:
    """Reliable, with a queue deep enough that a fast replay loses no message while the node is busy."""
    return replace(requested, reliability="reliable", depth=max(requested.depth, LARGE_DEPTH if large else SMALL_DEPTH))


def any_best_effort(offered: Iterable[QoSProfile]) -> bool:
    """Whether a publisher offers best effort only, which a reliable subscription does not receive."""
    return any(profile.reliability == ReliabilityPolicy.BEST_EFFORT for profile in offered)


def unmet(requested: QosSpec, offered: QoSProfile) -> str:
    """The QoS policy for which a publisher offers less than is requested; empty if it offers enough."""
    if requested.reliability == "reliable" and offered.reliability == ReliabilityPolicy.BEST_EFFORT:
        return "reliability"
    if requested.durability == "transient_local" and offered.durability == DurabilityPolicy.VOLATILE:
        return "durability"
    return ""


def reliable(depth: int) -> QoSProfile:
    """Reliable, which matches reliable and best effort subscribers."""
    return QoSProfile(depth=depth, reliability=ReliabilityPolicy.RELIABLE)


def wait_acknowledged(publishers: Iterable[Any], timeout_s: float) -> None:
    """Wait until every reliable subscriber of publishers has acknowledged all messages, where rclpy can wait for it."""
    end = time.monotonic() + timeout_s
    for publisher in publishers:
        if wait := getattr(publisher, "wait_for_all_acked", None):
            wait(Duration(seconds=max(0.0, end - time.monotonic())))


def output(create: Callable[..., Any], message_class: type[Any], topic: str, depth: int) -> Any:
    """A reliable publisher whose history, depth and reliability parameters `qos_overrides.<topic>.publisher` change.

    Raises:
        RoboCacheError: such a parameter has no valid value.
    """
    options = QoSOverridingOptions.with_default_policies()
    try:
        return create(message_class, topic, reliable(depth), qos_overriding_options=options)
    except (RuntimeError, ValueError, ParameterException) as error:
        raise RoboCacheError(f"qos_overrides: {printable(error, 150)}; correct the parameter") from None


def latched(depth: int = 1) -> QoSProfile:
    """Reliable and transient local: later subscribers receive the last messages too."""
    return QoSProfile(depth=depth, reliability=ReliabilityPolicy.RELIABLE, durability=DurabilityPolicy.TRANSIENT_LOCAL)


def clock(depth: int = CLOCK_DEPTH) -> QoSProfile:
    """A profile that matches every publisher of /clock, with a queue for one /clock per message of a fast replay."""
    return QoSProfile(depth=depth, reliability=ReliabilityPolicy.BEST_EFFORT)
