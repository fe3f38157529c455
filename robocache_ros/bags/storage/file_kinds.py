"""Checks which files of a path are a recording, and selects their readers."""

from __future__ import annotations

import re
import stat
from pathlib import Path

from robocache_ros.bags.source import Source
from robocache_ros.bags.storage.mcap import McapFile
from robocache_ros.bags.storage.mcap_records import MAGIC as MCAP_MAGIC
from robocache_ros.bags.storage.metadata import storage_files
from robocache_ros.bags.storage.ros1.bag_file import Ros1Bag
from robocache_ros.bags.storage.ros1.bag_records import ANY_VERSION as ROS1_MAGIC
from robocache_ros.bags.storage.sqlite import HEADER as SQLITE_MAGIC
from robocache_ros.bags.storage.sqlite import SqliteFile
from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.remote.remote_path import RemotePath

SUFFIXES = (".mcap", ".db3", ".bag")
# `rosbag record --split` writes name_2024-05-01-12-00-00_0.bag, name_2024-05-01-12-10-00_1.bag
_SPLIT_OF_ROS1 = re.compile(r"([0-9]{4}(-[0-9]{2}){5})?_?[0-9]+(?=\.bag)")


def open_storage(file: Path, *, sampled: bool = False) -> Source:
    """Open a storage file with the reader for its first bytes, or for its name if the bytes are not recognized.

    Args:
        file: the file.
        sampled: of a remote MCAP file, read a few chunks alone.

    Errors:
        RoboCacheError: the file cannot be opened or read.
    """
    if isinstance(file, RemotePath) and file.suffix == ".mcap":  # of others, parts alone are of no use
        return McapFile(file, sampled=sampled)
    try:
        with file.open("rb") as opened:
            head = opened.read(16)
    except OSError as error:
        raise RoboCacheError(f"{file}: cannot be opened: {error.strerror}; check its permissions") from None
    if head.startswith(MCAP_MAGIC):
        return McapFile(file)
    if head.startswith(SQLITE_MAGIC):
        return SqliteFile(file)
    if head.startswith(ROS1_MAGIC) or _is_named_ros1(file):
        return Ros1Bag(file)
    return McapFile(file) if file.suffix == ".mcap" else SqliteFile(file)


def check_files(path: Path) -> None:
    """Refuse a path that is not a recording, by the names and types of its files, without reading messages.

    Errors:
        RoboCacheError: the path does not exist or has another file type, or a storage file is missing or empty.
    """
    if not path.exists():
        raise RoboCacheError(f"{path}: no such recording; give a rosbag2 folder, or a .mcap, .db3 or .bag file")
    if not path.is_dir() and path.suffix not in (*SUFFIXES, ".zstd") and not _is_named_ros1(path):
        raise RoboCacheError(f"{path}: neither a rosbag2 folder nor a .mcap, .db3 or .bag file; give a recording")
    files = storage_files(path)
    if not files:
        inside = next(
            (folder.name for folder in sorted(path.iterdir()) if folder.is_dir() and storage_files(folder)), ""
        )
        hint = f"give a folder in it, such as {printable(inside, 40)}" if inside else "give a recording"
        raise RoboCacheError(f"{path}: not a recording, it has no .mcap, .db3 or .bag file; {hint}")
    if len(files) > 1 and len({_SPLIT_OF_ROS1.sub("", file.name) for file in files if _is_named_ros1(file)}) > 1:
        raise RoboCacheError(
            f"{path}: {len(files)} ROS 1 bags that are not splits of one recording; give one, such as "
            f"{printable(max(files, key=lambda file: file.stat().st_size).name, 40)}"
        )
    missing = [printable(file.name) for file in files if not file.exists()]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise RoboCacheError(f"{path}: its file {printable(missing[0], 60)}{more} is missing; copy the complete folder")
    for file in files:
        status = file.stat()
        if not stat.S_ISREG(status.st_mode):
            raise RoboCacheError(f"{file}: not a regular file; give a recording")
        if not status.st_size:
            raise RoboCacheError(f"{file}: empty; record it again")


def _is_named_ros1(file: Path) -> bool:
    return file.suffix == ".bag" or file.name.endswith(".bag.active")
