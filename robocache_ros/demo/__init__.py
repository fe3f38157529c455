"""The demo: replays a recording through a real ROS 2 node, and exports the same recording as a dataset."""

from robocache_ros.demo.show import main

__all__ = ["main"]
