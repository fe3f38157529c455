"""The policy of a configuration."""

from __future__ import annotations

from robocache_ros.training.policies.action_diffusion import ActionDiffusion
from robocache_ros.training.policies.action_transformer import ActionTransformer
from robocache_ros.training.policies.policy import Policy
from robocache_ros.training.policies.policy_config import PolicyConfig


def make_policy(config: PolicyConfig) -> Policy:
    """Return a new policy with random weights, which torch's seed decides."""
    return ActionDiffusion(config) if config.kind == "diffusion" else ActionTransformer(config)


def parameters(policy: Policy) -> int:
    """Return how many numbers are learned."""
    return sum(parameter.numel() for parameter in policy.parameters())
