"""The policies: their sizes, their losses, and what they predict, also in the units of the robot."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from robocache_ros.engine.frames import FusedFrame, split_window
from robocache_ros.errors import RoboCacheError
from robocache_ros.nodes.fused_subscriber import Assembly, ImageConverter
from robocache_ros.spec import Layout, load_spec
from robocache_ros.training.policies.make_policy import (
    ActionDiffusion,
    Continued,
    _positions,
    _quarters,
    kept_shares,
    make_policy,
    parameters,
    prefix_weights,
    tick_noise,
)
from robocache_ros.training.policies.policy_config import PRESETS, PolicyConfig
from robocache_ros.training.trained_policy import TrainedPolicy
from robocache_ros.training.training_data import DataInfo

SMALL = PolicyConfig("transformer", 5, 3, n_obs=2, horizon=4, layers=1, heads=2, width=16)
BOTH = [SMALL, replace(SMALL, kind="diffusion")]


def batch(config: PolicyConfig, size: int = 6) -> dict[str, Tensor]:
    torch.manual_seed(1)
    return {
        "proprio": torch.randn(size, config.n_obs, config.proprio),
        "actions": torch.randn(size, config.horizon, config.actions),
        "action_is_pad": torch.zeros(size, config.horizon, dtype=torch.bool),
    }


@pytest.mark.parametrize(("name", "millions"), [("act-13m", 13), ("act-101m", 101)])
def test_presets_have_the_parameters_in_their_name(name, millions):
    with torch.device("meta"):  # without memory
        policy = make_policy(PolicyConfig(proprio=270, actions=7, n_obs=234, horizon=16, **PRESETS[name]))
    assert round(parameters(policy) / 1e6) == millions
    assert policy.config.tokens == 250


@pytest.mark.parametrize("config", BOTH, ids=lambda c: c.kind)
def test_actions_have_the_shape_of_the_chunk_and_follow_from_the_noise(config):
    policy, given = make_policy(config), batch(config)
    noise = torch.randn(6, 4, 3)
    actions = [policy.predict(given, noise) for _ in range(2)]
    assert actions[0].shape == (6, 4, 3)
    assert torch.equal(*actions)
    assert policy(given).shape == ()
    given["action_is_pad"][:] = True
    assert policy(given) == 0  # a chunk without actions has no loss


@pytest.mark.parametrize("config", BOTH, ids=lambda c: c.kind)
def test_actions_outside_of_the_episode_do_not_count(config):
    policy, given = make_policy(config), batch(config)
    given["action_is_pad"][:, 2:] = True
    other = {**given, "actions": given["actions"].clone()}
    # The noise of diffusion is added to all actions, and its denoiser sees them all: change them where it is 0.
    other["actions"][:, 2:] = 100.0 if config.kind == "transformer" else given["actions"][:, 2:]
    losses = []
    for each in (given, other):
        torch.manual_seed(2)
        losses.append(policy(each))
    assert torch.equal(*losses)


def test_images_of_each_camera_change_the_actions():
    config = replace(SMALL, cameras={"vision": 2, "vision/wrist": 1})
    policy, given = make_policy(config), batch(config, 2)
    given |= {"vision": torch.rand(2, 2, 2, 3, 32, 32), "vision/wrist": torch.rand(2, 2, 3, 24, 40)}
    first = policy.predict(given)
    for key, camera in (("vision", (slice(None), -1, 1)), ("vision/wrist", (slice(None), -1))):
        other = {**given, key: given[key].clone()}
        other[key][camera] = 0
        assert not torch.equal(policy.predict(other), first)
    older = {**given, "vision/wrist": given["vision/wrist"].clone()}
    older["vision/wrist"][:, 0] = 0
    assert torch.equal(policy.predict(older), first)  # images of the newest tick only


def test_the_share_of_signal_falls_from_one_to_zero():
    kept = kept_shares(100)
    assert (kept.diff() < 0).all()
    assert kept[0] > 0.999
    assert kept[-1] < 1e-4


@pytest.mark.parametrize("sample_steps", [1, 10, 100])
def test_denoising_with_the_true_actions_gives_them(sample_steps):
    config = replace(SMALL, kind="diffusion", sample_steps=sample_steps)
    policy = ActionDiffusion(config)
    wanted = batch(config)["actions"].clamp(-2, 2)
    policy._clean = lambda _observed, _noisy, _step: wanted  # type: ignore[method-assign]
    torch.testing.assert_close(policy.predict(batch(config)), wanted, atol=1e-4, rtol=0)  # float32, in up to 100 steps


def test_a_denoiser_of_normal_actions_samples_their_distribution():
    """Of actions with mean m and deviation s, the best prediction from noisy ones is linear; DDIM is then an ODE."""
    config = replace(SMALL, kind="diffusion", horizon=50, noise_steps=1000, sample_steps=1000)
    policy = ActionDiffusion(config)
    mean, std = 0.7, 0.3

    def best(_observed: Any, noisy: Tensor, step: Tensor) -> Tensor:
        kept = policy.kept[step][:, None, None]
        gain = kept.sqrt() * std**2 / (kept * std**2 + 1 - kept)
        return mean + gain * (noisy - kept.sqrt() * mean)

    policy._clean = best  # type: ignore[method-assign]
    noise = torch.randn(64, 50, SMALL.actions, generator=torch.Generator().manual_seed(0))
    observed = {name: each[:1].expand(64, *each.shape[1:]) for name, each in batch(SMALL).items()}
    found = policy.predict(observed, noise)
    torch.testing.assert_close(found, mean + std * noise, atol=0.005, rtol=0)  # of 1000 steps of the ODE


@pytest.mark.parametrize(("rows", "frozen"), [(6, 2), (4, 4), (3, 0), (9, 1)])
def test_what_a_plan_continues_replaces_its_frozen_actions_and_weighs_less_after_them(rows, frozen):
    config = replace(SMALL, kind="diffusion", horizon=6)
    policy = ActionDiffusion(config)
    wanted = torch.ones(2, 6, SMALL.actions)
    policy._clean = lambda _observed, _noisy, _step: wanted.clone()  # type: ignore[method-assign]
    before = Continued(torch.full((rows, SMALL.actions), 2.0), frozen)
    found = policy.predict(batch(config, 2), tick_noise(config, 7).expand(2, -1, -1), before)
    shares = found[0, :, 0] - 1  # of the actions before
    assert torch.equal(found, (1 + shares)[None, :, None].expand_as(found))
    assert shares[:frozen].tolist() == [1] * frozen
    # https://arxiv.org/abs/2506.07339, equation 5
    rows = min(rows, 6)
    left = [(rows - i) / (rows - frozen + 1) for i in range(frozen, rows)]
    expected = torch.tensor([each * math.expm1(each) / math.expm1(1) for each in left])
    torch.testing.assert_close(shares[frozen:rows], expected, atol=1e-4, rtol=0)
    torch.testing.assert_close(shares[rows:], torch.zeros(6 - rows), atol=1e-4, rtol=0)
    assert prefix_weights(rows, frozen).shape == (rows,)


@pytest.mark.parametrize("tick", [0, 63, 64, 90_000_000_001])
def test_the_noise_of_a_tick_is_the_same_in_each_plan_that_has_it(tick):
    config = replace(SMALL, horizon=150)
    plan, later = tick_noise(config, tick), tick_noise(config, tick + 10)
    assert plan.shape == (1, 150, SMALL.actions)
    assert torch.equal(plan[:, 10:], later[:, :140])
    assert len(plan.flatten().unique()) > 0.99 * plan.numel()
    assert abs(plan.mean()) < 0.2
    assert abs(plan.std() - 1) < 0.2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "gpt"}, "gpt is not one of transformer, diffusion"),
        ({"heads": 3}, "width 16 is not a multiple of 3 heads"),
        ({"n_obs": 0}, "n_obs is 0; give a whole number from 1 to 65536"),
        ({"width": 1 << 20}, "width is 1048576; give a whole number from 1 to 65536"),
        ({"sample_steps": 0}, "sample_steps is 0; give a whole number from 1 to 10000"),
        ({"sample_steps": 101}, "noise steps"),
    ],
)
def test_a_wrong_shape_is_named(change, message):
    with pytest.raises(RoboCacheError, match=message):
        replace(SMALL, **change)


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (1, 4), (7, 5), (14, 14)])
def test_quarters_of_images_are_those_of_adaptive_pooling(rows, columns):
    images = torch.randn(2, 3, rows, columns)
    expected = torch.nn.functional.adaptive_avg_pool2d(images, 2).permute(0, 2, 3, 1).flatten(1)
    torch.testing.assert_close(_quarters(images), expected)  # sums in another order


def test_positions_in_images_are_where_a_channel_is_largest():
    images = torch.zeros(1, 2, 5, 9)
    images[0, 0, 0, 8] = images[0, 1, 3, 4] = 100.0
    rows_and_columns = _positions(images)
    torch.testing.assert_close(rows_and_columns, torch.tensor([[-1.0, 0.5, 1.0, 0.0]]))


# In the units of the robot.

CONFIG = replace(SMALL, proprio=3, actions=2)
SCALES = {
    "proprio": {"mean": [1.0, 2.0, 3.0], "std": [0.5, 2.0, 1.0]},
    "actions": {"mean": [10.0, 0.0], "std": [2.0, 3.0]},
}
INFO = DataInfo({"joints": 2, "gripper": 1}, 2, {}, SCALES, 50)


def trained(info: DataInfo = INFO, **changes: Any) -> TrainedPolicy:
    torch.manual_seed(0)
    return TrainedPolicy(make_policy(replace(CONFIG, **changes)), info)


@pytest.fixture
def policy() -> TrainedPolicy:
    return trained()


def frame(horizon: int = 3, **tensors: torch.Tensor) -> FusedFrame:
    joints = torch.arange(2.0 * horizon).view(horizon, 2)
    values = {"gripper": torch.full((horizon, 1), 7.0), "joints": joints, **tensors}
    valid = {name: torch.ones(horizon, dtype=torch.uint8) for name in values}
    return FusedFrame(0, torch.arange(horizon), values, valid, {})


def test_values_are_scaled_as_in_training(policy):
    proprio = torch.randn(5, 2, 3)
    scaled = (proprio - torch.tensor([1.0, 2.0, 3.0])) / torch.tensor([0.5, 2.0, 1.0])
    expected = policy.policy.predict({"proprio": scaled}) * torch.tensor([2.0, 3.0]) + torch.tensor([10.0, 0.0])
    assert torch.equal(policy.act(proprio), expected)


def test_invalid_values_are_the_mean(policy):
    proprio = torch.randn(1, 2, 3)
    valid = torch.tensor([[[1, 0], [0, 2]]], dtype=torch.uint8)
    filled = proprio.clone()
    filled[0, 0, 2], filled[0, 1, :2] = 3.0, torch.tensor([1.0, 2.0])
    assert torch.equal(policy.act(proprio, valid), policy.act(filled))


def test_an_observation_is_the_newest_ticks_in_the_order_of_the_training(policy):
    proprio, valid = policy.observation(frame())
    assert proprio.tolist() == [[[2, 3, 7], [4, 5, 7]]]
    assert valid.tolist() == [[[1, 1], [1, 1]]]
    with pytest.raises(RoboCacheError, match=r"^gripper: the frame has no such stream of 1 columns"):
        policy.observation(frame(gripper=torch.zeros(3, 2)))
    with pytest.raises(RoboCacheError, match=r"^horizon: 1 ticks in a frame; set horizon: 2 in the spec$"):
        policy.observation(frame(1))
    for shape in ((1, 2, 1), (1, 1, 3), (2, 3)):  # not broadcast
        with pytest.raises(RoboCacheError, match=r"^proprio: has shape .*; give \(\d, 2, 3\), as in training$"):
            policy.act(torch.zeros(shape))


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_an_observation_or_actions_that_are_not_finite_are_refused(policy, value):
    proprio = torch.zeros(1, 2, 3)
    proprio[0, 1, 2] = value
    with pytest.raises(RoboCacheError, match=r"^proprio: a value is infinite or not a number; stop"):
        policy.act(proprio)
    assert policy.act(proprio, torch.tensor([[[1, 1], [1, 0]]])).isfinite().all()  # where nothing was measured
    policy.policy.head.bias.data[0] = value
    with pytest.raises(RoboCacheError, match=r"^actions: a value is infinite or not a number; stop"):
        policy.act(torch.zeros(1, 2, 3))


def test_a_policy_of_other_columns_than_its_data_is_refused():
    statistics = {**INFO.statistics, "proprio": {"mean": [0], "std": [1]}}
    with pytest.raises(RoboCacheError, match=r"^policy: 3 columns of proprio, the data has 1; "):
        trained(replace(INFO, streams={"gripper": 1}, statistics=statistics))


CAMERAS = replace(INFO, cameras={"vision": 2}, images={"vision": ["front", "wrist"]})


@pytest.fixture
def seeing() -> TrainedPolicy:
    return trained(CAMERAS, cameras={"vision": 2})


def pictures(*names: str) -> dict[str, torch.Tensor]:
    random = torch.Generator().manual_seed(1)
    return {name: torch.randint(0, 256, (3, 16, 12), dtype=torch.uint8, generator=random) for name in names}


def test_a_frame_in_any_order_gives_the_actions_of_its_parts(seeing):
    images = pictures("wrist", "front")
    given = {"action": torch.ones(3, 2), **images, **frame().tensors}
    proprio = torch.tensor([[[2.0, 3, 7], [4, 5, 7]]])
    together = torch.stack([images["front"], images["wrist"]]).movedim(1, -1)[None, None]
    actions = seeing.act(given)
    assert actions.shape == (1, 4, 2)
    assert torch.equal(actions, seeing.act(proprio, images={"vision": together}))
    with pytest.raises(RoboCacheError, match=r"^images: no vision; "):
        seeing.act(proprio)


def test_one_tick_without_the_dimension_of_the_window_is_a_frame():
    policy = trained(n_obs=1)
    actions = policy.act({"gripper": torch.tensor([7.0]), "joints": torch.tensor([1.0, 2.0])})
    assert torch.equal(actions, policy.act(torch.tensor([[[1.0, 2.0, 7.0]]])))


NUMBERS, IMAGE = {"type": "std_msgs/msg/Float64MultiArray"}, {"type": "sensor_msgs/msg/Image"}
STREAMS: dict[str, dict[str, Any]] = {
    "command": {**NUMBERS, "dim": 2, "role": "action"},
    "gripper": {**NUMBERS, "dim": 1},
    "joints": {**NUMBERS, "dim": 2},
    "front": IMAGE,
    "wrist": IMAGE,
}
SPEC = {"streams": {name: {"topic": f"/{name}", **about} for name, about in STREAMS.items()}}
SPEC |= {"robocache": 1, "rate_hz": 50, "horizon": 3}


def live_frame(dtype: torch.dtype, **images: torch.Tensor) -> FusedFrame:
    """A frame as the client makes it of a message and the images of its tick; the last gripper position is invalid."""
    layout = Layout(load_spec(SPEC))
    count = len(layout.names)
    row = torch.arange(1.0, layout.width + 1).expand(3, -1)
    valid = torch.ones(3, count)
    valid[2, layout.names.index("gripper")] = 0
    made = split_window(layout, 10**9, torch.cat([row, valid, torch.zeros(3, count)], dim=1))
    assembly, converter = Assembly(list(images)), ImageConverter(dtype)
    found = assembly.add_window(made)
    for name, image in images.items():
        stream = next(each for each in layout.spec.streams if each.name == name)
        found += assembly.add_image(name, 10**9, converter(stream, image))
    (complete,) = found
    return complete


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.bfloat16])
def test_a_live_frame_gives_actions_without_its_commands(seeing, dtype):
    images = pictures("front", "wrist")
    actions = seeing.act(live_frame(dtype, **images))
    proprio, valid = torch.tensor([[[4.0, 5, 3], [4, 5, 3]]]), torch.tensor([[[1, 1], [1, 0]]])
    together = torch.stack([images["front"], images["wrist"]]).movedim(1, -1)[None, None]
    assert torch.equal(actions, seeing.act(proprio, valid, {"vision": together}))


def test_missing_streams_and_images_are_named(seeing):
    with pytest.raises(RoboCacheError, match=r"^joints, gripper: the frame has no such stream; use the spec"):
        seeing.act({})
    with pytest.raises(RoboCacheError, match=r"^wrist: the frame has no such stream; .* images= of FusedSubscriber$"):
        seeing.act(live_frame(torch.uint8, **pictures("front")))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"front": torch.full((3, 16, 12), -1.5)}, "front: the image is not in 0..1; use FusedSubscriber without"),
        ({"front": torch.zeros(0)}, r"front: an image of shape \(0,\); wait for one of"),
        ({"front": torch.zeros(3, 8, 8)}, "images: those of vision differ in size; "),
        ({"joints": [1.0, 2.0]}, "joints: a list; give a torch tensor"),
        ({"joints": torch.tensor(1.0)}, r"joints: the frame has no such stream of 2 columns, but \(\); "),
    ],
)
def test_what_is_not_of_the_training_is_refused(seeing, change, message):
    with pytest.raises(RoboCacheError, match=f"^{message}"):
        seeing.act({**frame().tensors, **pictures("front", "wrist"), **change})
