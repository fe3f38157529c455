"""Adds the checksums of chunks to MCAP files, which rosbags writes without them."""

from __future__ import annotations

import struct
import zlib
from contextlib import closing
from pathlib import Path

from robocache_ros.bags.storage import mcap_records as mcap
from robocache_ros.bags.storage.mcap_scan import chunk_records, file_records
from robocache_ros.remote.held_files import StoredFile

_CHECKSUM_AT = 3 * 8  # in a chunk: after its first and last log time and its size


def add_checksums(path: Path) -> None:
    """Store the checksum of each chunk in a complete file, so that readers detect altered messages.

    Errors:
        RoboCacheError: a chunk is damaged.
    """
    with path.open("r+b") as output, closing(StoredFile(path)) as file:
        for op, start, stop in file_records(file, len(mcap.MAGIC), file.size):
            if op == mcap.CHUNK:
                output.seek(start + _CHECKSUM_AT)
                output.write(struct.pack("<I", zlib.crc32(chunk_records(file, start, stop)[0])))
