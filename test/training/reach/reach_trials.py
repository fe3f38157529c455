"""A policy in closed loop on the simulated arm, through the engine of the node."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robocache_ros.engine import FusionEngine, Ingest
from robocache_ros.engine.frames import FusedFrame, split_window
from robocache_ros.spec import FusionSpec
from test.training.reach.reach_arm import random_arm

TICK_NS = 20_000_000
Act = Callable[[Tensor, Tensor], Tensor]
Observe = Callable[[FusedFrame], tuple[Tensor, Tensor]]


@dataclass
class Trial:
    """One start of the arm, and the engine that receives its messages."""

    spec: FusionSpec
    seed: int

    def __post_init__(self) -> None:
        self.arm = random_arm(np.random.default_rng(self.seed))
        self.ingest = Ingest(self.spec, FusionEngine(self.spec))
        self.topics = {stream.topic: stream.name for stream in self.spec.streams}
        self.rows: list[Tensor] = []

    def tick(self) -> FusedFrame | None:
        """Simulate until the next tick is computed; None while the window is not full."""
        for topic, arrival_ns, data in self.arm.move(self.arm.now_ns + TICK_NS):
            self.ingest.serialized(self.topics[topic], data, arrival_ns)
        frames = self.ingest.engine.advance(self.arm.now_ns)
        if not len(frames):
            return None
        self.rows = [*self.rows, *frames.rows()][-self.spec.horizon :]
        if len(self.rows) < self.spec.horizon:
            return None
        return split_window(self.ingest.engine.layout, int(frames.ticks_ns[-1]), torch.stack(self.rows))


def final_distances(
    spec: FusionSpec, observe: Observe, act: Act, seeds: range, seconds: float = 2.0
) -> NDArray[np.float64]:
    """(seeds,) metres from the goal after a time, with the policy's first action at each tick."""
    trials = [Trial(spec, seed) for seed in seeds]
    for _ in range(int(seconds * 1e9) // TICK_NS):
        frames = [trial.tick() for trial in trials]
        ready = [(trial, observe(frame)) for trial, frame in zip(trials, frames, strict=True) if frame is not None]
        if ready:
            proprio, valid = (torch.cat(each) for each in zip(*(seen for _, seen in ready), strict=True))
            actions = act(proprio, valid)[:, 0].double().numpy()
            for (trial, _), action in zip(ready, actions, strict=True):
                trial.arm.velocity = action
    return np.array([trial.arm.distance() for trial in trials])
