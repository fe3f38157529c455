"""GR00T-style inputs on one timeline: vision features at 30 Hz, proprioception at 100 Hz, an embedded instruction.

python examples/groot_style.py --steps 200
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

from robocache_ros.datasets import SourceEpisode, Stream, TimelineDataset, TimelineLoader, Window
from robocache_ros.training.policies.make_policy import make_policy
from robocache_ros.training.policies.policy_config import PolicyConfig
from robocache_ros.training.trainer import Trainer
from robocache_ros.training.training_options import TrainingOptions

VISION, PROPRIO, LANGUAGE, ACTIONS = 512, 14, 768, 7


class Demonstrations:
    """Random numbers in the place of your data: an episode is its streams, each with the stamps of its samples."""

    def __len__(self) -> int:
        return 32

    def span_ns(self, index: int) -> tuple[int, int]:
        """Return the first and the last stamp of an episode."""
        return 0, 4_000_000_000

    def read(self, index: int) -> SourceEpisode:
        """Return an episode; the features are those of your vision and language encoders."""
        random = np.random.default_rng(index)

        def stream(name: str, rate_hz: int, width: int, **about: Any) -> Stream:
            stamps = np.arange(4 * rate_hz + 1, dtype=np.int64) * 1_000_000_000 // rate_hz
            return Stream(name, stamps, random.standard_normal((len(stamps), width), np.float32), True, **about)

        one = np.zeros(1, np.int64)  # the instruction has one sample, which is held
        streams = [stream("features", 30, VISION), stream("joints", 100, PROPRIO)]
        streams.append(Stream("instruction", one, np.ones((1, LANGUAGE), np.float32), True, align="hold"))
        streams.append(stream("command", 50, ACTIONS, role="action"))
        return SourceEpisode({each.name: each for each in streams}, "lift the cube", "random", f"episode {index}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200, help="of the optimizer (default: %(default)s)")
    dataset = TimelineDataset(Demonstrations(), target_hz=50, window=Window(n_obs=8, horizon=16))
    loader = TimelineLoader(dataset, 32, shuffle=True, drop_last=True, device="auto")  # for a GPU it aligns there
    options = TrainingOptions(steps=parser.parse_args().steps, bf16=loader.device.type == "cuda")
    policy = make_policy(PolicyConfig("transformer", VISION + PROPRIO + LANGUAGE, ACTIONS, n_obs=8, horizon=16))
    trainer = Trainer(policy, loader, options, loader.device)
    for step in range(options.steps):
        loss = trainer.train_step()
        if step % 20 == 0:
            print(f"step {step}: loss {loss:.3f}, {trainer.data_wait.result().share:.1%} waiting for data")
