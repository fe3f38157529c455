"""The options of a replay, and the command line of `bag_player`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

from robocache_ros.bags.player import check_rate
from robocache_ros.errors import RoboCacheError

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

    Raises:
        RoboCacheError: a number is not finite or out of range.
    """

    rate: float = 1.0
    loop: bool = False
    clock: bool = False
    topics: tuple[str, ...] = ()
    spec: str = ""
    start_s: float = 0.0
    duration_s: float | None = None
    wait_s: float = 0.0

    def __post_init__(self) -> None:
        """Refuse numbers that are not finite or out of range."""
        check_rate(self.rate)
        for name, value in (("start", self.start_s), ("duration", self.duration_s), ("wait", self.wait_s)):
            if value is not None and not 0 <= value <= LONGEST_S:  # also refuses NaN
                raise RoboCacheError(f"{name}: {value!r} is not between 0 and {LONGEST_S:g}; give a number of seconds")


def parser() -> argparse.ArgumentParser:
    """The parser of the command line."""
    made = argparse.ArgumentParser(
        prog="bag_player",
        description="Publish the messages of a recording as ROS 2 topics, byte for byte; ROS 1 messages are converted.",
    )
    made.add_argument("bag", help="A rosbag2 folder, or a .mcap, .db3 or ROS 1 .bag file.")
    made.add_argument(
        "--rate", type=float, default=1.0, help="Speed of the replay; 1.0 is real time (default: %(default)s)."
    )
    made.add_argument("--loop", action="store_true", help="Start again at the end.")
    made.add_argument("--clock", action="store_true", help="Publish /clock, for nodes with use_sim_time.")
    made.add_argument("--topics", nargs="+", default=[], metavar="TOPIC", help="Replay only these topics.")
    made.add_argument("--spec", default="", metavar="FILE", help="Replay the topics of this fusion spec.")
    made.add_argument(
        "--start", type=float, default=0.0, metavar="S", help="Skip the first S seconds of the recording."
    )
    made.add_argument("--duration", type=float, metavar="S", help="Replay S seconds of the recording.")
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
        )
    except RoboCacheError as error:
        parser().error(str(error))
