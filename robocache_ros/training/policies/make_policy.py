"""Policies: what is observed, and two ways to predict a chunk of actions from it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn

from robocache_ros.training.policies.policy_config import PolicyConfig

KEYPOINTS = 64  # channels whose position in an image is found


class Continued(NamedTuple):
    """The actions that a chunk continues.

    Attributes:
        actions: (P, A) of the chunk's first P ticks, as they are planned so far.
        frozen: the first of them that are executed whatever is predicted.
    """

    actions: Tensor
    frozen: int


class Policy(nn.Module):
    """A transformer over the observed ticks and images, and one token per predicted action.

    All values are normalised. `forward` is the loss of a batch, so that DistributedDataParallel and torch.compile apply
    to it; `predict` returns actions.
    """

    def __init__(self, config: PolicyConfig) -> None:
        super().__init__()
        self.config = config
        width = config.width
        self.of_proprio = nn.Linear(config.proprio, width)
        self.of_image = _ImageEncoder(width) if config.cameras else None
        self.positions = nn.Parameter(torch.randn(config.tokens, width) * 0.02)
        layer = nn.TransformerEncoderLayer(
            width, config.heads, 4 * width, config.dropout, "gelu", batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, config.layers, nn.LayerNorm(width), enable_nested_tensor=False)
        self.head = nn.Linear(width, config.actions)

    def forward(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Return the loss of a batch with the keys `config.keys`, a scalar."""
        raise NotImplementedError

    def predict(
        self, observation: Mapping[str, Tensor], noise: Tensor | None = None, prefix: Continued | None = None
    ) -> Tensor:
        """Return (B, horizon, A) actions.

        Args:
            observation: proprio (B, n_obs, P), and the images of `config.cameras`.
            noise: (B, horizon, A) of a standard normal distribution, from which actions are sampled; None: torch's own.
            prefix: what the actions continue, where they are sampled; None: nothing.
        """
        raise NotImplementedError

    def observed(self, batch: Mapping[str, Tensor]) -> list[Tensor]:
        """Return the tokens of the observation: (B, n_obs, width), then (B, C, width) for each key of cameras."""
        tokens = [self.of_proprio(batch["proprio"])]
        if self.of_image is not None:
            for key, cameras in self.config.cameras.items():
                newest = batch[key][:, -1]  # (B, 3, H, W), or (B, C, 3, H, W)
                images = newest.reshape(-1, *newest.shape[-3:])
                tokens.append(self.of_image(images).view(len(newest), cameras, -1))
        return tokens

    def read_out(self, tokens: list[Tensor]) -> Tensor:
        """Return (B, horizon, A), read at the last `horizon` of the tokens."""
        hidden = self.layers(torch.cat(tokens, dim=1) + self.positions)
        actions: Tensor = self.head(hidden[:, -self.config.horizon :])
        return actions


