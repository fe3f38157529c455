"""Policy servers in an environment of their own: openpi with its real serializer, GR00T by its published protocol."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from robocache_ros.engine.frames import FusedFrame
from robocache_ros.errors import RoboCacheError
from robocache_ros.policy.policies import open_policy
from robocache_ros.spec import FusionSpec
from robocache_ros.spec.layout import Layout
from robocache_ros.spec.run import RunOptions
from test.export.readers.environments import needs, program

pytestmark = needs("openpi")
SERVE = Path(__file__).parent / "openpi" / "serve.py"


@contextmanager
def serving(kind: str) -> Iterator[tuple[str, Iterator[dict[str, Any]]]]:
    """The address of a server, and what it says of each request."""
    command = [str(program("openpi")), str(SERVE), kind]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        told = map(json.loads, process.stdout)
        try:
            yield f"{kind}://127.0.0.1:{next(told)['port']}", told
        finally:
            process.kill()


@pytest.fixture
def observed(spec: FusionSpec) -> tuple[FusionSpec, FusedFrame]:
    run = RunOptions(
        task="lift the cube",
        timeout_s=60,
        observation={"observation/joint_position": "joint_position", "observation/front": "front"},  # type: ignore[arg-type]
    )
    random = torch.Generator().manual_seed(0)
    tensors = {
        "joint_position": torch.rand((1, 7), generator=random),
        "gripper": torch.zeros(1, 2),
        "front": torch.randint(0, 256, (3, 224, 224), dtype=torch.uint8, generator=random),
    }
    return replace(spec, run=run), FusedFrame(1, torch.tensor([1]), tensors, {}, {}, {}, Layout(spec))


def wanted(frame: FusedFrame) -> np.ndarray:
    """The actions that the server computes."""
    image = frame["front"].permute(1, 2, 0).numpy()
    weights = np.arange(image.size).reshape(image.shape) % 251
    joints = frame["joint_position"][-1].numpy()
    return (joints[None] + np.arange(6)[:, None] + float((image * weights).sum() % 1024)).astype(np.float32)


def test_openpi_reads_the_observation_and_its_actions_are_the_chunk(observed: tuple[FusionSpec, FusedFrame]) -> None:
    spec, frame = observed
    with serving("openpi") as (url, told), closing(open_policy(url, spec)) as policy:
        for tick in (3, 4):
            chunk = policy.plan(frame, tick)
            assert chunk.tick == tick
            assert np.array_equal(chunk.actions, wanted(frame))
        assert policy.metadata == {"robot": "panda", "reset_pose": [0.0, 1.5]}  # type: ignore[attr-defined]
        assert next(told) == {
            "keys": ["observation/front", "observation/joint_position", "prompt"],
            "prompt": "lift the cube",
            "image": ["uint8", 224, 224, 3],
            "joints": ["float32", 7],
        }


def test_gr00t_reads_what_it_asks_for_and_its_actions_are_the_chunk(
    observed: tuple[FusionSpec, FusedFrame], monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, frame = observed
    spec = replace(spec, run=replace(spec.run, observation=()))
    with serving("gr00t") as (url, told), closing(open_policy(url, spec)) as policy:
        with pytest.raises(RoboCacheError, match="the server failed: Unauthorized: Invalid API token"):
            policy.plan(frame, 3)
        monkeypatch.setenv("ROBOCACHE_POLICY_KEY", "secret")
        assert np.array_equal(policy.plan(frame, 3).actions, wanted(frame))
        assert next(told) == {
            "keys": [
                "language/annotation.human.action.task_description",
                "state/joint_position",
                "video/front",
            ],
            "prompt": "lift the cube",
            "image": ["uint8", 224, 224, 3],
            "joints": ["float32", 7],
        }
