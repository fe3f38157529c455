"""`robocache sim`: the simulated robot as a node, or its demonstrations without ROS."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module

from robocache_ros.sim.command import parse, write_demonstrations


def main(arguments: Sequence[str]) -> int:
    """Run the command; returns the exit status."""
    given = parse(arguments)
    if given.out is None:
        return int(import_module("robocache_ros.nodes.simulator").main(arguments))
    write_demonstrations(given.out, given, print)
    return 0
