"""LeRobot policies and a spec: what is refused at the start. The real LeRobot is in test/export/readers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from robocache_ros.errors import RoboCacheError
from robocache_ros.policy.lerobot_config import read_lerobot_config
from robocache_ros.policy.policies import check_policy, kind_of, observed_ticks
from robocache_ros.policy.policies import lerobot as module
from robocache_ros.policy.policies.lerobot import checked_config
from robocache_ros.spec import FusionSpec, load_spec
from test.policy.models import ARM

STREAMS: dict[str, Any] = ARM | {
    "front": {"topic": "/front", "type": "sensor_msgs/msg/Image", "image": {"size": [4, 6]}},
    "wrist": {"topic": "/wrist", "type": "sensor_msgs/msg/Image"},
}


def spec(**run: Any) -> FusionSpec:
    return load_spec({"robocache": 1, "streams": STREAMS} | ({"run": run} if run else {}))


def feature(*shape: int) -> dict[str, Any]:
    return {"type": "STATE", "shape": list(shape)}


@pytest.fixture
def folder(tmp_path):
    write(tmp_path)
    return tmp_path


def write(folder: Path, rename: dict[str, str] | None = None, **changed: Any) -> None:
    inputs = {"observation.state": feature(2), "observation.images.front": feature(3, 4, 6)}
    config = {"type": "act", "n_obs_steps": 1, "chunk_size": 50, "output_features": {"action": feature(2)}}
    config["input_features"] = inputs | changed.pop("inputs", {})
    (folder / "config.json").write_text(json.dumps(config | changed))
    steps = [{"registry_name": "rename_observations_processor", "config": {"rename_map": rename or {}}}]
    (folder / "policy_preprocessor.json").write_text(json.dumps({"steps": steps}))


def test_a_folder_is_a_policy_of_lerobot_that_goes_with_its_spec(folder):
    assert kind_of(str(folder)) == "lerobot"
    found = checked_config(folder, spec())
    assert (found.type, found.horizon, found.observed_ticks, found.cameras) == ("act", 50, 1, ("front",))
    assert found.inputs == {"observation.state": (2,), "observation.images.front": (3, 4, 6)}
    assert observed_ticks(str(folder)) == 1


RENAMED = {"observation.images.front": "observation.images.camera1"}


@pytest.mark.parametrize(
    ("changed", "cameras"),
    [
        ({"inputs": {"observation.images.empty_camera_0": feature(3, 480, 640)}}, ("front",)),  # left to the policy
        ({"inputs": {"observation.images.wrist": feature(3, 480, 640)}}, ("front", "wrist")),  # a stream without a size
        ({"rename": RENAMED, "input_features": {RENAMED["observation.images.front"]: feature(3, 4, 6)}}, ("front",)),
    ],
    ids=["an empty camera", "an image of any size", "features that the training renamed"],
)
def test_cameras_are_those_of_the_dataset(folder, changed, cameras):
    write(folder, **changed)
    found = checked_config(folder, spec())
    assert found.cameras == cameras
    assert found.inputs["observation.images.front"] == (3, 4, 6)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"inputs": {"observation.state": feature(7)}}, r"observation\.state is 2 in the spec, but 7 in the policy"),
        ({"inputs": {"observation.images.front": feature(3, 8, 6)}}, r"front is 3x4x6 in the spec, but 3x8x6"),
        ({"inputs": {"observation.images.top": feature(3, 4, 6)}}, r"it needs observation\.images\.top, and the spec"),
        ({"inputs": {"observation.environment_state": feature(3)}}, "it needs observation.environment_state"),
        ({"output_features": {"action": feature(6)}}, "its action is 6, but that of the spec 2; use its spec"),
        ({"type": "tdmpc"}, "LeRobot's tdmpc cannot be run here; use one of act"),
        ({"n_obs_steps": 2}, "n_obs_steps 2 is not possible for act; train with 1"),
        ({"type": "diffusion", "n_obs_steps": 99}, "n_obs_steps 99 is not possible"),
        ({"input_features": None}, "not a policy of LeRobot"),
        ({"input_features": [1]}, "not a policy of LeRobot"),
        ({"chunk_size": -3}, "not a policy of LeRobot"),
        ({"output_features": {}}, "not a policy of LeRobot"),
    ],
)
def test_a_policy_that_does_not_go_with_the_spec_is_refused_with_names(folder, changed, words):
    write(folder, **changed)
    with pytest.raises(RoboCacheError, match=words) as caught:
        check_policy(str(folder), spec())
    assert len(str(caught.value)) < 200


def test_several_observations_are_possible_for_diffusion(folder):
    write(folder, type="diffusion", n_obs_steps=2, n_action_steps=8)
    found = checked_config(folder, spec())
    assert (found.horizon, found.observed_ticks, observed_ticks(str(folder))) == (8, 2, 2)


@pytest.mark.parametrize("text", ["", "[]", "{", "[" * 100_000, '{"type": "act"}'])
def test_a_damaged_config_is_refused(folder, text):
    (folder / "config.json").write_text(text)
    with pytest.raises(RoboCacheError, match=r"config\.json: not a"):
        read_lerobot_config(folder)


def test_the_folder_of_a_checkpoint_names_that_of_the_policy(tmp_path):
    with pytest.raises(RoboCacheError, match=r"config\.json: cannot be read"):
        check_policy(str(tmp_path), spec())
    (tmp_path / "pretrained_model").mkdir()
    write(tmp_path / "pretrained_model")
    with pytest.raises(RoboCacheError, match="not the policy; give its folder pretrained_model"):
        check_policy(str(tmp_path), spec())


def test_a_python_without_lerobot_is_named_with_what_to_install(folder, monkeypatch):
    monkeypatch.setattr(module, "find_spec", lambda _name: None)
    with pytest.raises(RoboCacheError, match=r"lerobot is not installed in .*; there: pip install lerobot==0\.4\.4"):
        check_policy(str(folder), spec())
