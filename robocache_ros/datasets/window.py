"""Which ticks of an episode a training sample has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robocache_ros.errors import RoboCacheError


@dataclass(frozen=True)
class Window:
    """A training sample: some ticks of observations, and a chunk of actions.

    Attributes:
        n_obs: ticks of observations, up to the tick of the sample.
        horizon: ticks of actions.
        action_offset: ticks from the tick of the sample to the first action.
    """

    n_obs: int = 1
    horizon: int = 1
    action_offset: int = 0

    def __post_init__(self) -> None:
        if not (0 < self.n_obs <= 10_000 and 0 < self.horizon <= 10_000 and abs(self.action_offset) <= 10_000):
            raise RoboCacheError(f"window: {self}: n_obs and horizon are from 1 to 10000, action_offset to +-10000")

    def rows(self, tick: Any, count: int) -> tuple[list[NDArray[np.int64]], dict[str, NDArray[np.bool_]]]:
        """Return the ticks of observations (n_obs,) and of actions (horizon,), and which of them are padding.

        Args:
            tick: of the sample; or (B, 1) of samples, for results of (B, n_obs) and (B, horizon).
            count: ticks of its episode; those before the first and after the last are padding and repeat it.
        """
        wanted = [tick + np.arange(1 - self.n_obs, 1), tick + self.action_offset + np.arange(self.horizon)]
        flags = [(rows < 0) | (rows >= count) for rows in wanted]
        # np.clip does the same in three times the time.
        return [np.minimum(np.maximum(rows, 0), count - 1) for rows in wanted], {
            "is_pad": flags[0],
            "action_is_pad": flags[1],
        }


def cumulative_counts(
    episodes: int, ticks: Callable[[int], int], unreadable: dict[int, str] | None = None
) -> list[int]:
    """Return the number of ticks of all episodes up to each one.

    Args:
        episodes: their number.
        ticks: of an episode.
        unreadable: takes the episodes whose ticks cannot be read, and why; they count as 0. None: an error.
    """
    ends: list[int] = []
    for episode in range(episodes):
        try:
            count = ticks(episode)
        except (RoboCacheError, OSError) as error:
            if unreadable is None:
                raise
            unreadable[episode], count = f"episode {episode}: {error}", 0
        ends.append(count + (ends[-1] if ends else 0))
    return ends
