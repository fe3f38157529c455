"""Policies of the real LeRobot, and policy servers with openpi's serializer and GR00T's protocol."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from robocache_ros.engine.frames import FusedFrame
from robocache_ros.errors import RoboCacheError
from robocache_ros.policy.policies import open_policy
from robocache_ros.policy.policies.lerobot import checked_config
from robocache_ros.spec import FusionSpec
from robocache_ros.spec.layout import Layout
from robocache_ros.spec.run import RunOptions
from test.export.conftest import ROOT
from test.export.readers.environments import probe, program, reads
from test.export.sensor_recording import engine_episodes

# Policies that lerobot-train makes of an export, run as `robocache run` does, against LeRobot's own inference.

# One camera: those of a diffusion policy have one size. The policy does not need the other one.
FRONT = "observation.images.front: {type: VISUAL, shape: [3, 224, 224]}"
ACT = "chunk_size=12 n_action_steps=12 dim_model=32 n_heads=2 dim_feedforward=32 n_encoder_layers=1 use_vae=false"
DIFFUSION = "n_obs_steps=2 horizon=8 n_action_steps=4 down_dims=[16,32] diffusion_step_embed_dim=8 crop_shape=null"
SAMPLING = "spatial_softmax_num_keypoints=2 noise_scheduler_type=DDIM num_inference_steps=2"
POLICIES = {
    "act": f"{ACT} pretrained_backbone_weights=null".split(),
    "diffusion": [
        f"input_features={{observation.state: {{type: STATE, shape: [23]}}, {FRONT}}}",
        *f"{DIFFUSION} {SAMPLING}".split(),
    ],
}
TICKS = slice(4, 8)  # of an episode


@pytest.fixture(scope="module")
def run(made, spec, tmp_path_factory) -> Callable[[str], dict[str, Any]]:
    """What the probe says of a policy of each kind."""

    @cache
    def trained(kind: str) -> dict[str, Any]:
        home = tmp_path_factory.mktemp(kind)
        dataset = made("image")
        probe(
            "lerobot", home,
            *("--dataset.repo_id=local/lift", f"--dataset.root={dataset.out}", f"--output_dir={home / 'run'}"),
            *(f"--policy.type={kind}", "--policy.push_to_hub=false", "--policy.device=cpu"),
            *(f"--policy.{option}" for option in POLICIES[kind]),
            *("--steps=2", "--batch_size=2", "--num_workers=0", "--save_freq=2", "--wandb.enable=false"),
            script="train.py",
        )  # fmt: skip
        rows = engine_episodes(dataset, spec)[0]
        streams = [stream.name for stream in spec.streams if stream.role == "observation" and stream.kind != "cloud"]
        values = {name: rows[name][TICKS] for name in ("tick_ns", *streams, "action")}
        np.savez(home / "frames.npz", **values)
        arguments = (ROOT / "config/panda_lift.yaml", dataset.out, home / "frames.npz")
        policy = home / "run/checkpoints/last/pretrained_model"
        return probe("lerobot", home, policy, *arguments, script="policy.py", PYTHONPATH=str(ROOT))

    return trained


@reads("lerobot")
@pytest.mark.parametrize(("kind", "horizon"), [("act", 12), ("diffusion", 4)])
def test_the_plan_of_a_frame_is_that_of_its_row_to_the_bit(run, kind, horizon):
    told = run(kind)
    assert np.shape(told["ours"]) == (4, horizon, 7)
    # The first frame of a policy that observes two has none before it here, but in the dataset.
    first = 1 if kind == "diffusion" else 0
    assert told["ours"][first:] == told["lerobot"][first:]
    assert told["ours"][0] != told["ours"][1]


@reads("lerobot")
def test_the_process_of_a_policy_plans_the_same_also_from_the_frames_before(run):
    told = run("act")
    assert told["worker"] == told["lerobot"]
    told = run("diffusion")  # which has two observations
    assert np.shape(told["worker"]) == (4, 4, 7)
    assert told["worker"] == told["again"]


@reads("lerobot")
def test_real_time_chunking_gets_the_normalised_prefix(run):
    told = run("act")["prefix"]
    assert told["takes_prefix"] == [False, True]
    assert (told["shape"], told["inference_delay"], told["execution_horizon"]) == ([1, 12, 7], 3, 10)
    assert told["is_normalised"]
    assert told["error"] < 1e-5  # normalised and back in float32


@reads("lerobot")
def test_the_example_trains_on_the_rows_of_lerobot_dataset(made, spec, tmp_path):
    given = ("--out", tmp_path / "act", "--device", "cpu", "--steps", 2, "--batch-size", 2, "--set", *POLICIES["act"])
    found = probe("lerobot", tmp_path, made("image").out, *given, script="train_example.py", PYTHONPATH=str(ROOT))
    told = found["differences"]
    assert told.pop("observation.images.front") < 1e-6
    assert told.pop("observation.images.wrist") < 1e-6
    assert told == {"observation.state": 0, "action": 0, "action_is_pad": 0}
    assert checked_config(tmp_path / "act", spec).horizon == 12


@reads("lerobot")
def test_the_benchmark_trains_on_both_readers(made, tmp_path):
    command = [program("lerobot"), "-m", "benchmarks.training.lerobot_act", "--quick"]
    variables = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, "--dataset", made("image").out, "--out", tmp_path / "out"],
        cwd=ROOT, env=variables, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    rows = json.loads((tmp_path / "out" / "lerobot_act.json").read_text())["rows"]
    found = {row["what"]: row["value"] for row in rows}
    assert all(found[what] > 0 for what in ("LeRobotDataset", "TimelineLoader, no cache", "TimelineLoader, defaults"))


# Policy servers in an environment of their own: openpi with its real serializer, GR00T by its published protocol.

SERVE = Path(__file__).parent / "openpi" / "serve.py"


OBSERVED = {"prompt": "lift the cube", "image": ["uint8", 224, 224, 3], "joints": ["float32", 7]}


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
def observed(spec) -> tuple[FusionSpec, FusedFrame]:
    observation: Any = {"observation/joint_position": "joint_position", "observation/front": "front"}
    run = RunOptions(task="lift the cube", timeout_s=60, observation=observation)
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


@reads("openpi")
def test_openpi_reads_the_observation_and_its_actions_are_the_chunk(observed):
    spec, frame = observed
    with serving("openpi") as (url, told), closing(open_policy(url, spec)) as policy:
        for tick in (3, 4):
            chunk = policy.plan(frame, tick)
            assert chunk.tick == tick
            assert np.array_equal(chunk.actions, wanted(frame))
        assert policy.metadata == {"robot": "panda", "reset_pose": [0.0, 1.5]}  # type: ignore[attr-defined]
        keys = ["observation/front", "observation/joint_position", "prompt"]
        assert next(told) == {"keys": keys, **OBSERVED}


@reads("openpi")
def test_gr00t_reads_what_it_asks_for_and_its_actions_are_the_chunk(observed, monkeypatch):
    spec, frame = observed
    spec = replace(spec, run=replace(spec.run, observation=()))
    with serving("gr00t") as (url, told), closing(open_policy(url, spec)) as policy:
        with pytest.raises(RoboCacheError, match="the server failed: Unauthorized: Invalid API token"):
            policy.plan(frame, 3)
        monkeypatch.setenv("ROBOCACHE_POLICY_KEY", "secret")
        assert np.array_equal(policy.plan(frame, 3).actions, wanted(frame))
        keys = ["language/annotation.human.action.task_description", "state/joint_position", "video/front"]
        assert next(told) == {"keys": keys, **OBSERVED}
