"""A sample of a dataset before its streams are aligned."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from robocache_ros.datasets.episode_source import SourceEpisode


@dataclass(frozen=True)
class Unaligned:
    """The streams of a sample and the ticks to which they are to be aligned.

    Attributes:
        episode: its streams, in the order of `valid`.
        methods: the alignment of each stream, by its name.
        ticks_ns: (T,) int64, rising; a tick may be repeated.
        action_ticks_ns: (H,) int64 such ticks of actions and rewards, if they have their own.
        flags: `is_pad` (T,) and `action_is_pad` (H,) bool, of windows.
        texts: such as `language`.
    """

    episode: SourceEpisode
    methods: Mapping[str, str]
    ticks_ns: NDArray[np.int64]
    action_ticks_ns: NDArray[np.int64] | None
    flags: Mapping[str, NDArray[np.bool_]]
    texts: Mapping[str, str]
