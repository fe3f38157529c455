"""The ROS nodes: lifecycle, parameters, diagnostics, publishers, and the client for policies."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

from robocache_ros.errors import RoboCacheError

# A sourced ROS has priority over the ROS wheels of the `ros` extra, if a machine has both.

# The wheels' start-up hook adds their libraries to LD_LIBRARY_PATH, before or after those of a sourced ROS, and
# restarts Python; it sets this variable to detect that it has already run.
HOOK_DONE = "_ROS_WHEELS_BOOTSTRAP_COMPLETE"
_COMMANDS = ("robocache", "fusion_node", "bag_player", "episode_recorder", "policy_runner", "simulator")


def _wheel_libraries() -> list[str]:
    """The entries of LD_LIBRARY_PATH that the hook adds."""
    entries = os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)
    return [e for e in entries if e == os.path.join(sys.prefix, "lib") or Path(e).match("ros_*.libs")]


def prefer_sourced_ros() -> None:
    """Remove the wheels' libraries from a process whose rclpy is of a sourced ROS; call it before importing rclpy.

    The commands of this package restart without them. In other processes a restart would lose the caller's state.

    Raises:
        RoboCacheError: both are active in a process that is not one of this package's commands.
    """
    spec = importlib.util.find_spec("rclpy")
    libraries = _wheel_libraries()
    if spec is None or not spec.origin or not libraries or HOOK_DONE not in os.environ:
        return
    if Path(spec.origin).resolve().is_relative_to(Path(sys.prefix).resolve()):
        return
    if Path(sys.argv[0]).name in _COMMANDS or any(arg.startswith("robocache_ros") for arg in sys.orig_argv[1:3]):
        entries = os.environ["LD_LIBRARY_PATH"].split(os.pathsep)
        left = os.pathsep.join(e for e in entries if e not in libraries)
        os.execve(sys.executable, sys.orig_argv, os.environ | {"LD_LIBRARY_PATH": left})
    raise RoboCacheError(
        f"rclpy is the sourced ROS's ({spec.origin}), but wheels in {sys.prefix} mix their libraries into it; "
        f"export {HOOK_DONE}=1 before starting Python, or use an environment without the ros extra"
    )


prefer_sourced_ros()  # before any module of this package imports rclpy
