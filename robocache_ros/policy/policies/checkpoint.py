"""A checkpoint of this package's training as a policy."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from robocache_ros.engine.frames import FusedFrame
from robocache_ros.errors import RoboCacheError
from robocache_ros.policy.plan import Chunk, Prefix
from robocache_ros.policy.policies import RunnablePolicy
from robocache_ros.training.policies.make_policy import Continued, tick_noise
from robocache_ros.training.trained_policy import TrainedPolicy


class CheckpointPolicy(RunnablePolicy):
    """Plans the whole horizon of a `TrainedPolicy`."""

    def __init__(self, policy: TrainedPolicy) -> None:
        self._policy = policy
        self.takes_prefix = policy.policy.config.kind == "diffusion"  # it samples actions, and so can continue others

    def plan(
        self, frame: FusedFrame, tick: int, prefix: Prefix | None = None, earlier: Sequence[FusedFrame] = ()
    ) -> Chunk:
        """Plan (horizon, A) actions; RoboCacheError if the frame is not as in training."""
        rate_hz = frame.layout.spec.rate_hz if frame.layout else self._policy.info.rate_hz
        if rate_hz != self._policy.info.rate_hz:
            raise RoboCacheError(
                f"rate_hz: {rate_hz}, but the training had {self._policy.info.rate_hz}; use the spec of the training"
            )
        noise = tick_noise(self._policy.policy.config, tick)  # so that a policy which samples gives the same plan again
        known = Continued(torch.from_numpy(prefix.rows), prefix.frozen) if prefix else None
        return Chunk(tick, self._policy.act(frame, noise=noise, prefix=known)[0].cpu().numpy())
