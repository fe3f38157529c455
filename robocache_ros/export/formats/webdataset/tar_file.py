"""Tar files whose bytes depend only on the names and data of their members."""

from __future__ import annotations

import tarfile
from pathlib import Path


def member_bytes(nbytes: int) -> int:
    """Return the bytes of a member of a tar file, given those of its data."""
    return tarfile.BLOCKSIZE * (1 - -nbytes // tarfile.BLOCKSIZE)


class TarWriter:
    """Writes a tar file. Unlike that of Python's tarfile, its memory does not grow with the number of members."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("xb")
        self.path = path
        self.samples = 0

    def write(self, name: str, data: bytes) -> None:
        """Add a file, without owner and time."""
        member = tarfile.TarInfo(name)
        member.size = len(data)
        self._file.write(member.tobuf(tarfile.USTAR_FORMAT))
        self._file.write(data)
        self._file.write(bytes(-len(data) % tarfile.BLOCKSIZE))

    @property
    def nbytes(self) -> int:
        """Bytes written."""
        return self._file.tell()

    def close(self, *, complete: bool = True) -> None:
        """Close the file; if `complete`, with the two empty blocks that mark its end."""
        with self._file:
            if complete:
                self._file.write(bytes(2 * tarfile.BLOCKSIZE))
                self._file.write(bytes(-self._file.tell() % tarfile.RECORDSIZE))
