"""A policy in the units of the robot."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from robocache_ros.engine.frames import FusedFrame, split_window
from robocache_ros.errors import RoboCacheError
from robocache_ros.nodes.fused_subscriber import Assembly, ImageConverter
from robocache_ros.spec import Layout, load_spec
from robocache_ros.training.policies.make_policy import make_policy
from robocache_ros.training.policies.policy_config import PolicyConfig
from robocache_ros.training.trained_policy import TrainedPolicy
from robocache_ros.training.training_data import DataInfo

CONFIG = PolicyConfig("transformer", 3, 2, n_obs=2, horizon=4, layers=1, heads=2, width=16)
SCALES = {
    "proprio": {"mean": [1.0, 2.0, 3.0], "std": [0.5, 2.0, 1.0]},
    "actions": {"mean": [10.0, 0.0], "std": [2.0, 3.0]},
}
INFO = DataInfo({"joints": 2, "gripper": 1}, 2, {}, SCALES, 50)


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
    with pytest.raises(RoboCacheError, match=r"^gripper: the frame has no such stream of 1 columns"):
        policy.observation(frame(gripper=torch.zeros(3, 2)))
    with pytest.raises(RoboCacheError, match=r"^horizon: 1 ticks in a frame; set horizon: 2 in the spec$"):
        policy.observation(frame(1))
    for shape in ((1, 2, 1), (1, 1, 3), (2, 3)):  # not broadcast
        with pytest.raises(RoboCacheError, match=r"^proprio: has shape .*; give \(\d, 2, 3\), as in training$"):
            policy.act(torch.zeros(shape))


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_an_observation_or_actions_that_are_not_finite_are_refused(policy: TrainedPolicy, value: float) -> None:
    proprio = torch.zeros(1, 2, 3)
    proprio[0, 1, 2] = value

    with pytest.raises(RoboCacheError, match=r"^proprio: a value is infinite or not a number; stop"):
        policy.act(proprio)
    assert policy.act(proprio, torch.tensor([[[1, 1], [1, 0]]])).isfinite().all()  # where nothing was measured
    policy.policy.head.bias.data[0] = value
    with pytest.raises(RoboCacheError, match=r"^actions: a value is infinite or not a number; stop"):
        policy.act(torch.zeros(1, 2, 3))


def test_a_policy_of_other_columns_than_its_data_is_refused() -> None:
    statistics = {**INFO.statistics, "proprio": {"mean": [0], "std": [1]}}
    with pytest.raises(RoboCacheError, match=r"^policy: 3 columns of proprio, the data has 1; "):
        TrainedPolicy(make_policy(CONFIG), replace(INFO, streams={"gripper": 1}, statistics=statistics))


CAMERAS = replace(INFO, cameras={"vision": 2}, images={"vision": ["front", "wrist"]})


@pytest.fixture
def seeing() -> TrainedPolicy:
    torch.manual_seed(0)
    return TrainedPolicy(make_policy(replace(CONFIG, cameras={"vision": 2})), CAMERAS)


def pictures(*names: str) -> dict[str, torch.Tensor]:
    random = torch.Generator().manual_seed(1)
    return {name: torch.randint(0, 256, (3, 16, 12), dtype=torch.uint8, generator=random) for name in names}


def test_a_frame_in_any_order_gives_the_actions_of_its_parts(seeing: TrainedPolicy) -> None:
    images = pictures("wrist", "front")
    given = {"action": torch.ones(3, 2), **images, **frame().tensors}
    proprio = torch.tensor([[[2.0, 3, 7], [4, 5, 7]]])
    together = torch.stack([images["front"], images["wrist"]]).movedim(1, -1)[None, None]

    actions = seeing.act(given)

    assert actions.shape == (1, 4, 2)
    assert torch.equal(actions, seeing.act(proprio, images={"vision": together}))
    with pytest.raises(RoboCacheError, match=r"^images: no vision; "):
        seeing.act(proprio)


def test_one_tick_without_the_dimension_of_the_window_is_a_frame() -> None:
    policy = TrainedPolicy(make_policy(replace(CONFIG, n_obs=1)), INFO)

    actions = policy.act({"gripper": torch.tensor([7.0]), "joints": torch.tensor([1.0, 2.0])})

    assert torch.equal(actions, policy.act(torch.tensor([[[1.0, 2.0, 7.0]]])))


def numbers(topic: str, dim: int, **options: str) -> dict[str, object]:
    return {"topic": topic, "type": "std_msgs/msg/Float64MultiArray", "field": "data", "dim": dim, **options}


SPEC = {
    "robocache": 1,
    "rate_hz": 50,
    "horizon": 3,
    "streams": {
        "command": numbers("/command", 2, role="action"),
        "gripper": numbers("/gripper", 1),
        "joints": numbers("/joints", 2),
        **{name: {"topic": f"/{name}", "type": "sensor_msgs/msg/Image"} for name in ("front", "wrist")},
    },
}


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
def test_a_live_frame_gives_actions_without_its_commands(seeing: TrainedPolicy, dtype: torch.dtype) -> None:
    images = pictures("front", "wrist")

    actions = seeing.act(live_frame(dtype, **images))

    proprio, valid = torch.tensor([[[4.0, 5, 3], [4, 5, 3]]]), torch.tensor([[[1, 1], [1, 0]]])
    together = torch.stack([images["front"], images["wrist"]]).movedim(1, -1)[None, None]
    assert torch.equal(actions, seeing.act(proprio, valid, {"vision": together}))


def test_missing_streams_and_images_are_named(seeing: TrainedPolicy) -> None:
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
def test_what_is_not_of_the_training_is_refused(seeing: TrainedPolicy, change: dict, message: str) -> None:
    with pytest.raises(RoboCacheError, match=f"^{message}"):
        seeing.act({**frame().tensors, **pictures("front", "wrist"), **change})
