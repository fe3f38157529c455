"""`bag_player`: publishes the messages of a recording with their serialized bytes unchanged, and /clock."""

from __future__ import annotations

import struct
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import rclpy
from rcl_interfaces.srv import GetParameterTypes
from rclpy.node import Node
from rclpy.signals import SignalHandlerOptions
from rosgraph_msgs.msg import Clock

from robocache_ros.bags.clocks import CLOCK, Timeline
from robocache_ros.bags.player import Options, SteadyClock, parse, play
from robocache_ros.bags.reader import Bag
from robocache_ros.bags.source import RawMessage
from robocache_ros.bags.stats import read_timeline
from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.nodes import middleware, process, transport
from robocache_ros.programs import divided
from robocache_ros.spec import TF_STATIC, load_spec
from robocache_ros.units import NS_PER_S

MATCH_S = 0.5  # longest wait until a reliable subscriber has matched a publisher that has matched it
ANSWER_S = 2.0  # longest wait until the nodes that listen to /clock have found the player
PAUSE_S = 0.2  # pause of sim time at the end, for best effort subscribers, which do not acknowledge
QUEUE_DEPTH = 5000  # messages kept for a slow subscriber; acknowledged messages are freed


@dataclass
class Played:
    """What a replay has published."""

    messages: int = 0
    loops: int = 0
    unheard: tuple[str, ...] = field(default=())  # topics that had no subscriber at the start


class BagPlayer:
    """Publishes the messages of a recording.

    Raises:
        RoboCacheError: a topic is not in the recording, or the package of a message type is not installed.
    """

    def __init__(self, node: Node, bag: Bag, options: Options, stopped: threading.Event | None = None) -> None:
        self._node = node
        self._stopped = stopped or threading.Event()
        self._bag = bag
        self._options = options
        self._last_ns: int | None = None
        bag.require_storage(options.storage)
        self._timeline = read_timeline(bag) if options.clock else Timeline()
        # The name under which each topic is published. The time of the recording replaces a recorded /clock.
        published = {name: topic for name, topic in self._topics().items() if not (options.clock and name == CLOCK)}
        missing = [name for name in published if name not in bag.topics]
        if missing:
            there = printable(", ".join(bag.topics), 100)
            raise RoboCacheError(f"{bag.path}: has no topic {printable(', '.join(missing), 60)}; choose from {there}")
        self._first_ns, self._stop_ns = self._span()
        classes = {name: middleware.load_message_class(bag.topics[name].type) for name in published}
        self.skipped = tuple(name for name, found in classes.items() if found is None)  # their types are not installed
        if self.skipped and (options.topics or options.spec or len(self.skipped) == len(classes)):
            raise _not_installed(bag, self.skipped[0])
        # Topics that were recorded as transient local are published as transient local.
        reliable, latched = middleware.reliable(QUEUE_DEPTH), middleware.latched(QUEUE_DEPTH)
        self._publishers: dict[str, Any] = {
            name: node.create_publisher(
                found, published[name], latched if name == TF_STATIC or bag.topics[name].latched else reliable
            )
            for name, found in classes.items()
            if found is not None
        }
        self._clock: Any = node.create_publisher(Clock, "/clock", reliable) if options.clock else None

    def run(self) -> Played:
        """Replay until the end, or until ROS is shut down."""
        played = Played(unheard=self._wait_for_subscribers())
        unmatched = set(self._publishers) if self._options.wait_s else set()

        def publish(message: RawMessage) -> bool:
            self._publishers[message.topic].publish(message.data)
            self._last_ns = message.log_ns
            played.messages += 1
            if message.topic not in unmatched:
                return False
            # A subscriber that has not matched yet requests the first message a second later; it must arrive in order.
            unmatched.remove(message.topic)
            middleware.wait_acknowledged([self._publishers[message.topic]], MATCH_S)
            return True

        steady = SteadyClock(stopped=self._ended)
        complete = True
        while complete and (self._options.loop or not played.loops):
            messages = self._bag.messages(self._publishers, self._first_ns, self._stop_ns)
            complete = play(
                messages,
                publish,
                first_ns=self._first_ns,
                rate=self._options.rate,
                clock=self._publish_clock if self._clock else None,
                steady=steady,
            )
            played.loops += 1
        if complete and self._clock and self._last_ns is not None:
            self._pause_at(self._last_ns + 1, PAUSE_S)  # all messages of the last time are out
        return played

    def wait_for_acknowledgement(self, timeout_s: float) -> None:
        """Wait until every reliable subscriber has acknowledged all messages, so that none is lost at exit."""
        publishers = [*self._publishers.values(), *([self._clock] if self._clock else [])]
        middleware.wait_acknowledged(publishers, timeout_s)

    def _ended(self) -> bool:
        return self._stopped.is_set() or not self._node.context.ok()

    def _topics(self) -> dict[str, str]:
        """The topics to replay, and the name under which each is published."""
        if self._options.topics or not self._options.spec:
            return {name: name for name in self._options.topics or self._bag.topics}
        here = load_spec(self._options.spec, self._node.get_namespace())
        recorded = load_spec(self._options.spec)
        if all(feed.topic in self._bag.topics for feed in here.feeds):  # recorded in this namespace
            recorded = here
        self._bag.require(recorded)
        static = {TF_STATIC: TF_STATIC} if (here.transforms or here.framed) and TF_STATIC in self._bag.topics else {}
        pairs = zip(recorded.feeds, here.feeds, strict=True)
        return static | {one.topic: other.topic for one, other in pairs if one.topic in self._bag.topics}

    def _span(self) -> tuple[int, int]:
        """Log times of the start and of the end."""
        first_ns = self._bag.start_ns + round(self._options.start_s * NS_PER_S)
        stop_ns = self._bag.stop_ns
        if self._options.duration_s is not None:
            stop_ns = min(stop_ns, first_ns + round(self._options.duration_s * NS_PER_S))
        if not self._bag.start_ns <= first_ns < stop_ns:
            span_s = (self._bag.stop_ns - self._bag.start_ns) / NS_PER_S
            raise RoboCacheError(
                f"{self._bag.path}: has {span_s:.3f} s, none left with start {self._options.start_s:g} s and "
                f"duration {self._options.duration_s} s; give a smaller start or a longer duration"
            )
        return first_ns, stop_ns

    def _wait_for_subscribers(self) -> tuple[str, ...]:
        """Wait until every topic has a subscriber; returns the topics without a subscriber at the timeout."""
        wanted = dict(self._publishers) | ({"/clock": self._clock} if self._clock else {})
        end = time.monotonic() + self._options.wait_s
        while unheard := tuple(name for name, p in wanted.items() if not p.get_subscription_count()):
            if time.monotonic() >= end or self._ended():
                return unheard
            time.sleep(0.02)
        if self._options.wait_s and self._clock:
            self._pause_at(self._first_ns, ANSWER_S, self._found_by_listeners())
        return ()

    def _found_by_listeners(self) -> Callable[[], bool]:
        """A condition: each node that listens to /clock has discovered the player's publisher.

        Best effort subscriptions do not acknowledge. But discovery is in order: a node that answers a request has
        discovered the client that sent it, and the older publisher before it.
        """
        clients: dict[str, Any] = {}  # by service
        answers: dict[str, Any] = {}

        def found() -> bool:
            listeners = self._node.get_subscriptions_info_by_topic(self._clock.topic_name)  # their names may come later
            names = [f"{one.node_namespace.rstrip('/')}/{one.node_name}/get_parameter_types" for one in listeners]
            for name in names:
                if name not in clients:
                    clients[name] = self._node.create_client(GetParameterTypes, name)
                if name not in answers and clients[name].service_is_ready():
                    answers[name] = clients[name].call_async(GetParameterTypes.Request())
            return bool(names) and all(name in answers and answers[name].done() for name in names)

        return found

    def _pause_at(self, now_ns: int, longest_s: float, enough: Callable[[], bool] = lambda: False) -> None:
        """Repeat a sim time, for best effort subscribers of /clock that may lose a message, until it is enough."""
        end = time.monotonic() + longest_s
        while time.monotonic() < end and not self._ended():
            is_enough = enough()  # of what is published from here on
            self._publish_clock(now_ns)
            if is_enough:
                return
            time.sleep(0.01)

    def _publish_clock(self, now_ns: int) -> None:
        """Publish the time of the recording's timeline at a log time."""
        time_ns = self._timeline.at(now_ns)
        self._clock.publish(struct.pack("<4siI", b"\0\1\0\0", *divmod(time_ns, NS_PER_S)))


