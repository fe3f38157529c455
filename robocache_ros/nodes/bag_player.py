"""`bag_player`: replays a rosbag2 over real DDS, its serialized bytes as they are, with /clock."""

from __future__ import annotations

import argparse
import struct
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import rclpy
from rclpy.duration import Duration
from rclpy.node import Node
from rclpy.signals import SignalHandlerOptions
from rclpy.utilities import remove_ros_args
from rosgraph_msgs.msg import Clock

from robocache_ros.bags.player import SteadyClock, check_rate, play
from robocache_ros.bags.reader import Bag
from robocache_ros.bags.source import RawMessage
from robocache_ros.errors import RoboCacheError
from robocache_ros.nodes import compat, process, qos
from robocache_ros.spec import TF_STATIC

NS_PER_S = 1_000_000_000
SETTLE_S = 0.5  # at most, for a reliable reader to match a writer after it has been matched
HOLD_S = 0.2  # that sim time stands at the beginning and at the end, for best-effort readers, of which nobody hears
DEPTH = 5000  # messages kept for a reader that is slow; what is acknowledged is let go


@dataclass(frozen=True)
class Options:
    """How a recording is replayed; times in seconds of it."""

    rate: float = 1.0
    loop: bool = False
    clock: bool = False
    topics: tuple[str, ...] = ()  # none: all
    start_s: float = 0.0
    duration_s: float | None = None
    wait_s: float = 0.0  # at most so long for every topic to have a subscriber


@dataclass
class Played:
    """What a replay has sent."""

    messages: int = 0
    loops: int = 0
    unheard: tuple[str, ...] = field(default=())  # topics that had no subscriber at the start


class BagPlayer:
    """Publishes the messages of a recording.

    Args:
        node: whose publishers they are.
        bag: an open recording.
        options: how.
        stopped: ends the replay when it is set.

    Raises:
        RoboCacheError: a topic that is not in it, or a message type whose package is not installed.
    """

    def __init__(self, node: Node, bag: Bag, options: Options, stopped: threading.Event | None = None) -> None:
        self._node = node
        self._stopped = stopped or threading.Event()
        self._bag = bag
        self._options = options
        self._last_ns: int | None = None
        check_rate(options.rate)
        names = options.topics or tuple(bag.topics)
        missing = [name for name in names if name not in bag.topics]
        if missing:
            raise RoboCacheError(f"{bag.path}: does not hold {', '.join(missing)}; it holds {', '.join(bag.topics)}")
        self._first_ns, self._stop_ns = self._span()
        classes = {name: _message_class(bag, name) for name in names}
        # What was kept for later subscribers is kept again.
        reliable, latched = qos.reliable(DEPTH), qos.latched(DEPTH)
        self._publishers: dict[str, Any] = {
            name: node.create_publisher(
                found, name, latched if name == TF_STATIC or bag.topics[name].latched else reliable
            )
            for name, found in classes.items()
        }
        self._clock: Any = node.create_publisher(Clock, "/clock", reliable) if options.clock else None

    def run(self) -> Played:
        """Replay, until the end, or until ROS is shut down."""
        played = Played(unheard=self._wait_for_subscribers())

        unmet = set(self._publishers) if self._options.wait_s else set()

        def publish(message: RawMessage) -> bool:
            self._publishers[message.topic].publish(message.data)
            self._last_ns = message.log_ns
            played.messages += 1
            if message.topic not in unmet:
                return False
            # A reader that has yet to match asks for the first message again, a second later; it shall be in its place.
            unmet.remove(message.topic)
            self._wait_acknowledged([self._publishers[message.topic]], SETTLE_S)
            return True

        steady = SteadyClock(stopped=self._ended)
        whole = True
        while whole and (self._options.loop or not played.loops):
            messages = self._bag.messages(self._publishers, self._first_ns, self._stop_ns)
            whole = play(
                messages,
                publish,
                first_ns=self._first_ns,
                rate=self._options.rate,
                clock=self._tell_time if self._clock else None,
                steady=steady,
            )
            played.loops += 1
        if whole and self._clock and self._last_ns is not None:
            self._hold_time(self._last_ns)
        return played

    def wait_for_acknowledgement(self, timeout_s: float) -> None:
        """Return when every reliable subscriber has what was sent, so that nothing is lost by leaving."""
        self._wait_acknowledged([*self._publishers.values(), *([self._clock] if self._clock else [])], timeout_s)

    def _ended(self) -> bool:
        return self._stopped.is_set() or not self._node.context.ok()

    def _span(self) -> tuple[int, int]:
        """Log times to begin and to end at."""
        first_ns = self._bag.start_ns + round(self._options.start_s * NS_PER_S)
        stop_ns = self._bag.stop_ns
        if self._options.duration_s is not None:
            stop_ns = min(stop_ns, first_ns + round(self._options.duration_s * NS_PER_S))
        if not self._bag.start_ns <= first_ns < stop_ns:
            whole_s = (self._bag.stop_ns - self._bag.start_ns) / NS_PER_S
            raise RoboCacheError(
                f"start, duration: {self._options.start_s:g} s and {self._options.duration_s} s leave nothing "
                f"of the {whole_s:.3f} s of {self._bag.path}"
            )
        return first_ns, stop_ns

    def _wait_for_subscribers(self) -> tuple[str, ...]:
        """Wait until every topic has a subscriber; returns those that have none when the time is up."""
        wanted = dict(self._publishers) | ({"/clock": self._clock} if self._clock else {})
        end = time.monotonic() + self._options.wait_s
        while unheard := tuple(name for name, p in wanted.items() if not p.get_subscription_count()):
            if time.monotonic() >= end or self._ended():
                return unheard
            time.sleep(0.02)
        if self._options.wait_s and self._clock:
            self._hold_time(self._first_ns)
        return ()

    def _hold_time(self, now_ns: int) -> None:
        """Let sim time stand, until best-effort readers of /clock have matched, or have got the last of it."""
        end = time.monotonic() + HOLD_S
        while time.monotonic() < end and not self._ended():
            self._tell_time(now_ns)
            time.sleep(0.01)

    def _wait_acknowledged(self, publishers: list[Any], timeout_s: float) -> None:
        end = time.monotonic() + timeout_s
        for publisher in publishers:
            wait = getattr(publisher, "wait_for_all_acked", None)
            if wait:
                wait(Duration(seconds=max(0.0, end - time.monotonic())))

    def _tell_time(self, now_ns: int) -> None:
        self._clock.publish(struct.pack("<4siI", b"\0\1\0\0", *divmod(now_ns, NS_PER_S)))


