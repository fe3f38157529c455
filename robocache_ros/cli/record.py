"""`robocache record`: the episode recorder with the keys of the terminal."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from robocache_ros.cli.terminal import pressed_keys
from robocache_ros.programs import HelpFormatter, divided

if TYPE_CHECKING:
    from robocache_ros.nodes.episode_recorder import EpisodeRecorder

KEYS = {" ": "toggle", "f": "failure", "d": "discard", "r": "rerecord", "q": "quit"}
HELP = "space: start, or end as success; f: end as failure; d: discard; r: discard and record again; q: quit"
ACTIONS = ("start", "success", "failure", "discard", "rerecord", "toggle")


def parser() -> argparse.ArgumentParser:
    """The parser of the command line."""
    made = argparse.ArgumentParser(
        prog="robocache record",
        description=f"Record episodes of a robot's topics. Keys: {HELP}.\n"
        "Without a terminal, each line of stdin is a key, or start, success, failure, discard, rerecord or quit.",
        epilog="Other arguments of ROS come after --ros-args, such as -r /joint_states:=/left/joint_states.",
        formatter_class=HelpFormatter,
    )
    made.add_argument("--spec", "-s", required=True, metavar="FILE", help="The fusion spec (YAML).")
    made.add_argument("--out", "-o", default="recordings", metavar="DIR", help="Folder of the episodes.")
    made.add_argument("--task", default="", metavar="TEXT", help="What the robot does, in words.")
    made.add_argument("--operator", default="", metavar="TEXT", help="Who controls the robot.")
    made.add_argument("--robot", default="", metavar="TEXT", help="Name of the robot.")
    made.add_argument("--extra", nargs="+", default=[], metavar="TOPIC", help="More topics to record.")
    made.add_argument("--runner", default="policy_runner", metavar="NODE", help="Policy runner that is recorded too.")
    made.add_argument("--silent", type=float, default=2.0, metavar="S", help="A stream is silent after S seconds.")
    made.add_argument("--joy", default="", metavar="ACTION=BUTTON,...", help="Buttons of a game pad on /joy.")
    made.add_argument("--pedal", default="", metavar="DEVICE", help="Foot pedal, such as /dev/input/by-id/...")
    made.add_argument("--pedal-keys", default="", metavar="ACTION=KEY,...", help="Its keys, such as toggle=KEY_B.")
    made.add_argument("--sim-time", "--use-sim-time", action="store_true", help="Follow /clock, and record it.")
    return made


def main(arguments: Sequence[str]) -> int:
    """Record until q, the end of stdin, Ctrl-C or SIGTERM; returns the exit status."""
    own, ros = divided(arguments)
    given = parser().parse_args(own)
    from robocache_ros.nodes import episode_recorder

    parameters = {
        "spec": _text(os.path.abspath(given.spec)),
        "out": _text(given.out),
        "task": _text(given.task),
        "operator": _text(given.operator),
        "robot": _text(given.robot),
        "extra": _text(" ".join(given.extra)),
        "runner": _text(given.runner),
        "joy_buttons": _text(given.joy),
        "pedal": _text(given.pedal),
        "silent_s": repr(given.silent),
        "use_sim_time": str(given.sim_time).lower(),
    }
    if given.pedal_keys:
        parameters["pedal_keys"] = _text(given.pedal_keys)
    words = [word for name, value in parameters.items() for word in ("-p", f"{name}:={value}")]
    return episode_recorder.main(["--ros-args", *words, *ros], control=control)


def control(node: EpisodeRecorder, running: Callable[[], bool]) -> bool:
    """Do what keys and lines of stdin say, while it runs; at `quit` and at the end of the lines, it ends."""
    node.get_logger().info(HELP if sys.stdin.isatty() else "actions are lines of stdin")
    for key in pressed_keys(running):
        action = KEYS.get(key, key)
        if action == "quit":
            break
        if action in ACTIONS:
            node.act(action)
        else:
            node.get_logger().warning(f"{key!r} is no action; {HELP}")
    return True


def _text(value: str) -> str:
    """A text as the YAML of a ROS argument."""
    return "'" + value.replace("'", "''") + "'"