def _not_installed(bag: Bag, topic: str) -> RoboCacheError:
    name = bag.topics[topic].type
    return RoboCacheError(
        f"{printable(topic, 50)}: its type {printable(name, 50)} is not installed; install the package "
        f"{printable(name.partition('/')[0], 30)}, source its workspace, or select other topics with --topics"
    )


def main(args: Sequence[str] | None = None) -> int:
    """Replay a recording; returns the exit status."""
    process.prepare()
    own, ros = divided(sys.argv[1:] if args is None else args)
    bag_path, options = parse(own)
    transport.use_profile()
    rules = [word for rule in options.remap for word in ("-r", rule)]
    rclpy.init(args=[*ros, "--ros-args", *rules], signal_handler_options=SignalHandlerOptions.NO)
    stopped = process.stop_on_signals()
    node = rclpy.create_node("bag_player")
    log = node.get_logger()
    try:
        with Bag(bag_path) as bag:
            opened = bag.notes
            for note in opened:
                log.warning(note)
            player = BagPlayer(node, bag, options, stopped)
            for name in player.skipped:
                log.warning(f"{_not_installed(bag, name)}; the topic is not replayed")
            span_s = (bag.stop_ns - bag.start_ns) / NS_PER_S
            log.info(f"{bag_path}: {span_s:.1f} s at {options.rate:g}x{', looping' if options.loop else ''}")
            with process.spun(node):  # its parameters and services answer
                played = player.run()
            for note in bag.notes:  # complete now: some damage is found only when the messages are read
                if note not in opened:
                    log.warning(note)
            if played.unheard and options.wait_s and not stopped.is_set():
                log.warning(f"{printable(', '.join(played.unheard), 150)}: no subscriber when the replay started")
            if not stopped.is_set():
                player.wait_for_acknowledgement(2.0)
            log.info(f"{played.messages} messages published")
    except RoboCacheError as error:
        log.error(str(error))
        return 1
    finally:
        process.ignore_sigint()
        node.destroy_node()
        rclpy.try_shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
