"""Small recordings of every storage variant, and ways to damage them."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from robocache_ros.bags.write import write_bag, write_ros1_bag
from robocache_ros.bench.hostile.mcap_writer import McapLayout, write_mcap
from robocache_ros.spec import FusionSpec, load_spec

START_NS = 1_700_000_000_000_000_000
MS = 1_000_000
POSE, ARRAY = "geometry_msgs/msg/PoseStamped", "std_msgs/msg/Float64MultiArray"
TYPES = {"/arm/pose": POSE, "/arm/command": ARRAY}
SQLITE_PAGE = 4096

MCAP_VARIANTS = {
    "mcap": McapLayout(),
    "mcap, zstd chunks": McapLayout(compression="zstd"),
    "mcap, lz4 chunks": McapLayout(compression="lz4"),
    "mcap without chunks": McapLayout(chunk_messages=0),
    "mcap without summary": McapLayout(summary=False),
}
BAG_VARIANTS = {
    "mcap, zstd file": ("mcap", "file"),
    "sqlite3": ("sqlite3", "none"),
    "sqlite3, zstd file": ("sqlite3", "file"),
    "sqlite3, zstd messages": ("sqlite3", "message"),
}
ROS1_VARIANTS = {"ROS 1 bag": "none", "ROS 1 bag, lz4 chunks": "lz4", "ROS 1 bag, bz2 chunks": "bz2"}
ROS1_CHUNK_BYTES = 2000
VARIANTS = (*MCAP_VARIANTS, *BAG_VARIANTS, *ROS1_VARIANTS)


@dataclass(frozen=True)
class Recording:
    """An undamaged recording: what is opened, and the file in it that is damaged."""

    path: Path
    file: Path
    data: bytes


def fusion_spec() -> FusionSpec:
    """The spec with which the recordings are fused."""
    streams = {
        "position": {"topic": "/arm/pose", "type": POSE, "field": "pose.position", "max_gap_ms": 60},
        "command": {
            "topic": "/arm/command",
            "type": ARRAY,
            "dim": 2,
            "align": "hold",
            "max_age_ms": 200,
            "role": "action",
        },
    }
    return load_spec({"robocache": 1, "rate_hz": 50, "streams": streams})


def messages() -> list[tuple[str, int, bytes]]:
    """Two seconds of a 50 Hz pose, logged 5 ms late, and of a 20 Hz command."""
    found = []
    for k in range(100):
        seconds, nanoseconds = divmod(START_NS + 20 * k * MS, 10**9)
        pose = struct.pack("<iII4x7d", seconds, nanoseconds, 1, 0.1 * k, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0)
        found.append(("/arm/pose", START_NS + (20 * k + 5) * MS, b"\0\1\0\0" + pose))
    commands = (b"\0\1\0\0" + struct.pack("<III4x2d", 0, 0, 2, k, -k) for k in range(40))
    found += [("/arm/command", START_NS + 50 * k * MS, command) for k, command in enumerate(commands)]
    return sorted(found, key=lambda message: message[1])


def make(variant: str, folder: Path) -> Recording:
    """Write the undamaged recording of a variant into a new folder."""
    if variant in MCAP_VARIANTS:
        folder.mkdir(parents=True)
        file = folder / "lift.mcap"
        file.write_bytes(write_mcap({t: (kind, "") for t, kind in TYPES.items()}, messages(), MCAP_VARIANTS[variant]))
        return Recording(file, file, file.read_bytes())
    if variant in ROS1_VARIANTS:
        folder.mkdir(parents=True)
        file = folder / "lift.bag"
        write_ros1_bag(file, TYPES, messages(), compression=ROS1_VARIANTS[variant], chunk_bytes=ROS1_CHUNK_BYTES)
        return Recording(file, file, file.read_bytes())
    storage, compression = BAG_VARIANTS[variant]
    write_bag(folder, TYPES, messages(), storage=storage, compression=compression)
    file = next(f for f in folder.iterdir() if f.suffix != ".yaml")
    return Recording(folder, file, file.read_bytes())


def _cut(data: bytearray, rng: random.Random) -> None:
    del data[rng.randrange(len(data)) :]


def _flip(data: bytearray, rng: random.Random) -> None:
    for _ in range(rng.randint(1, 3)):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def _zero(data: bytearray, rng: random.Random) -> None:
    start = rng.randrange(len(data))
    stop = min(start + (1 << rng.randint(0, 12)), len(data))
    data[start:stop] = bytes(stop - start)


def _summary(data: bytearray, rng: random.Random) -> None:
    """Flip one bit of what describes the rest: the end of an mcap file or a bag, the first pages of an SQLite file."""
    if data.startswith(b"SQLite"):
        place = rng.randrange(min(6 * SQLITE_PAGE, len(data)))
    else:
        place = len(data) - 1 - rng.randrange(max(len(data) // 8, 1))
    data[place] ^= 1 << rng.randrange(8)


DAMAGES: dict[str, Callable[[bytearray, random.Random], None]] = {
    "cut": _cut,
    "bits flipped": _flip,
    "block zeroed": _zero,
    "bit flipped in the summary": _summary,
}


def damaged(data: bytes, damage: str, seed: int) -> bytes:
    """A damaged copy; the same for the same seed."""
    found = bytearray(data)
    DAMAGES[damage](found, random.Random(f"{damage} {seed}"))
    return bytes(found)
