"""Finds recordings: paths, folders that are searched, and globs."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import cast

from robocache_ros.bags.reader import check_files, storage_files
from robocache_ros.bags.storage.metadata import is_stored
from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.export.recordings.remote_search import METADATA, find_remote
from robocache_ros.remote.any_path import is_url

MAX_RECORDINGS = 100_000
MAX_ENTRIES = 1_000_000  # files and folders that a search looks at
MAX_DEPTH = 16  # folders below the folder that is searched

# `rosbag record --split` of ROS 1 writes name_2024-05-01-12-00-00_0.bag, name_2024-05-01-12-10-00_1.bag
_SPLIT_OF_ROS1 = re.compile(r"[0-9]{4}(-[0-9]{2}){5}_[0-9]+(?=\.bag)")
_DIGITS = re.compile(r"([0-9]+)")


def find_recordings(arguments: Iterable[str | Path], *, but: Path | None = None) -> tuple[Path, ...]:
    """Return the recordings that the arguments name, each once, sorted by path with numbers in numeric order.

    A folder is a recording if it has a metadata.yaml, a single storage file, or the split files of a recording named
    after it. Every other folder is searched, with the folders in it; hidden ones are left out. In a glob, `**` stands
    for any number of folders, and a storage file stands for the recording that contains it.

    Args:
        arguments: recordings, folders and globs, also as URLs.
        but: a folder that is not searched, such as the target of an export.

    Errors:
        RoboCacheError: an argument names no recording, or there are more files than the limits allow.
    """
    search = _Search(but)
    found: dict[str, Path] = {}
    for argument in arguments:
        for path in _remote(str(argument), but) if is_url(argument) else search.argument(str(argument)):
            found.setdefault(_real(path), path)
            if len(found) > MAX_RECORDINGS:
                raise RoboCacheError(f"recordings: more than {MAX_RECORDINGS:,}; name fewer")
    local = [path for path in found.values() if not is_url(path)]
    inside = {os.path.realpath(file) for path in local if path.is_dir() for file in storage_files(path)}
    inside |= {real for real, path in found.items() if is_url(path) and str(path.parent) in found}
    return tuple(sorted((path for real, path in found.items() if real not in inside), key=natural))


def _remote(url: str, but: Path | None) -> Iterator[Path]:
    yield from cast("Iterator[Path]", find_remote(url, _is_one_recording, str(but) if is_url(but) else ""))


def _real(path: Path) -> str:
    return str(path) if is_url(path) else os.path.realpath(path)


def natural(path: Path) -> tuple[object, ...]:
    """Return the sort key of a path; `lift_2` comes before `lift_10`."""
    return tuple(tuple(_piece(piece) for piece in _DIGITS.split(part)) for part in path.parts), str(path)


def _piece(text: str) -> tuple[int, int, str]:
    return (0, int(text), "") if text.isascii() and text.isdigit() else (1, 0, text)


def _is_one_recording(folder: Path, names: Sequence[str]) -> bool:
    """Whether storage files of a folder without metadata.yaml are one recording: one file, or its split files."""
    if len(names) <= 1:
        return bool(names)
    ros2 = re.compile(re.escape(folder.name) + r"_(0|[1-9][0-9]*)\.(mcap|db3)(\.zstd)?")
    if all(ros2.fullmatch(name) for name in names):
        return True
    return all(_SPLIT_OF_ROS1.search(name) for name in names) and len({_SPLIT_OF_ROS1.sub("", n) for n in names}) == 1


def _is_recording(folder: Path) -> bool:
    return (folder / METADATA).is_file() and bool(storage_files(folder))


class _Search:
    def __init__(self, but: Path | None) -> None:
        self.but = os.path.realpath(but) if but and not is_url(but) else None
        self.entries = 0

    def argument(self, text: str) -> Iterator[Path]:
        """Yield the recordings that an argument names."""
        path = Path(text)
        if not os.path.lexists(path) and glob.has_magic(text):
            yield from self.matches(text)
            return
        if not path.is_dir():
            check_files(path)
            yield path
            return
        found = list(self.folder(path))
        if not found:
            raise RoboCacheError(
                f"{printable(path)}: no rosbag2 folders and no .mcap, .db3 or .bag files in it; give another folder"
            )
        yield from found

    def matches(self, pattern: str) -> Iterator[Path]:
        found = False
        for match in glob.iglob(os.path.expanduser(pattern), recursive=True):
            self.count()
            path = Path(match)
            if path.is_dir():
                for recording in self.folder(path):
                    found = True
                    yield recording
            elif is_stored(path.name):
                found = True
                yield path.parent if _is_recording(path.parent) and path in storage_files(path.parent) else path
        if not found:
            raise RoboCacheError(f"{printable(pattern)}: matches no recording; correct the pattern")

    def folder(self, root: Path) -> Iterator[Path]:
        """Yield the recordings in a folder and below it."""
        waiting = [(root, 0)]
        seen = set()
        while waiting:
            folder, depth = waiting.pop()
            real = os.path.realpath(folder)
            if real in seen or real == self.but:
                continue
            seen.add(real)  # links can lead back
            folders, files = self.contents(folder)
            stored = [name for name in files if is_stored(name)]
            if (METADATA in files and _is_recording(folder)) or (not folders and _is_one_recording(folder, stored)):
                yield folder
                continue
            yield from (folder / name for name in stored)
            if folders and depth == MAX_DEPTH:
                raise RoboCacheError(
                    f"{printable(folder)}: {MAX_DEPTH} folders deep; give a folder nearer to the recordings"
                )
            waiting += [(folder / name, depth + 1) for name in folders]

    def contents(self, folder: Path) -> tuple[list[str], list[str]]:
        folders: list[str] = []
        files: list[str] = []
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    self.count()
                    if not entry.name.startswith("."):
                        (folders if entry.is_dir() else files).append(entry.name)
        except OSError as error:
            raise RoboCacheError(
                f"{printable(folder)}: cannot be searched: {error.strerror}; check its permissions"
            ) from None
        return folders, files

    def count(self) -> None:
        self.entries += 1
        if self.entries > MAX_ENTRIES:
            raise RoboCacheError(f"recordings: more than {MAX_ENTRIES:,} files to search; name folders nearer to them")
