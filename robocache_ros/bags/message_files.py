"""Message definitions in folders of ROS packages, for recordings that lack them: `<package>/msg/<Type>.msg`."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path

from robocache_ros.decode.cdr.common_types import COMMON
from robocache_ros.decode.cdr.definitions import needed_types
from robocache_ros.decode.limits import MAX_DEFINITION_BYTES, MAX_TYPES
from robocache_ros.errors import RoboCacheError, printable

MAX_ENTRIES = 10_000  # of a folder, that are looked into
_NAME = re.compile(r"([A-Za-z]\w*)/msg/([A-Za-z]\w*)", re.ASCII)


def check_msg_path(folders: Sequence[str | Path]) -> None:
    """Refuse places of message definitions that are not folders."""
    if isinstance(folders, (str, Path)):
        raise RoboCacheError(f"msg_path: {printable(folders)} is one path; give a list of folders")
    for folder in folders:
        if not Path(folder).is_dir():
            raise RoboCacheError(
                f"msg_path: {printable(folder)} is not a folder; give one with ROS packages, <package>/msg/<Type>.msg"
            )


def definitions_in(folders: Sequence[str | Path], types: Iterable[str]) -> dict[str, tuple[str, Path]]:
    """Return the definitions of types, and of the types that they need, where the folders have them.

    Types that are built in are left out.

    Args:
        folders: in the order in which they are searched. Each is a package, or contains packages, or repositories with
            packages, or is what `colcon build` installs into.
        types: such as `control_msgs/msg/DynamicJointState`.

    Returns:
        By type: its text, and its file.
    """
    found: dict[str, tuple[str, Path]] = {}
    wanted = list(types) if folders else []
    while wanted and len(found) < MAX_TYPES:
        name = wanted.pop()
        match = _NAME.fullmatch(name)
        if name in found or name in COMMON or not match:
            continue
        places = (place for folder in folders for place in _places(Path(folder), match[1], f"{match[2]}.msg"))
        if file := next((place for place in places if place.is_file()), None):
            found[name] = _text(file), file
            wanted += needed_types(name, found[name][0])
    return found


def _places(folder: Path, package: str, name: str) -> Iterator[Path]:
    """Yield where the file of a type may be."""
    if folder.absolute().name == package:
        yield folder / "msg" / name
    yield folder / package / "msg" / name
    yield folder / "share" / package / "msg" / name  # the installation of ROS, or a merged one
    yield folder / package / "share" / package / "msg" / name  # an installation of colcon
    with os.scandir(folder) as entries:
        inner = sorted(entry.name for entry in islice(entries, MAX_ENTRIES) if entry.is_dir())
    for repository in inner:
        yield folder / repository / package / "msg" / name


def _text(file: Path) -> str:
    """Return the text of a file."""
    try:
        found = file.stat()
        if not stat.S_ISREG(found.st_mode) or found.st_size > MAX_DEFINITION_BYTES:
            raise RoboCacheError(f"{printable(file)}: not a message definition; check --msg-path")
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise RoboCacheError(f"{printable(file)}: cannot be read ({error.strerror}); check --msg-path") from None
