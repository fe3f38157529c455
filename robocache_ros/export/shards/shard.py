"""A shard: the part of the recordings of an export that one of several machines converts."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from heapq import heapify, heapreplace

from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.export.pieces.make_pieces import size_of
from robocache_ros.export.recordings.planned_recording import PlannedRecording
from robocache_ros.export.recordings.search import MAX_RECORDINGS

_WRITTEN = re.compile(r"([0-9]{1,6})/([0-9]{1,6})")


@dataclass(frozen=True)
class Shard:
    """The shard `index` of `count`.

    Attributes:
        index: 0 to count - 1, as Kubernetes and Slurm number the tasks of a job.
        count: the number of shards.
    """

    index: int
    count: int

    def __post_init__(self) -> None:
        if not 0 <= self.index < self.count <= MAX_RECORDINGS:
            raise RoboCacheError(
                f"shard: {self.index}/{self.count} does not exist; the shards of {self.count} are 0/{self.count} to "
                f"{self.count - 1}/{self.count}"
                if 0 < self.count <= MAX_RECORDINGS
                else f"shard: {self.count:,} shards; use 1 to {MAX_RECORDINGS:,}"
            )

    @classmethod
    def parse(cls, text: str) -> Shard:
        """Read `INDEX/COUNT`, such as `0/32`, the first of 32 shards."""
        written = _WRITTEN.fullmatch(text)
        if not written:
            raise RoboCacheError(
                f"shard: {printable(text, 40)!r} is not INDEX/COUNT; write 0/32 for the first of 32 shards"
            )
        return cls(int(written[1]), int(written[2]))

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"

    def of(self, recordings: Iterable[PlannedRecording]) -> tuple[PlannedRecording, ...]:
        """Return the recordings of this shard, in their order.

        The largest recording goes first, each to the shard with the fewest bytes so far, and of equal ones to the first
        shard. All parts of a recording are in one shard. The same recordings are always divided in the same way.
        """
        recordings = tuple(recordings)
        sizes = {path: size_of(path) for path in dict.fromkeys(recording.path for recording in recordings)}
        shards = [(0, index) for index in range(self.count)]
        heapify(shards)
        own = set()
        for path in sorted(sizes, key=sizes.__getitem__, reverse=True):  # stable: equal sizes stay in their order
            size, index = shards[0]
            heapreplace(shards, (size + max(sizes[path], 1), index))
            if index == self.index:
                own.add(path)
        return tuple(recording for recording in recordings if recording.path in own)
