"""Where the members of a tar file are, so that each is read without those before it."""

from __future__ import annotations

import os
import tarfile
from functools import lru_cache
from typing import NamedTuple

from robocache_ros.datasets.episode_source import DatasetError
from robocache_ros.errors import printable
from robocache_ros.untrusted_files import DatasetFile, open_file

MAX_MEMBERS = 4_000_000  # of a file
MEMBER_BYTES = 1 << 30
OPEN_FILES = 16  # whose members are kept


class Place(NamedTuple):
    """The place of a member's data in the file, in bytes."""

    start: int
    size: int


@lru_cache(maxsize=OPEN_FILES)
def tar_members(path: DatasetFile, process: int) -> dict[str, Place]:
    """Return the members of a file by name.

    Errors:
        DatasetError: the file is missing, damaged or too large, or has a member that is not a file.
    """
    found: dict[str, Place] = {}
    at = 0
    try:
        size = path.stat().st_size
        with open_file(path) as file:
            while (head := file.read(tarfile.BLOCKSIZE)) and any(head):
                member = tarfile.TarInfo.frombuf(head, "utf-8", "strict")
                at += tarfile.BLOCKSIZE
                if not member.isreg() or not 0 <= member.size <= MEMBER_BYTES or len(found) == MAX_MEMBERS:
                    raise tarfile.TarError(f"{printable(member.name, 40)} is not a small file")
                if at + member.size > size:
                    raise tarfile.TarError(f"it ends within {printable(member.name, 40)}")
                found[member.name] = Place(at, member.size)
                at += -(-member.size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE
                file.seek(at)
    except (OSError, tarfile.TarError, ValueError) as error:
        reason = "not there" if isinstance(error, FileNotFoundError) else f"damaged ({printable(error, 80)})"
        raise DatasetError(f"{printable(path)}: {reason}; get the file again") from None
    return found


def read_members(path: DatasetFile, names: list[str]) -> list[bytes]:
    """Return the data of members.

    Errors:
        DatasetError: a member or the file is missing or damaged, or they take more memory than `MEMBER_BYTES`.
    """
    places = tar_members(path, os.getpid())
    if missing := [name for name in names if name not in places]:
        raise DatasetError(f"{printable(path)}: has no member {printable(missing[0], 60)}; get the file again")
    total = sum(places[name].size for name in names)
    if total > MEMBER_BYTES:
        shown = printable(names[0], 60)
        raise DatasetError(f"{printable(path)}: {shown} and others: {total:,} bytes; at most {MEMBER_BYTES:,} are read")
    try:
        with open_file(path) as file:
            found = []
            for name in names:
                file.seek(places[name].start)
                found.append(file.read(places[name].size))
    except OSError as error:
        raise DatasetError(f"{printable(path)}: cannot be read ({error.strerror}); get the file again") from None
    return found
