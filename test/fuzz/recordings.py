"""Small recordings of every storage variant, ways to damage them, and whether what is lost is stated."""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from robocache_ros.bags.fuse import BagRun
from robocache_ros.bags.reader import UNCHECKED, Bag
from robocache_ros.bags.write import write_bag
from robocache_ros.errors import RoboCacheError
from robocache_ros.spec import FusionSpec, load_spec
from test.fuzz import outcomes
from test.fuzz.mcap_writer import McapLayout, write_mcap
from test.fuzz.messages import numbers, pose
from test.fuzz.outcomes import FAILURES, LINE, Case, cases, counted
from test.ros1_bags import write_ros1_bag

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
    command = {"topic": "/arm/command", "type": ARRAY, "dim": 2, "align": "hold", "max_age_ms": 200, "role": "action"}
    position = {"topic": "/arm/pose", "type": POSE, "field": "pose.position", "max_gap_ms": 60}
    return load_spec({"robocache": 1, "rate_hz": 50, "streams": {"position": position, "command": command}})


def messages() -> list[tuple[str, int, bytes]]:
    """Two seconds of a 50 Hz pose, logged 5 ms late, and of a 20 Hz command."""
    found = [("/arm/pose", START_NS + (20 * k + 5) * MS, pose(START_NS + 20 * k * MS, 0.1 * k)) for k in range(100)]
    found += [("/arm/command", START_NS + 50 * k * MS, numbers(k, -k)) for k in range(40)]
    return sorted(found, key=lambda message: message[1])


def make(variant: str, folder: Path) -> Recording:
    """Write the undamaged recording of a variant into a new folder."""
    if variant in BAG_VARIANTS:
        storage, compression = BAG_VARIANTS[variant]
        write_bag(folder, TYPES, messages(), storage=storage, compression=compression)
        file = next(f for f in folder.iterdir() if f.suffix != ".yaml")
        return Recording(folder, file, file.read_bytes())
    folder.mkdir(parents=True)
    if variant in MCAP_VARIANTS:
        file = folder / "lift.mcap"
        file.write_bytes(write_mcap({t: (kind, "") for t, kind in TYPES.items()}, messages(), MCAP_VARIANTS[variant]))
    else:
        file, compression = folder / "lift.bag", ROS1_VARIANTS[variant]
        write_ros1_bag(file, TYPES, messages(), compression=compression, chunk_bytes=ROS1_CHUNK_BYTES)
    return Recording(file, file, file.read_bytes())


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


# Damaged recordings: each is read like the undamaged one, refused in one line, or read with the difference stated.


GOOD = ("identical", "refused", "stated")
NO_CHECKSUM = "stated (no checksums)"  # a message or its time was altered, and its integrity is stated as unknown
BAD = ("unstated", *FAILURES)


@dataclass(frozen=True)
class Reading:
    """The result of reading a recording."""

    messages: tuple[tuple[str, int, bytes], ...]
    frames: str  # digest of the fused ticks; an error's text where there are none
    counters: str
    notes: tuple[str, ...]
    integrity: str


def read(path: Path) -> Reading:
    """Read a recording and fuse it."""
    with Bag(path) as bag:
        messages = tuple((m.topic, m.log_ns, bytes(m.data)) for m in bag.messages())
        digest = hashlib.sha256()
        try:
            run = BagRun(bag, fusion_spec(), trim=False)
            for part in run.frames():
                for array in (part.ticks_ns, part.valid, part.fused.numpy()):
                    digest.update(array.tobytes())
            frames, counters = digest.hexdigest(), str(run.counters)
        except RoboCacheError as error:
            frames, counters = f"refused: {error}", ""
        return Reading(messages, frames, counters, tuple(bag.notes), bag.integrity)


def _compare(expected: Reading, found: Reading) -> tuple[str, str]:
    if (found.messages, found.frames) == (expected.messages, expected.frames):
        return "identical", "; ".join(found.notes)
    if found.frames.startswith("refused: "):
        return "refused", found.frames
    if set(found.notes) - set(expected.notes):
        long = [note for note in found.notes if len(note) > LINE or not note.isprintable()]
        return ("long error", long[0]) if long else ("stated", "; ".join(found.notes))
    counts = [Counter(topic for topic, _, _ in reading.messages) for reading in (expected, found)]
    if found.integrity == UNCHECKED and counts[0] == counts[1]:
        return NO_CHECKSUM, ""
    return "unstated", f"{len(found.messages)} of {len(expected.messages)} messages, frames {found.frames[:12]}"


class Judge(outcomes.Judge):
    """Damages recordings in a separate folder."""

    def __init__(self, folder: Path) -> None:
        self._recordings = {v: make(v, folder / f"v{index}") for index, v in enumerate(VARIANTS)}
        self.undamaged = {variant: read(recording.path) for variant, recording in self._recordings.items()}

    def judge(self, case: Case) -> tuple[str, str]:
        """The outcome of a case: a word of GOOD or BAD or NO_CHECKSUM, and the text that goes with it."""
        recording = self._recordings[case.kind]
        recording.file.write_bytes(damaged(recording.data, case.damage, case.seed))
        try:
            return _compare(self.undamaged[case.kind], read(recording.path))
        except RoboCacheError as error:
            text = str(error).replace(str(recording.path.parent), "")
            return ("refused" if len(text) <= LINE and text.isprintable() else "long error"), text
        finally:
            recording.file.write_bytes(recording.data)


def run(count: int) -> dict[str, Any]:
    """Damage `count` recordings and count the outcomes; see `counted`."""
    return counted(Judge, cases(count, VARIANTS, DAMAGES), "variant", (*GOOD, NO_CHECKSUM), BAD)