def _message_class(bag: Bag, topic: str) -> type[Any]:
    name = bag.topics[topic].type
    found = compat.load_message_class(name)
    if found is None:
        package = name.partition("/")[0]
        raise RoboCacheError(
            f"{topic}: its type {name} is not installed; install the package {package}, source the workspace it is in, "
            f"or choose others with --topics"
        )
    return found


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(prog="bag_player", description=__doc__)
    made.add_argument("bag", help="rosbag2 folder, .mcap or .db3 file")
    made.add_argument("--rate", type=float, default=1.0, help="seconds of the recording in a second (%(default)s)")
    made.add_argument("--loop", action="store_true", help="begin again at the end")
    made.add_argument("--clock", action="store_true", help="publish /clock, for nodes with use_sim_time")
    made.add_argument("--topics", nargs="+", default=[], metavar="TOPIC", help="only these")
    made.add_argument("--start", type=float, default=0.0, metavar="S", help="begin so many seconds into it")
    made.add_argument("--duration", type=float, metavar="S", help="end after so many seconds of it")
    made.add_argument(
        "--wait-for-subscribers",
        type=float,
        nargs="?",
        const=10.0,
        default=0.0,
        metavar="S",
        help="begin when every topic has a subscriber, or after so many seconds (%(const)s)",
    )
    return made


def main(args: Sequence[str] | None = None) -> int:
    """Replay a recording; returns the exit code."""
    process.prepare()
    argv = list(sys.argv if args is None else ["bag_player", *args])
    given = parser().parse_args(remove_ros_args(argv)[1:])
    options = Options(
        rate=given.rate,
        loop=given.loop,
        clock=given.clock,
        topics=tuple(given.topics),
        start_s=given.start,
        duration_s=given.duration,
        wait_s=given.wait_for_subscribers,
    )
    rclpy.init(args=argv, signal_handler_options=SignalHandlerOptions.NO)
    stopped = process.stop_on_signals()
    node = rclpy.create_node("bag_player")
    log = node.get_logger()
    try:
        with Bag(given.bag) as bag:
            for note in bag.notes:
                log.warning(note)
            player = BagPlayer(node, bag, options, stopped)
            span_s = (bag.stop_ns - bag.start_ns) / NS_PER_S
            log.info(f"{given.bag}: {span_s:.1f} s at {options.rate:g}x{', looping' if options.loop else ''}")
            played = player.run()
            if played.unheard and options.wait_s:
                log.warning(f"nobody listened to {', '.join(played.unheard)} when it began")
            if not stopped.is_set():
                player.wait_for_acknowledgement(2.0)
            log.info(f"{played.messages} messages sent")
    except RoboCacheError as error:
        log.error(str(error))
        return 1
    finally:
        node.destroy_node()
        rclpy.try_shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
