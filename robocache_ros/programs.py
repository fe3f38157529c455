"""The programs that are installed: `robocache` and the ROS nodes.

A program imports its own module only when it starts, so that a missing extra gives one line, and Ctrl-C while modules
load gives no traceback. `run` is also for programs outside of the package, such as the examples.

Exit codes: 0 success, 1 failure, 2 a missing extra or a mistake in arguments, specs or recordings, 130 interrupted.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module

from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.extras import install_hint

INTERRUPTED = 130
LINE_CHARACTERS = 180


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """The help of a program: its description as it is written, and the default of each option that has one."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        if action.default is None or isinstance(action.default, bool) or action.default == argparse.SUPPRESS:
            return action.help
        return f"{action.help or ''} (default: %(default)s)".strip()


def divided(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the arguments of a program and those of ROS, which are between `--ros-args` and `--`.

    Unlike rclpy's `remove_ros_args` this leaves the rules of an option `--remap` alone.
    """
    own: list[str] = []
    ros: list[str] = []
    for word in arguments:
        of_ros = word == "--ros-args" or bool(ros and ros[-1] != "--")
        (ros if of_ros else own).append(word)
    return own, ros


def robocache() -> int:
    """The command line."""
    return start("robocache", "robocache_ros.cli.commands")


def fusion_node() -> int:
    """The ROS node that fuses topics."""
    return start("fusion_node", "robocache_ros.nodes.fusion_node")


def policy_runner() -> int:
    """The ROS node that runs a policy."""
    return start("policy_runner", "robocache_ros.nodes.policy_runner")


def bag_player() -> int:
    """The ROS node that replays a recording."""
    return start("bag_player", "robocache_ros.nodes.bag_player")


def episode_recorder() -> int:
    """The ROS node that records episodes."""
    return start("episode_recorder", "robocache_ros.nodes.episode_recorder")


def simulator() -> int:
    """The ROS node that simulates a robot."""
    return start("simulator", "robocache_ros.nodes.simulator")


def start(program: str, module: str) -> int:
    """Import a module, run its `main` and return the exit code."""
    return run(program, lambda: import_module(module).main())


def run(program: str, main: Callable[[], int | None]) -> int:
    """Run a program and return its exit code. A mistake and a missing extra are a line on stderr.

    Args:
        program: its name, with which the line begins.
        main: returns an exit code; None is 0.
    """
    try:
        try:
            code = main()
            sys.stdout.flush()
            return int(code or 0)
        except RoboCacheError as error:
            sys.stderr.write(f"{program}: {printable(error, LINE_CHARACTERS)}\n")
            return 2
        except ImportError as error:
            if (hint := install_hint(error)) is None:
                raise
            sys.stderr.write(f"{program}: {hint}\n")
            return 2
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # the reader of the output has exited, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
