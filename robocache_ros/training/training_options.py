"""The options of a training."""

from __future__ import annotations

import math
from dataclasses import dataclass

from robocache_ros.errors import RoboCacheError, printable

MAX_SEED = 2**32 - 1


@dataclass(frozen=True)
class TrainingOptions:
    """How a policy is trained.

    Attributes:
        learning_rate: the highest; it rises over `warmup` steps and falls as a cosine to a tenth at `steps`.
        steps: of the optimizer, in all.
        warmup: steps.
        weight_decay: of AdamW.
        clip_norm: largest norm of the gradients; 0: no limit.
        accumulate: batches of each step.
        average: decay of the exponential moving average of the weights; 0: none.
        bf16: compute in bfloat16 where it is safe (autocast). The weights stay float32.
        compile: torch.compile.
        cuda_graph: replay the whole step as a CUDA graph, which saves launches and has the same bits; with `compile`,
            that of the compiled policy; with several processes, with their exchange of gradients (not tried on
            several GPUs yet). None: where one process trains on a GPU and the step can be captured.
        deterministic: use operations that give the same bits each time, in the whole process. On a GPU, the gradient of
            attention is otherwise a sum whose order varies, and a run repeats another one only up to rounding.
        seed: of the weights, the noise and the dropout.
    """

    learning_rate: float = 3e-4
    steps: int = 10_000
    warmup: int = 100
    weight_decay: float = 1e-4
    clip_norm: float = 1.0
    accumulate: int = 1
    average: float = 0.999
    bf16: bool = False
    compile: bool = False
    cuda_graph: bool | None = None
    deterministic: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("steps", "accumulate", "warmup", "weight_decay", "clip_norm"):
            value, least = getattr(self, name), 1 if name in ("steps", "accumulate") else 0
            if not least <= value < math.inf:
                raise RoboCacheError(f"training: {name} is {value}; give a number of at least {least}")
        if not 0 < self.learning_rate < math.inf:
            raise RoboCacheError(f"training: learning_rate is {self.learning_rate}; give a number above 0")
        if not 0 <= self.average < 1:
            raise RoboCacheError(f"training: average is {self.average}; give a number from 0 to below 1")
        if not 0 <= self.seed <= MAX_SEED:
            raise RoboCacheError(f"training: seed is {printable(self.seed, 30)}; give a number from 0 to {MAX_SEED}")

    def rate_at(self, step: int) -> float:
        """The learning rate of a step, from 0 on."""
        if step < self.warmup:
            return self.learning_rate * (step + 1) / self.warmup
        share = min(1.0, (step - self.warmup) / max(1, self.steps - self.warmup))
        return self.learning_rate * (0.1 + 0.45 * (1 + math.cos(math.pi * share)))
