"""A policy in a process of its own: its answers, its errors, and its end."""

from __future__ import annotations

import os
import signal
from contextlib import closing
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from robocache_ros.engine.frames import FusedFrame
from robocache_ros.errors import RoboCacheError
from robocache_ros.policy.plan import Chunk, Prefix
from robocache_ros.policy.policies import check_policy, kind_of, open_policy
from robocache_ros.policy.worker import ProcessWorker
from robocache_ros.spec import load_spec
from robocache_ros.spec.layout import Layout
from robocache_ros.spec.run import RunOptions
from test.nodes.rig import until

STREAM = {"topic": "/x", "type": "std_msgs/msg/Float32MultiArray", "dim": 2}
SPEC = load_spec({"robocache": 1, "streams": {"x": STREAM}})
CODE = """
import numpy as np, torch
from robocache_ros.policy.plan import Chunk

def held(frame, prefix=None):
    if prefix:
        return prefix.rows + prefix.frozen
    if frame["x"][0, 0] < 0:
        raise ValueError("a negative value")
    return frame["x"][-1:].expand(3, 2)

def chunk(frame):
    return Chunk(7, np.ones((2, 2)))
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("policy") / "mine.py"
    path.write_text(CODE)
    return path


@pytest.fixture(scope="module")
def worker(file, forked_policies):
    with closing(ProcessWorker(f"{file}:held", SPEC)) as worker:
        yield worker


def frame(value: float) -> FusedFrame:
    x = torch.full((1, 2), value)
    return FusedFrame(40_000_000, torch.tensor([40_000_000]), {"x": x}, {"x": torch.ones(1, dtype=torch.uint8)}, {})


def ready(worker: ProcessWorker) -> None:
    until(lambda: worker.poll() or not worker.busy or worker.dead)
    assert not worker.dead


def test_a_frame_is_answered_and_an_error_too(worker):
    ready(worker)
    worker.submit(frame(1.5), 2)
    assert worker.busy
    (reply,) = until(worker.poll)
    assert reply.tick == 2
    assert reply.chunk.actions.tolist() == [[1.5, 1.5]] * 3

    worker.submit(frame(-1), 3)
    (reply,) = until(worker.poll)
    assert (reply.chunk, reply.error) == (None, "ValueError('a negative value')")
    assert not worker.busy


def test_a_process_that_was_killed_is_noticed_and_started_again(worker):
    ready(worker)
    os.kill(worker.pid, signal.SIGKILL)
    until(lambda: worker.poll() or worker.dead)
    assert worker.dead == "its process ended with exit code -9"

    worker.restart()

    ready(worker)
    worker.submit(frame(2), 9)
    assert until(worker.poll)[0].tick == 9


@pytest.mark.usefixtures("forked_policies")
def test_a_policy_that_cannot_be_opened_says_why(file):
    with closing(ProcessWorker(f"{file}:absent", SPEC)) as worker:
        until(lambda: worker.poll() or worker.dead)
    assert "has no function absent" in worker.dead


def test_a_function_with_a_prefix_gets_what_its_chunk_continues(worker):
    ready(worker)
    worker.submit(frame(0), 2, Prefix(np.ones((4, 2), np.float32), 3))
    (reply,) = until(worker.poll)
    assert reply.chunk.actions.tolist() == [[4, 4]] * 4


def test_a_prefix_for_a_policy_that_takes_none_is_refused(file):
    with pytest.raises(RoboCacheError, match=r"run\.prefix: .*chunk takes no prefix; remove the option"):
        open_policy(f"{file}:chunk", replace(SPEC, run=RunOptions(prefix=3)))


def test_a_function_may_return_a_chunk_of_another_tick(file):
    found = open_policy(f"{file}:chunk", SPEC).plan(frame(0), 9)
    assert (found.tick, found.actions.dtype, found.actions.shape) == (7, np.float32, (2, 2))


def test_a_function_of_a_module_is_called(file, monkeypatch):
    monkeypatch.syspath_prepend(file.parent)
    assert open_policy("mine:held", SPEC).plan(frame(2), 5).actions.tolist() == [[2, 2]] * 3
    with pytest.raises(RoboCacheError, match="no module absent"):
        open_policy("absent.module:function", SPEC)
    with pytest.raises(RoboCacheError, match="does not exist"):
        open_policy("absent.py:function", SPEC)


@pytest.mark.parametrize("text", ["policy", "http://host", "a:b c", ""])
def test_what_is_not_a_policy_is_refused(text):
    with pytest.raises(RoboCacheError, match="policy: "):
        kind_of(text)


@pytest.mark.parametrize("text", ["absent.pt", "absent.py:function"])
def test_a_policy_whose_file_does_not_exist_is_refused_before_anything_starts(text):
    with pytest.raises(RoboCacheError, match=f"policy: {text.partition(':')[0]} does not exist; check its path"):
        check_policy(text, SPEC)


def test_a_checkpoint_plans_its_horizon_in_the_units_of_the_robot():
    from robocache_ros.policy.policies.checkpoint import CheckpointPolicy
    from robocache_ros.training.policies.make_policy import Continued
    from robocache_ros.training.policies.policy_config import PolicyConfig

    class Trained:
        info = SimpleNamespace(rate_hz=50)
        policy = SimpleNamespace(config=PolicyConfig("diffusion", 1, 2, horizon=4))

        def act(self, frame: FusedFrame, noise: torch.Tensor, prefix: Continued | None) -> torch.Tensor:
            assert noise.shape == (1, 4, 2)
            actions = frame["x"][None].expand(1, 4, 2).clone()
            if prefix is not None:
                actions[0, : prefix.frozen] = prefix.actions[: prefix.frozen]
            return actions

    policy = CheckpointPolicy(Trained())
    found = policy.plan(frame(3), 5)
    assert isinstance(found, Chunk)
    assert (found.tick, found.actions.tolist()) == (5, [[3, 3]] * 4)
    assert policy.takes_prefix
    continued = policy.plan(frame(3), 5, Prefix(np.full((3, 2), 7, np.float32), 1))
    assert continued.actions.tolist() == [[7, 7], *[[3, 3]] * 3]
    other = replace(frame(3), layout=Layout(replace(SPEC, rate_hz=30)))
    with pytest.raises(RoboCacheError, match="rate_hz: 30, but the training had 50"):
        CheckpointPolicy(Trained()).plan(other, 5)
