"""Several sources as one."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

from robocache_ros.datasets.episode_source import EpisodeSource, SourceEpisode


class ChainedEpisodes:
    """The episodes of several sources, one source after the other."""

    def __init__(self, sources: Sequence[EpisodeSource]) -> None:
        self.sources = tuple(sources)
        self._ends = list(accumulate(len(source) for source in self.sources))

    @property
    def files(self) -> tuple[Path, ...]:
        """The files by which a change of the dataset is noticed."""
        return tuple(file for source in self.sources for file in getattr(source, "files", ()))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def read(self, index: int) -> SourceEpisode:
        """Return an episode."""
        source, index = self._place(index)
        return source.read(index)

    def span_ns(self, index: int) -> tuple[int, int]:
        """Return the first and the last stamp of an episode."""
        source, index = self._place(index)
        return source.span_ns(index)

    def _place(self, index: int) -> tuple[EpisodeSource, int]:
        which = bisect_right(self._ends, index)
        return self.sources[which], index - (self._ends[which - 1] if which else 0)
