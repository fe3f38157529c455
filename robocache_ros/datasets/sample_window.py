"""Which ticks of an episode a training sample has."""

from __future__ import annotations

from dataclasses import dataclass

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
