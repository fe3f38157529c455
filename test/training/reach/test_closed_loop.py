"""A policy from recordings to closed loop: data, alignment, normalisation, loader and training are right end to end.

Demonstrations of a simulated arm are recorded at mixed rates, exported, loaded and trained on. The policy then drives
the arm through the engine of the node.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from robocache_ros.datasets import TimelineLoader, Window
from robocache_ros.spec import FusionSpec
from robocache_ros.training.checkpoints import save_checkpoint
from robocache_ros.training.policies.make_policy import Policy, make_policy
from robocache_ros.training.policies.policy_config import PRESETS, PolicyConfig
from robocache_ros.training.trained_policy import TrainedPolicy
from robocache_ros.training.trainer import Trainer
from robocache_ros.training.training_data import DataInfo, data_info, open_for_training, training_loader
from robocache_ros.training.training_options import TrainingOptions
from test.training.conftest import Reach
from test.training.reach.reach_trials import final_distances

SUCCESS_M = 0.05
# 12 to 20 mm with other seeds of the weights and the order; 31 and 50 mm if the actions are those of 200 ms later.
MEAN_M = 0.025
SEEDS = range(1000, 1020)  # of 20 starts; the demonstrations have others
STEPS = {"tiny": 200, "diffusion-tiny": 300}


@pytest.fixture(scope="module")
def data(reach: Reach) -> tuple[DataInfo, TimelineLoader]:
    """The demonstrations as batches."""
    dataset = open_for_training(reach.dataset, window=Window(n_obs=2, horizon=4))
    info = data_info(dataset)
    return info, training_loader(dataset, info, 128, cache="host", seed=1)


def new_policy(preset: str, info: DataInfo) -> Policy:
    torch.manual_seed(0)
    return make_policy(PolicyConfig(proprio=info.proprio, actions=info.actions, n_obs=2, horizon=4, **PRESETS[preset]))


def distances(policy: TrainedPolicy, spec: FusionSpec) -> NDArray[np.float64]:
    torch.manual_seed(0)
    return final_distances(spec, policy.observation, policy.act, SEEDS)


@pytest.fixture(scope="module")
def untrained(reach: Reach, data: tuple[DataInfo, TimelineLoader]) -> NDArray[np.float64]:
    """Metres from the goal, for each start, with a policy of random weights."""
    return distances(TrainedPolicy(new_policy("tiny", data[0]), data[0]), reach.spec)


@pytest.mark.slow
@pytest.mark.parametrize("preset", STEPS)
def test_a_trained_policy_reaches_the_goal_and_an_untrained_one_does_not(
    preset: str, data: tuple[DataInfo, TimelineLoader], untrained: NDArray[np.float64], reach: Reach, tmp_path: Path
) -> None:
    info, loader = data
    options = TrainingOptions(steps=STEPS[preset], learning_rate=2e-3, warmup=20, average=0.98)
    trainer = Trainer(new_policy(preset, info), loader, options)
    while trainer.step < options.steps:
        trainer.train_step()
    save_checkpoint(tmp_path / "checkpoint.pt", trainer, info)

    trained = distances(TrainedPolicy.load(tmp_path / "checkpoint.pt"), reach.spec)

    assert (untrained < SUCCESS_M).mean() <= 0.1
    assert (trained < SUCCESS_M).mean() >= 0.9
    assert trained.mean() < MEAN_M < untrained.mean() / 10
