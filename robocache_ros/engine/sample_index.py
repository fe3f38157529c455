"""The index of one stream's samples: stamps in order, arrivals, and the slots that hold the payloads."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Int64 = NDArray[np.int64]


class SampleIndex:
    """Samples sorted by stamp. A payload stays in its slot; only the rows of the index are moved.

    Args:
        capacity: number of slots.
        growing: double the slots when all are in use, instead of dropping the oldest sample.
    """

    def __init__(self, capacity: int, *, growing: bool = False) -> None:
        self.capacity = capacity
        self.growing = growing
        # Stamps, arrivals and slots; twice as long as needed, so that rows are rarely moved.
        self._rows = np.empty((3, 2 * capacity), np.int64)
        self.clear()

    def clear(self) -> None:
        """Drop every sample."""
        self._start = self._stop = 0
        self._newest = -(2**63)
        self._free = list(range(self.capacity - 1, -1, -1))

    def __len__(self) -> int:
        return self._stop - self._start

    @property
    def stamps_ns(self) -> Int64:
        """(S,) int64, strictly increasing."""
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
        """Whether the next `insert` drops the oldest sample."""
        return not self._free and not self.growing

    def __contains__(self, stamp_ns: int) -> bool:
        if stamp_ns > self._newest:
            return False
        row = int(np.searchsorted(self.stamps_ns, stamp_ns))
        return row < len(self) and int(self.stamps_ns[row]) == stamp_ns

    def insert(self, stamp_ns: int, arrival_ns: int) -> int:
        """Add a sample with a new stamp; returns the slot for its payload."""
        if not self._free:
            if self.growing:
                self._free = list(range(2 * self.capacity - 1, self.capacity - 1, -1))
                self.capacity *= 2
            else:
                self.drop(0)
        if self._stop == self._rows.shape[1]:
            self._compact()
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

    def extend(self, stamps_ns: Int64, arrivals_ns: Int64) -> Int64:
        """Add (M,) samples with increasing stamps, newer than all others, to a growing index; returns their slots."""
        count = len(stamps_ns)
        while len(self._free) < count:
            self._free = [*range(2 * self.capacity - 1, self.capacity - 1, -1), *self._free]
            self.capacity *= 2
        if self._stop + count > self._rows.shape[1]:
            self._compact()
        slots = np.array(self._free[: -count - 1 : -1], np.int64)
        del self._free[len(self._free) - count :]
        added = slice(self._stop, self._stop + count)
        self._rows[0, added], self._rows[1, added], self._rows[2, added] = stamps_ns, arrivals_ns, slots
        self._stop += count
        if count:
            self._newest = int(stamps_ns[-1])
        return slots

    @property
    def newest_ns(self) -> int:
        """The newest stamp; a value below any stamp if there are no samples."""
        return self._newest

    def drop(self, row: int) -> int:
        """Drop one sample; returns the freed slot."""
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
        """Drop every sample older than `before_ns`; returns the freed slots."""
        if not len(self) or self._rows[0, self._start] >= before_ns:
            return []
        count = int(np.searchsorted(self.stamps_ns, before_ns))
        freed: list[int] = self.slots[:count].tolist()
        self._free.extend(freed)
        self._start += count
        if not len(self):
            self._newest = -(2**63)
        return freed

    def _compact(self) -> None:
        kept = self._rows[:, self._start : self._stop].copy()
        if self._rows.shape[1] < 2 * self.capacity:
            self._rows = np.empty((3, 2 * self.capacity), np.int64)
        self._rows[:, : kept.shape[1]] = kept
        self._start, self._stop = 0, kept.shape[1]
