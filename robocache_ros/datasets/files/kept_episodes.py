"""Episodes that a process keeps after it has read them, because this takes no memory."""

from __future__ import annotations

import mmap
from collections import OrderedDict
from typing import Any

import numpy as np

from robocache_ros.datasets.episode_source import SourceEpisode

MAX_EPISODES = 4096  # kept; each is a few kB of objects
MAX_FILES = 8  # that kept episodes are in: a mapped file is an open file


class KeptEpisodes:
    """The last episode of a dataset that was read, and earlier ones whose arrays are all in mapped files.

    Their streams have been checked once, and are neither read nor checked again.
    """

    def __init__(self) -> None:
        self.last: int | None = None
        self._last: SourceEpisode | None = None
        self._mapped: OrderedDict[int, SourceEpisode] = OrderedDict()
        self._files: set[mmap.mmap] = set()

    def get(self, index: int) -> SourceEpisode | None:
        """Return an episode, which is then the last one; None if it is not kept."""
        if index == self.last:
            return self._last
        found = self._mapped.get(index)
        if found is not None:
            self.last, self._last = index, found
        return found

    def put(self, index: int, episode: SourceEpisode) -> None:
        """Keep an episode as the last one."""
        self.last, self._last = index, episode
        if (files := _files(episode)) is None:
            return
        if len(self._files | files) > MAX_FILES:
            self._mapped.clear()
            self._files.clear()
        self._files |= files
        self._mapped[index] = episode
        if len(self._mapped) > MAX_EPISODES:
            self._mapped.popitem(last=False)


def _files(episode: SourceEpisode) -> set[mmap.mmap] | None:
    """The mapped files that all arrays of an episode are in; None if an array is in memory of its own."""
    files: set[mmap.mmap] = set()
    for stream in episode.streams.values():
        for array in (stream.stamps_ns, stream.values, stream.valid, stream.age_ns):
            owner: Any = array
            while isinstance(owner, np.ndarray):
                owner = owner.base
            if isinstance(owner, mmap.mmap):
                files.add(owner)
            elif array is not None:
                return None
    return files