class _ImageEncoder(nn.Module):
    """(N, 3, H, W) images to (N, width): convolutions with stride 2, then what is in each quarter, and where it is.

    The positions are a spatial softmax: Finn et al. (2016), "Deep Spatial Autoencoders for Visuomotor Learning".
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        sizes = (3, 32, 64, 128, 256)
        stages: list[nn.Module] = []
        for before, after in pairwise(sizes):
            stages += [nn.Conv2d(before, after, 3, stride=2, padding=1), nn.GroupNorm(8, after), nn.GELU()]
        self.stages = nn.Sequential(*stages)
        self.to_keypoints = nn.Conv2d(sizes[-1], KEYPOINTS, 1)
        self.read_out = nn.Linear(4 * sizes[-1] + 2 * KEYPOINTS, width)

    def forward(self, images: Tensor) -> Tensor:
        features = self.stages(images)
        found: Tensor = self.read_out(torch.cat([_quarters(features), _positions(self.to_keypoints(features))], dim=1))
        return found


def _quarters(features: Tensor) -> Tensor:
    """(N, C, H, W) to (N, 4 C): AdaptiveAvgPool2d(2), whose own gradient is not deterministic on a GPU."""
    rows, columns = features.shape[2:]
    halves = features[:, :, : -(-rows // 2)], features[:, :, rows // 2 :]
    parts = [part for half in halves for part in (half[..., : -(-columns // 2)], half[..., columns // 2 :])]
    return torch.cat([part.mean(dim=(2, 3)) for part in parts], dim=1)


def _positions(features: Tensor) -> Tensor:
    """(N, C, H, W) to (N, 2 C): the mean row and column of each channel in -1..1, weighted by its softmax."""
    rows, columns = features.shape[2:]
    share = features.flatten(2).softmax(dim=2).view(features.shape)
    row = torch.linspace(-1, 1, rows, device=share.device, dtype=share.dtype)
    column = torch.linspace(-1, 1, columns, device=share.device, dtype=share.dtype)
    return torch.cat([(share.sum(dim=3) * row).sum(dim=2), (share.sum(dim=2) * column).sum(dim=2)], dim=1)


def masked_mean(values: Tensor, is_pad: Tensor) -> Tensor:
    """The mean of (B, T, A) values over the ticks that (B, T) `is_pad` does not mark, a scalar."""
    keep = (~is_pad).to(values.dtype).unsqueeze(-1)
    return (values * keep).sum() / (keep.sum() * values.shape[-1]).clamp(min=1)


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
    def predict(
        self, observation: Mapping[str, Tensor], noise: Tensor | None = None, prefix: Continued | None = None
    ) -> Tensor:
        """See `Policy`; the noise and the prefix are not used."""
        return self._actions(observation)

    def _actions(self, batch: Mapping[str, Tensor]) -> Tensor:
        tokens = self.observed(batch)
        return self.read_out([*tokens, self.queries.to(tokens[0].dtype).expand(len(tokens[0]), -1, -1)])


LARGEST = 5.0  # of a normalised action while it is denoised, in standard deviations
NOISE_BLOCK = 64  # ticks whose noise comes from one generator


class ActionDiffusion(Policy):
    """A transformer denoiser: predicts the actions in a noisy chunk of them, given the observation and the step.

    It predicts the actions, not their noise: after the same training of the simulated SO-101, 42 of 50 starts succeeded
    with it, and 22 with a predicted noise.
    """

    def __init__(self, config: PolicyConfig) -> None:
        super().__init__(config)
        self.of_action = nn.Linear(config.actions, config.width)
        self.of_step = nn.Sequential(
            nn.Linear(config.width, config.width), nn.GELU(), nn.Linear(config.width, config.width)
        )
        self.kept: Tensor
        self.register_buffer("kept", kept_shares(config.noise_steps), persistent=False)

    def forward(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Return the mean squared error of the predicted actions at random steps."""
        actions = batch["actions"]
        step = torch.randint(self.config.noise_steps, (len(actions),), device=actions.device)
        kept = self.kept[step][:, None, None]
        noisy = kept.sqrt() * actions + (1 - kept).sqrt() * torch.randn_like(actions)
        error = (self._clean(self.observed(batch), noisy, step) - actions).square()
        return masked_mean(error, batch["action_is_pad"])

    @torch.no_grad()
    def predict(
        self, observation: Mapping[str, Tensor], noise: Tensor | None = None, prefix: Continued | None = None
    ) -> Tensor:
        """See `Policy`. In each step the actions of a prefix replace the predicted ones, so that the rest follows.

        Their weights are those of real-time chunking: https://arxiv.org/abs/2506.07339, equation 5.
        """
        proprio = observation["proprio"]
        observed = self.observed(observation)
        shape = (len(proprio), self.config.horizon, self.config.actions)
        actions = torch.randn(shape, device=proprio.device) if noise is None else noise.to(proprio.device)
        if prefix is not None:
            known = prefix.actions[: self.config.horizon].to(proprio.device)
            weights = prefix_weights(len(known), prefix.frozen).to(proprio.device)[:, None]
        stride = self.config.noise_steps // self.config.sample_steps
        steps = [number * stride for number in reversed(range(self.config.sample_steps))]
        for step, following in zip(steps, [*steps[1:], -1], strict=True):
            kept = self.kept[step]
            clean = self._clean(observed, actions, torch.full((len(proprio),), step, device=proprio.device))
            clean = clean.clamp(-LARGEST, LARGEST)
            if prefix is not None:
                clean[:, : len(known)] = clean[:, : len(known)].lerp(known, weights)
            left = (actions - kept.sqrt() * clean) / (1 - kept).sqrt()
            after = self.kept[following] if following >= 0 else torch.ones_like(kept)
            actions = after.sqrt() * clean + (1 - after).sqrt() * left
        return actions

    def _clean(self, observed: list[Tensor], actions: Tensor, step: Tensor) -> Tensor:
        """The actions in (B, horizon, A) noisy ones at (B,) steps, of that shape."""
        time = self.of_step(_sinusoids(step, self.config.width)).unsqueeze(1)
        return self.read_out([*observed, time, self.of_action(actions)]).float()


def prefix_weights(rows: int, frozen: int) -> Tensor:
    """Return the (rows,) weights of a prefix: 1 for the frozen ones, then falling to 0."""
    left = ((rows - torch.arange(rows)) / (rows - frozen + 1)).clamp(max=1)
    return left * left.expm1() / math.expm1(1)


def tick_noise(config: PolicyConfig, tick: int) -> Tensor:
    """Return (1, horizon, A) noise for `Policy.predict` at a tick, always the same numbers.

    Row i belongs to tick `tick` + i, and is the same for each plan that has this tick: so where several actions are
    as likely, plans that overlap sample the same ones.
    """
    last = tick + config.horizon - 1
    blocks = [
        torch.randn(NOISE_BLOCK, config.actions, generator=torch.Generator().manual_seed(block))
        for block in range(tick // NOISE_BLOCK, last // NOISE_BLOCK + 1)
    ]
    first = tick % NOISE_BLOCK
    return torch.cat(blocks)[first : first + config.horizon].unsqueeze(0)


def kept_shares(steps: int) -> Tensor:
    """(steps,) float32: the share of the variance that is signal after each step, from almost 1 to almost 0.

    The cosine schedule of Nichol and Dhariwal (2021).
    """
    times = torch.linspace(0, 1, steps + 1, dtype=torch.float64)
    share = torch.cos((times + 0.008) / 1.008 * math.pi / 2).square()
    betas = (1 - share[1:] / share[:-1]).clamp(max=0.999)
    return (1 - betas).cumprod(0).float()


def _sinusoids(step: Tensor, width: int) -> Tensor:
    rates = torch.exp(torch.arange(width // 2, device=step.device) * (-math.log(10_000) / max(width // 2 - 1, 1)))
    angles = step[:, None] * rates[None, :]
    return nn.functional.pad(torch.cat([angles.sin(), angles.cos()], dim=1), (0, width % 2))


def make_policy(config: PolicyConfig) -> Policy:
    """Return a new policy with random weights, which torch's seed decides."""
    return ActionDiffusion(config) if config.kind == "diffusion" else ActionTransformer(config)


def parameters(policy: Policy) -> int:
    """Return how many numbers are learned."""
    return sum(parameter.numel() for parameter in policy.parameters())
