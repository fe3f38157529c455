"""The policies: their sizes, their losses, and what they predict."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from robocache_ros.errors import RoboCacheError
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
def test_presets_have_the_parameters_in_their_name(name: str, millions: int) -> None:
    with torch.device("meta"):  # without memory
        policy = make_policy(PolicyConfig(proprio=270, actions=7, n_obs=234, horizon=16, **PRESETS[name]))

    assert round(parameters(policy) / 1e6) == millions
    assert policy.config.tokens == 250


@pytest.mark.parametrize("config", BOTH, ids=lambda c: c.kind)
def test_actions_have_the_shape_of_the_chunk_and_follow_from_the_noise(config: PolicyConfig) -> None:
    policy, given = make_policy(config), batch(config)
    noise = torch.randn(6, 4, 3)

    actions = [policy.predict(given, noise) for _ in range(2)]

    assert actions[0].shape == (6, 4, 3)
    assert torch.equal(*actions)
    assert policy(given).shape == ()
    given["action_is_pad"][:] = True
    assert policy(given) == 0  # a chunk without actions has no loss


@pytest.mark.parametrize("config", BOTH, ids=lambda c: c.kind)
def test_actions_outside_of_the_episode_do_not_count(config: PolicyConfig) -> None:
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


def test_images_of_each_camera_change_the_actions() -> None:
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


def test_the_share_of_signal_falls_from_one_to_zero() -> None:
    kept = kept_shares(100)

    assert (kept.diff() < 0).all()
    assert kept[0] > 0.999
    assert kept[-1] < 1e-4


@pytest.mark.parametrize("sample_steps", [1, 10, 100])
def test_denoising_with_the_true_actions_gives_them(sample_steps: int) -> None:
    config = replace(SMALL, kind="diffusion", sample_steps=sample_steps)
    policy = ActionDiffusion(config)
    wanted = batch(config)["actions"].clamp(-2, 2)
    policy._clean = lambda _observed, _noisy, _step: wanted  # type: ignore[method-assign]

    torch.testing.assert_close(policy.predict(batch(config)), wanted, atol=1e-4, rtol=0)  # float32, in up to 100 steps


def test_a_denoiser_of_normal_actions_samples_their_distribution() -> None:
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
def test_what_a_plan_continues_replaces_its_frozen_actions_and_weighs_less_after_them(rows: int, frozen: int) -> None:
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
def test_the_noise_of_a_tick_is_the_same_in_each_plan_that_has_it(tick: int) -> None:
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
def test_a_wrong_shape_is_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(RoboCacheError, match=message):
        replace(SMALL, **change)


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (1, 4), (7, 5), (14, 14)])
def test_quarters_of_images_are_those_of_adaptive_pooling(rows: int, columns: int) -> None:
    images = torch.randn(2, 3, rows, columns)

    expected = torch.nn.functional.adaptive_avg_pool2d(images, 2).permute(0, 2, 3, 1).flatten(1)

    torch.testing.assert_close(_quarters(images), expected)  # sums in another order


def test_positions_in_images_are_where_a_channel_is_largest() -> None:
    images = torch.zeros(1, 2, 5, 9)
    images[0, 0, 0, 8] = images[0, 1, 3, 4] = 100.0

    rows_and_columns = _positions(images)

    torch.testing.assert_close(rows_and_columns, torch.tensor([[-1.0, 0.5, 1.0, 0.0]]))
