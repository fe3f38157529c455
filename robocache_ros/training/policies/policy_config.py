"""The shape of a policy, which a checkpoint stores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from robocache_ros.errors import RoboCacheError, printable

KINDS = ("transformer", "diffusion")
MAX_WIDTH, MAX_LAYERS, MAX_TOKENS, MAX_COLUMNS = 65_536, 1024, 65_536, 1 << 20
# Of each size; a checkpoint may name any.
LARGEST = {
    "proprio": MAX_COLUMNS,
    "actions": MAX_COLUMNS,
    "n_obs": MAX_TOKENS,
    "horizon": MAX_TOKENS,
    "layers": MAX_LAYERS,
    "heads": MAX_WIDTH,
    "width": MAX_WIDTH,
    "noise_steps": 10_000,
    "sample_steps": 10_000,
}


def check_size(where: str, value: object, most: int = MAX_COLUMNS) -> None:
    """Refuse what is not a whole number from 1 to `most`."""
    if type(value) is not int or not 1 <= value <= most:
        raise RoboCacheError(f"{where} is {printable(value, 30)}; give a whole number from 1 to {most}")


def check_sizes(where: str, values: object) -> None:
    """Refuse what is not whole numbers by name."""
    if not isinstance(values, Mapping) or not all(isinstance(name, str) for name in values):
        raise RoboCacheError(f"{where}: a {type(values).__name__}; give numbers by name")
    for name, value in values.items():
        check_size(f"{where}: {printable(name, 40)}", value)


@dataclass(frozen=True)
class PolicyConfig:
    """The shape of a policy.

    Attributes:
        kind: transformer or diffusion.
        proprio: columns of `proprio`.
        actions: columns of `actions`.
        n_obs: ticks that are observed.
        horizon: ticks of actions that are predicted.
        cameras: images of the newest tick, by key of the batch: `{"vision/front": 1}`, or `{"vision": 2}` for two
            cameras of one size.
        layers, heads, width: of the transformer; its feed-forward layers are four times as wide.
        dropout: share of activations that are dropped in training.
        noise_steps: diffusion: steps from an action to noise (DDPM).
        sample_steps: diffusion: steps from noise to an action (DDIM).
    """

    kind: str
    proprio: int
    actions: int
    n_obs: int = 1
    horizon: int = 16
    cameras: Mapping[str, int] = field(default_factory=dict)
    layers: int = 4
    heads: int = 8
    width: int = 512
    dropout: float = 0.0
    noise_steps: int = 100
    sample_steps: int = 20

    def __post_init__(self) -> None:
        if not isinstance(self.kind, str) or self.kind not in KINDS:
            raise RoboCacheError(f"policy: {printable(self.kind, 30)} is not one of {', '.join(KINDS)}")
        for name, most in LARGEST.items():
            check_size(f"policy: {name}", getattr(self, name), most)
        check_sizes("policy: cameras", self.cameras)
        if self.tokens > MAX_TOKENS:
            raise RoboCacheError(f"policy: {self.tokens} ticks and images; observe and predict at most {MAX_TOKENS}")
        if type(self.dropout) not in (int, float) or not 0 <= self.dropout < 1:
            raise RoboCacheError(f"policy: dropout is {printable(self.dropout, 30)}; give a number from 0 to below 1")
        if self.width % self.heads:
            raise RoboCacheError(f"policy: width {self.width} is not a multiple of {self.heads} heads; change one")
        if self.sample_steps > self.noise_steps:
            raise RoboCacheError(f"policy: {self.sample_steps} of {self.noise_steps} noise steps; use fewer than all")

    @property
    def tokens(self) -> int:
        """Tokens of the transformer: ticks, images, the step of the noise, and actions."""
        return self.n_obs + sum(self.cameras.values()) + (self.kind == "diffusion") + self.horizon

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys of a batch that the policy reads in training."""
        return ("proprio", "actions", "action_is_pad", *self.cameras)


# Sizes by name; with 270 columns and 250 tokens these are 13 and 101 million parameters.
PRESETS: dict[str, dict[str, Any]] = {
    "tiny": {"kind": "transformer", "layers": 2, "heads": 4, "width": 64},
    "act-13m": {"kind": "transformer", "layers": 4, "heads": 8, "width": 512},
    "act-101m": {"kind": "transformer", "layers": 8, "heads": 16, "width": 1024},
    "diffusion": {"kind": "diffusion", "layers": 4, "heads": 4, "width": 256},
    "diffusion-tiny": {"kind": "diffusion", "layers": 2, "heads": 4, "width": 64},
}
