"""What all policies share: tokens of the observation, a transformer, and actions read at its last tokens."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import torch
from torch import Tensor, nn

from robocache_ros.training.policies.policy_config import PolicyConfig


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

    def predict(self, observation: Mapping[str, Tensor], generator: torch.Generator | None = None) -> Tensor:
        """Return (B, horizon, A) actions.

        Args:
            observation: proprio (B, n_obs, P), and the images of `config.cameras`.
            generator: of random numbers, on the device of the policy; None: torch's own.
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


class _ImageEncoder(nn.Sequential):
    """(N, 3, H, W) images to (N, width), a few convolutions with stride 2."""

    def __init__(self, width: int) -> None:
        sizes = (3, 32, 64, 128, 256)
        stages: list[nn.Module] = []
        for before, after in pairwise(sizes):
            stages += [nn.Conv2d(before, after, 3, stride=2, padding=1), nn.GroupNorm(8, after), nn.GELU()]
        super().__init__(*stages, _Quarters(), nn.Linear(4 * sizes[-1], width))


class _Quarters(nn.Module):
    """(N, C, H, W) to (N, 4 C): AdaptiveAvgPool2d(2), whose own gradient is not deterministic on a GPU."""

    def forward(self, images: Tensor) -> Tensor:
        rows, columns = images.shape[2:]
        halves = images[:, :, : -(-rows // 2)], images[:, :, rows // 2 :]
        parts = [part for half in halves for part in (half[..., : -(-columns // 2)], half[..., columns // 2 :])]
        return torch.cat([part.mean(dim=(2, 3)) for part in parts], dim=1)


def masked_mean(values: Tensor, is_pad: Tensor) -> Tensor:
    """The mean of (B, T, A) values over the ticks that (B, T) `is_pad` does not mark, a scalar."""
    keep = (~is_pad).to(values.dtype).unsqueeze(-1)
    return (values * keep).sum() / (keep.sum() * values.shape[-1]).clamp(min=1)
