"""The programs that are installed: `robocache`, `fusion_node` and `bag_player`.

A program imports its own module only when it starts, so that a missing extra gives one line, and Ctrl-C while modules
load gives no traceback.

Exit codes: 0 success, 1 failure, 2 a missing extra or a mistake in arguments, specs or recordings, 130 interrupted.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module

from robocache_ros.extras import install_hint

INTERRUPTED = 130


def robocache() -> int:
    """The command line."""
    return start("robocache", "robocache_ros.cli.commands")


def fusion_node() -> int:
    """The ROS node that fuses topics."""
    return start("fusion_node", "robocache_ros.nodes.fusion_node")


def bag_player() -> int:
    """The ROS node that replays a recording."""
    return start("bag_player", "robocache_ros.nodes.bag_player")


def start(program: str, module: str) -> int:
    """Import a module, run its `main` and return the exit code."""
    try:
        try:
            code = import_module(module).main()
            sys.stdout.flush()
            return int(code or 0)
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
