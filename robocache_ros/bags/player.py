"""Replays a recording in its own time, with options."""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from robocache_ros.bags.source import RawMessage
from robocache_ros.bags.write import STORAGES
from robocache_ros.errors import RoboCacheError, printable

# Replay timing: when each message of a recording is published, and the time on /clock.

CLOCK_PERIOD_NS = 5_000_000  # period of /clock between messages, on the steady clock


class SteadyClock:
    """The system's monotonic clock; `stopped` ends a replay."""

    def __init__(self, stopped: Callable[[], bool] = lambda: False) -> None:
        self._stopped = stopped

    def now_ns(self) -> int:
        """Return the current time in nanoseconds."""
        return time.monotonic_ns()

    def sleep_until(self, due_ns: int) -> bool:
        """Sleep until `due_ns`; return False if the replay must stop."""
        while not self._stopped():
            left_ns = due_ns - time.monotonic_ns()
            if left_ns <= 0:
                return True
            time.sleep(min(left_ns, 100_000_000) / 1e9)
        return False


def play(
    messages: Iterable[RawMessage],
    publish: Callable[[RawMessage], bool],
    *,
    first_ns: int,
    rate: float = 1.0,
    clock: Callable[[int], None] | None = None,
    steady: SteadyClock | None = None,
) -> bool:
    """Publish messages at their log times; return False if the replay was stopped.

    The time of each message is computed relative to the first message, so errors do not accumulate. A late message is
    published immediately. With `clock`, the log time of each message is announced immediately before the message, so a
    node in sim time reproduces its arrival to the nanosecond. Between messages the clock continues.

    Args:
        messages: in log order.
        publish: publishes a message; returns True to exclude the time of the call, as if the replay paused meanwhile.
        first_ns: log time at which the replay begins.
        rate: seconds of the recording per second.
        clock: publishes a time of the recording on /clock.
        steady: the clock to wait on.
    """
    speed = check_rate(rate)
    by = steady or SteadyClock()
    begin_ns = by.now_ns()

    def due_ns(log_ns: int) -> int:
        return begin_ns + (log_ns - first_ns) * speed.denominator // speed.numerator

    pulse = 0
    for message in messages:
        due = due_ns(message.log_ns)
        if clock:
            while (next_ns := begin_ns + pulse * CLOCK_PERIOD_NS) < due:
                if next_ns >= by.now_ns() - CLOCK_PERIOD_NS:  # when late, the messages themselves advance the clock
                    if not by.sleep_until(next_ns):
                        return False
                    clock(first_ns + (next_ns - begin_ns) * speed.numerator // speed.denominator)
                pulse += 1
        if not by.sleep_until(due):
            return False
        if clock:
            clock(message.log_ns)
        before_ns = by.now_ns()
        if publish(message):
            begin_ns += by.now_ns() - before_ns
    return True


def check_rate(rate: float) -> Fraction:
    """Return the rate as a fraction; RoboCacheError if it is out of range."""
    if not 0.001 <= rate <= 1000:
        raise RoboCacheError(f"rate: {rate!r} is not between 0.001 and 1000")
    return Fraction(rate).limit_denominator(1_000_000)


_RULE = re.compile(r"[\w/~]+:=[\w/~]+", re.ASCII)  # two names
LONGEST_S = 1e6  # limit for a start, a duration or a wait


@dataclass(frozen=True)
class Options:
    """How a recording is replayed.

    Attributes:
        rate: speed of the replay, in seconds of the recording per second.
        loop: start again at the end.
        clock: publish /clock.
        topics: the topics to replay; empty: those of `spec`, or all.
        spec: the path of a fusion spec, whose topics are replayed, relative ones in the namespace of the player.
        start_s: seconds of the recording to skip.
        duration_s: seconds of the recording to replay; None: all.
        wait_s: how long to wait at most until every topic has a subscriber, in seconds.
        remap: rules of the form from:=to, which rename topics as ROS does.
        storage: how the recording is stored, `mcap` or `sqlite3`; empty: found out.

    Raises:
        RoboCacheError: a number is not finite or out of range, or a rule has another form.
    """

    rate: float = 1.0
    loop: bool = False
    clock: bool = False
    topics: tuple[str, ...] = ()
    spec: str = ""
    start_s: float = 0.0
    duration_s: float | None = None
    wait_s: float = 0.0
    remap: tuple[str, ...] = ()
    storage: str = ""

    def __post_init__(self) -> None:
        """Refuse numbers that are not finite or out of range, and rules of another form."""
        check_rate(self.rate)
        for name, value in (("start", self.start_s), ("duration", self.duration_s), ("wait", self.wait_s)):
            if value is not None and not 0 <= value <= LONGEST_S:  # also refuses NaN
                raise RoboCacheError(f"{name}: {value!r} is not between 0 and {LONGEST_S:g}; give a number of seconds")
        for rule in self.remap:
            if not _RULE.fullmatch(rule):
                raise RoboCacheError(f"remap: {printable(rule, 60)!r} is not from:=to; write /joints:=/left/joints")


def parser() -> argparse.ArgumentParser:
    """The parser of the command line."""
    made = argparse.ArgumentParser(
        prog="bag_player",
        description="Publish the messages of a recording as ROS 2 topics, byte for byte; ROS 1 messages are converted.",
        epilog="Other arguments of ROS come after --ros-args, such as -r __ns:=/robot1.",
    )
    made.add_argument("bag", help="A rosbag2 folder, or a .mcap, .db3 or ROS 1 .bag file.")
    # The second names are those of `ros2 bag play`.
    made.add_argument(
        "--rate", "-r", type=float, default=1.0, help="Speed of the replay; 1.0 is real time (default: %(default)s)."
    )
    made.add_argument("--loop", "-l", action="store_true", help="Start again at the end.")
    made.add_argument("--clock", action="store_true", help="Publish /clock, for nodes with use_sim_time.")
    made.add_argument("--topics", nargs="+", default=[], metavar="TOPIC", help="Replay only these topics.")
    made.add_argument("--spec", default="", metavar="FILE", help="Replay the topics of this fusion spec.")
    made.add_argument(
        "--storage",
        "-s",
        choices=STORAGES,
        default="",
        help="How the recording is stored. Not needed; a recording with another one is refused.",
    )
    made.add_argument("--remap", "-m", nargs="+", default=[], metavar="FROM:=TO", help="Rename these topics.")
    made.add_argument(
        "--start",
        "--start-offset",
        type=float,
        default=0.0,
        metavar="S",
        help="Skip the first S seconds of the recording.",
    )
    made.add_argument(
        "--duration", "--playback-duration", type=float, metavar="S", help="Replay S seconds of the recording."
    )
    made.add_argument(
        "--wait-for-subscribers",
        type=float,
        nargs="?",
        const=10.0,
        default=0.0,
        metavar="S",
        help="Wait until every topic has a subscriber, for S seconds at most (default: %(const)s).",
    )
    return made


def parse(arguments: Sequence[str]) -> tuple[str, Options]:
    """The recording and the options of a command line; an invalid one ends the process with exit code 2."""
    given = parser().parse_args(arguments)
    try:
        return given.bag, Options(
            rate=given.rate,
            loop=given.loop,
            clock=given.clock,
            topics=tuple(given.topics),
            spec=given.spec,
            start_s=given.start,
            duration_s=given.duration,
            wait_s=given.wait_for_subscribers,
            remap=tuple(given.remap),
            storage=given.storage,
        )
    except RoboCacheError as error:
        parser().error(str(error))
