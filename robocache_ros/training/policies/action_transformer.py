"""A chunk of actions from one pass of a transformer, as in ACT (Zhao et al., 2023), without its latent variable."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from robocache_ros.training.policies.policy import Policy, masked_mean
from robocache_ros.training.policies.policy_config import PolicyConfig


class ActionTransformer(Policy):
    """Reads each action at a learned query; the loss is the absolute error, as in ACT."""

    def __init__(self, config: PolicyConfig) -> None:
        super().__init__(config)
        self.queries = nn.Parameter(torch.randn(config.horizon, config.width) * 0.02)

    def forward(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Return the mean absolute error of the actions in the episode."""
        error = (self._actions(batch).float() - batch["actions"]).abs()
        return masked_mean(error, batch["action_is_pad"])

    @torch.no_grad()
    def predict(self, observation: Mapping[str, Tensor], generator: torch.Generator | None = None) -> Tensor:
        """See `Policy`; it draws no random numbers."""
        return self._actions(observation)

    def _actions(self, batch: Mapping[str, Tensor]) -> Tensor:
        tokens = self.observed(batch)
        return self.read_out([*tokens, self.queries.to(tokens[0].dtype).expand(len(tokens[0]), -1, -1)])
