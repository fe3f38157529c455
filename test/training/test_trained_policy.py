"""A policy in the units of the robot."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from robocache_ros.engine.fused_frame import FusedFrame
from robocache_ros.errors import RoboCacheError
from robocache_ros.training.policies.make_policy import make_policy
from robocache_ros.training.policies.policy_config import PolicyConfig
from robocache_ros.training.trained_policy import TrainedPolicy
from robocache_ros.training.training_data import DataInfo

CONFIG = PolicyConfig("transformer", 3, 2, n_obs=2, horizon=4, layers=1, heads=2, width=16)
INFO = DataInfo(
    {"joints": 2, "gripper": 1},
    2,
    {},
    {"proprio": {"mean": [1.0, 2.0, 3.0], "std": [0.5, 2.0, 1.0]}, "actions": {"mean": [10.0, 0.0], "std": [2.0, 3.0]}},
    50,
)


@pytest.fixture
def policy() -> TrainedPolicy:
    torch.manual_seed(0)
    return TrainedPolicy(make_policy(CONFIG), INFO)


def frame(horizon: int = 3, **tensors: torch.Tensor) -> FusedFrame:
    values = {
        "gripper": torch.full((horizon, 1), 7.0),
        "joints": torch.arange(2.0 * horizon).view(horizon, 2),
        **tensors,
    }
    valid = {name: torch.ones(horizon, dtype=torch.uint8) for name in values}
    return FusedFrame(0, torch.arange(horizon), values, valid, {})


def test_values_are_scaled_as_in_training(policy: TrainedPolicy) -> None:
    proprio = torch.randn(5, 2, 3)
    scaled = (proprio - torch.tensor([1.0, 2.0, 3.0])) / torch.tensor([0.5, 2.0, 1.0])

    expected = policy.policy.predict({"proprio": scaled}) * torch.tensor([2.0, 3.0]) + torch.tensor([10.0, 0.0])

    assert torch.equal(policy.act(proprio), expected)


def test_invalid_values_are_the_mean(policy: TrainedPolicy) -> None:
    proprio = torch.randn(1, 2, 3)
    valid = torch.tensor([[[1, 0], [0, 2]]], dtype=torch.uint8)
    filled = proprio.clone()
    filled[0, 0, 2], filled[0, 1, :2] = 3.0, torch.tensor([1.0, 2.0])

    assert torch.equal(policy.act(proprio, valid), policy.act(filled))


def test_an_observation_is_the_newest_ticks_in_the_order_of_the_training(policy: TrainedPolicy) -> None:
    proprio, valid = policy.observation(frame())

    assert proprio.tolist() == [[[2, 3, 7], [4, 5, 7]]]
    assert valid.tolist() == [[[1, 1], [1, 1]]]


def test_a_frame_without_a_stream_is_refused(policy: TrainedPolicy) -> None:
    with pytest.raises(RoboCacheError, match=r"^gripper: the frame has no such stream of 1 columns"):
        policy.observation(frame(gripper=torch.zeros(3, 2)))


def test_a_short_window_is_refused(policy: TrainedPolicy) -> None:
    with pytest.raises(RoboCacheError, match=r"^horizon: 1 ticks in a frame; set horizon: 2 in the spec$"):
        policy.observation(frame(1))


def test_images_are_converted_as_in_training() -> None:
    config = replace(CONFIG, cameras={"vision": 2})
    policy = TrainedPolicy(make_policy(config), replace(INFO, cameras={"vision": 2}))
    images = torch.randint(0, 256, (1, 1, 2, 16, 16, 3), dtype=torch.uint8)

    assert policy.act(torch.zeros(1, 2, 3), images={"vision": images}).shape == (1, 4, 2)
    with pytest.raises(RoboCacheError, match=r"^images: no vision; "):
        policy.act(torch.zeros(1, 2, 3))


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_an_observation_that_is_not_finite_is_refused(policy: TrainedPolicy, value: float) -> None:
    proprio = torch.zeros(1, 2, 3)
    proprio[0, 1, 2] = value

    with pytest.raises(RoboCacheError, match=r"^proprio: a value is infinite or not a number; stop"):
        policy.act(proprio)

    assert policy.act(proprio, torch.tensor([[[1, 1], [1, 0]]])).isfinite().all()  # where nothing was measured


def test_actions_that_are_not_finite_are_not_returned(policy: TrainedPolicy) -> None:
    policy.policy.head.bias.data[0] = torch.nan

    with pytest.raises(RoboCacheError, match=r"^actions: a value is infinite or not a number; stop"):
        policy.act(torch.zeros(1, 2, 3))


@pytest.mark.parametrize("shape", [(1, 2, 1), (1, 1, 3), (2, 3)])
def test_an_observation_of_another_shape_is_not_broadcast(policy: TrainedPolicy, shape: tuple[int, ...]) -> None:
    with pytest.raises(RoboCacheError, match=r"^proprio: has shape .*; give \(\d, 2, 3\), as in training$"):
        policy.act(torch.zeros(shape))


def test_a_policy_of_other_columns_than_its_data_is_refused() -> None:
    with pytest.raises(RoboCacheError, match=r"^policy: 3 columns of proprio, the data has 1; "):
        TrainedPolicy(
            make_policy(CONFIG),
            replace(INFO, streams={"gripper": 1}, statistics={**INFO.statistics, "proprio": {"mean": [0], "std": [1]}}),
        )
