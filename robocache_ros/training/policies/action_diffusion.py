"""A chunk of actions by denoising: DDPM in training (Ho et al., 2020), DDIM for actions (Song et al., 2021)."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from robocache_ros.training.policies.policy import Policy, masked_mean
from robocache_ros.training.policies.policy_config import PolicyConfig

LARGEST = 5.0  # of a normalised action while it is denoised, in standard deviations


class ActionDiffusion(Policy):
    """A transformer denoiser: predicts the noise in a chunk of actions, given the observation and the step."""

    def __init__(self, config: PolicyConfig) -> None:
        super().__init__(config)
        self.of_action = nn.Linear(config.actions, config.width)
        self.of_step = nn.Sequential(
            nn.Linear(config.width, config.width), nn.GELU(), nn.Linear(config.width, config.width)
        )
        self.kept: Tensor
        self.register_buffer("kept", kept_shares(config.noise_steps), persistent=False)

    def forward(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Return the mean squared error of the predicted noise at random steps."""
        actions = batch["actions"]
        step = torch.randint(self.config.noise_steps, (len(actions),), device=actions.device)
        noise = torch.randn_like(actions)
        kept = self.kept[step][:, None, None]
        noisy = kept.sqrt() * actions + (1 - kept).sqrt() * noise
        error = (self._noise(self.observed(batch), noisy, step).float() - noise).square()
        return masked_mean(error, batch["action_is_pad"])

    @torch.no_grad()
    def predict(self, observation: Mapping[str, Tensor], generator: torch.Generator | None = None) -> Tensor:
        """See `Policy`."""
        proprio = observation["proprio"]
        observed = self.observed(observation)
        shape = (len(proprio), self.config.horizon, self.config.actions)
        actions = torch.randn(shape, generator=generator, device=proprio.device)
        # Even steps down to 0, without the noisiest one: there an error of the noise is divided by almost no signal.
        stride = self.config.noise_steps // self.config.sample_steps
        steps = [number * stride for number in reversed(range(self.config.sample_steps))]
        for step, following in zip(steps, [*steps[1:], -1], strict=True):
            kept = self.kept[step]
            noise = self._noise(observed, actions, torch.full((len(proprio),), step, device=proprio.device)).float()
            clean = ((actions - (1 - kept).sqrt() * noise) / kept.sqrt()).clamp(-LARGEST, LARGEST)
            noise = (actions - kept.sqrt() * clean) / (1 - kept).sqrt()  # that of the clamped action
            after = self.kept[following] if following >= 0 else torch.ones_like(kept)
            actions = after.sqrt() * clean + (1 - after).sqrt() * noise
        return actions

    def _noise(self, observed: list[Tensor], actions: Tensor, step: Tensor) -> Tensor:
        """The noise in (B, horizon, A) actions at (B,) steps, of that shape."""
        time = self.of_step(_sinusoids(step, self.config.width)).unsqueeze(1)
        return self.read_out([*observed, time, self.of_action(actions)])


def kept_shares(steps: int) -> Tensor:
    """(steps,) float32: the share of the variance that is signal after each step, from almost 1 to almost 0.

    The cosine schedule of Nichol and Dhariwal (2021).
    """
    times = torch.linspace(0, 1, steps + 1, dtype=torch.float64)
    share = torch.cos((times + 0.008) / 1.008 * math.pi / 2).square()
    betas = (1 - share[1:] / share[:-1]).clamp(max=0.999)
    return (1 - betas).cumprod(0).float()


def _sinusoids(step: Tensor, width: int) -> Tensor:
    """(B, width) of (B,) steps, as in a transformer's positions."""
    rates = torch.exp(torch.arange(width // 2, device=step.device) * (-math.log(10_000) / max(width // 2 - 1, 1)))
    angles = step[:, None] * rates[None, :]
    return nn.functional.pad(torch.cat([angles.sin(), angles.cos()], dim=1), (0, width % 2))
