"""The index of one stream's samples: stamps in order, when each arrived, and the slot that holds its payload."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Int64 = NDArray[np.int64]


class Track:
    """Samples sorted by stamp. Payloads stay in the slot they were given; only this index is ever moved.

    Args:
        capacity: slots there are.
        growing: double the slots when they are used up, instead of giving up the oldest sample.
    """

    def __init__(self, capacity: int, *, growing: bool = False) -> None:
        self.capacity = capacity
        self.growing = growing
        self._rows = np.empty((3, 2 * capacity), np.int64)  # stamps, arrivals, slots; twice as long, to move seldom
        self.clear()

    def clear(self) -> None:
        """Forget every sample."""
        self._start = self._stop = 0
        self._newest = -(2**63)
        self._free = list(range(self.capacity - 1, -1, -1))

    def __len__(self) -> int:
        return self._stop - self._start

    @property
    def stamps_ns(self) -> Int64:
        """(S,) int64, strictly rising."""
        return self._rows[0, self._start : self._stop]

    @property
    def arrivals_ns(self) -> Int64:
        """(S,) int64."""
        return self._rows[1, self._start : self._stop]

    @property
    def slots(self) -> Int64:
        """(S,) int64."""
        return self._rows[2, self._start : self._stop]

    @property
    def full(self) -> bool:
        """Whether the next sample costs the oldest one its place."""
        return not self._free and not self.growing

    def holds(self, stamp_ns: int) -> bool:
        """Whether there is a sample of that stamp."""
        if stamp_ns > self._newest:
            return False
        row = int(np.searchsorted(self.stamps_ns, stamp_ns))
        return row < len(self) and int(self.stamps_ns[row]) == stamp_ns

    def insert(self, stamp_ns: int, arrival_ns: int) -> int:
        """Put a new stamp into its place; returns the slot for its payload."""
        if not self._free:
            if self.growing:
                self._free = list(range(2 * self.capacity - 1, self.capacity - 1, -1))
                self.capacity *= 2
            else:
                self.drop(0)
        if self._stop == self._rows.shape[1]:
            self._make_room()
        slot = self._free.pop()
        row = self._stop
        if stamp_ns < self._newest:
            row = self._start + int(np.searchsorted(self.stamps_ns, stamp_ns))
            self._rows[:, row + 1 : self._stop + 1] = self._rows[:, row : self._stop].copy()
        else:
            self._newest = stamp_ns
        self._rows[0, row], self._rows[1, row], self._rows[2, row] = stamp_ns, arrival_ns, slot
        self._stop += 1
        return slot

    def drop(self, row: int) -> int:
        """Take out one sample; returns the slot it leaves."""
        at = self._start + row
        slot = int(self._rows[2, at])
        self._free.append(slot)
        if row == 0:
            self._start += 1
        else:
            self._rows[:, at : self._stop - 1] = self._rows[:, at + 1 : self._stop].copy()
            self._stop -= 1
        self._newest = int(self._rows[0, self._stop - 1]) if len(self) else -(2**63)
        return slot

    def prune(self, before_ns: int) -> list[int]:
        """Take out every sample older than `before_ns`; returns the slots they leave."""
        if not len(self) or self._rows[0, self._start] >= before_ns:
            return []
        count = int(np.searchsorted(self.stamps_ns, before_ns))
        left: list[int] = self.slots[:count].tolist()
        self._free.extend(left)
        self._start += count
        if not len(self):
            self._newest = -(2**63)
        return left

    def _make_room(self) -> None:
        kept = self._rows[:, self._start : self._stop].copy()
        if self._rows.shape[1] < 2 * self.capacity:
            self._rows = np.empty((3, 2 * self.capacity), np.int64)
        self._rows[:, : kept.shape[1]] = kept
        self._start, self._stop = 0, kept.shape[1]
