"""Recordings of ROS 1, which are told apart and not read."""

from __future__ import annotations

from pathlib import Path

from robocache_ros.errors import RoboCacheError, printable

_MAGIC = b"#ROSBAG V"


def refuse_ros1(path: Path) -> None:
    """Refuse a .bag file of ROS 1, or a folder that has one and no recording of ROS 2; the error names a converter."""
    if path.is_dir():
        inside = sorted(path.iterdir())
        if any(file.suffix in (".mcap", ".db3", ".zstd") for file in inside):
            return
        file = next((file for file in inside if _is_ros1(file)), None)
    else:
        file = path if _is_ros1(path) else None
    if file is not None:
        where = printable(path, 80)
        name = printable(file.name, 24)
        target = printable(file.stem, 20)
        raise RoboCacheError(f"{where}: a ROS 1 bag; convert it: rosbags-convert --src {name} --dst {target}")


def _is_ros1(file: Path) -> bool:
    if file.suffix != ".bag" or not file.is_file():
        return False
    try:
        with file.open("rb") as opened:
            return opened.read(len(_MAGIC)) == _MAGIC
    except OSError:
        return False
