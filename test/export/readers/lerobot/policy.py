"""Runs under the real LeRobot's own Python: plans from frames as `robocache run` does, and from rows as LeRobot does.

Arguments: the folder of the policy, the spec, the dataset, an .npz of streams with `tick_ns`. Prints JSON, by tick.
"""

import json
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import without_cuda  # noqa: F401

# isort: split

import numpy as np
import torch
from lerobot.datasets.lerobot_dataset import LeRobotDataset
from lerobot.policies.rtc.configuration_rtc import RTCConfig

from robocache_ros.engine.frames import FusedFrame
from robocache_ros.policy.lerobot_config import read_lerobot_config
from robocache_ros.policy.plan import Prefix
from robocache_ros.policy.policies import check_policy, open_policy
from robocache_ros.policy.policies.lerobot import LeRobotPolicy
from robocache_ros.policy.worker import ProcessWorker
from robocache_ros.spec import load_spec
from robocache_ros.spec.layout import Layout

torch.manual_seed(0)  # in a process that is spawned too


def frames_of(spec, path):
    """A frame of each tick, as a fusion node gives them: images (C, H, W) uint8."""
    rows = dict(np.load(path))
    images = [stream.name for stream in spec.media if stream.kind == "image"]
    for index, tick_ns in enumerate(rows["tick_ns"]):
        tensors = {stream.name: torch.from_numpy(rows[stream.name][index : index + 1]) for stream in spec.vectors}
        tensors |= {
            name: torch.from_numpy(np.ascontiguousarray(np.moveaxis(rows[name][index], 2, 0))) for name in images
        }
        yield FusedFrame(int(tick_ns), torch.tensor([tick_ns]), tensors, {}, {}, {}, Layout(spec))


def answers(worker, frames):
    """The answers of a worker to each frame, which it has observed before."""
    for tick, frame in enumerate(frames):
        while worker.busy:
            assert not worker.dead, worker.dead
            worker.poll()
            time.sleep(0.01)
        worker.observe(frame, tick)
        worker.submit(frame, tick)
        while not (replies := worker.poll()):
            assert not worker.dead, worker.dead
            time.sleep(0.01)
        assert replies[0].chunk is not None, replies[0].error
        yield replies[0].chunk.actions


def own(policy, row):
    """What LeRobot plans from a row of the dataset, whose observations are windows if the policy wants them."""
    model, wanted = policy._policy, (*policy._policy.config.input_features, "task")
    batch = {
        key: value[None] if isinstance(value, torch.Tensor) else [value] for key, value in row.items() if key in wanted
    }
    prepared = policy._preprocessor(batch)
    with torch.no_grad():
        if model.config.type == "act":
            actions = model.predict_action_chunk(prepared)
        else:
            images = torch.stack([prepared[key] for key in model.config.image_features], dim=-4)
            actions = model.diffusion.generate_actions({**prepared, "observation.images": images})
        return policy._postprocessor(actions)[0].numpy()


def continued(policy, folder):
    """What a policy with real-time chunking gets of a prefix, and the prefix from its normalised rows."""
    given = {}

    class Model:
        config = SimpleNamespace(rtc_config=RTCConfig(enabled=True))

        def predict_action_chunk(self, batch, **options):
            given.update(options)
            return options["prev_chunk_left_over"]

    model = LeRobotPolicy(Model(), policy._preprocessor, policy._postprocessor, read_lerobot_config(folder), "task")
    rows = np.random.default_rng(0).normal(size=(40, 7)).astype(np.float32)
    chunk = model.plan(frames[-1], 9, Prefix(rows, 3))
    return {
        "takes_prefix": [policy.takes_prefix, model.takes_prefix],
        "shape": list(given["prev_chunk_left_over"].shape),
        "inference_delay": given["inference_delay"],
        "execution_horizon": given["execution_horizon"],
        "error": float(np.abs(chunk.actions - rows[:12]).max()),
        "is_normalised": not np.allclose(given["prev_chunk_left_over"][0], rows[:12]),
    }


if __name__ == "__main__":
    folder, spec, root, path = sys.argv[1:]
    spec = load_spec(spec)
    frames = list(frames_of(spec, path))
    check_policy(folder, spec)
    policy = open_policy(folder, spec)
    config = policy._policy.config
    steps = [(i + 1 - config.n_obs_steps) / spec.rate_hz for i in range(config.n_obs_steps)]
    windows = dict.fromkeys(config.input_features, steps) if config.n_obs_steps > 1 else None
    dataset = LeRobotDataset("local/dataset", root=root, delta_timestamps=windows)
    index = {int(tick_ns): at for at, tick_ns in enumerate(dataset.hf_dataset["robocache.tick_ns"])}
    found = {"ours": [], "lerobot": []}
    for tick, frame in enumerate(frames):
        torch.manual_seed(tick)
        earlier = frames[max(0, tick + 1 - config.n_obs_steps) : tick]
        found["ours"].append(policy.plan(frame, tick, None, earlier).actions.tolist())
        torch.manual_seed(tick)
        found["lerobot"].append(own(policy, dataset[index[frame.tick_ns]]).tolist())
    torch.manual_seed(0)  # as the process of the worker
    again = open_policy(folder, spec)
    found["again"] = [
        again.plan(frame, tick, None, frames[max(0, tick + 1 - config.n_obs_steps) : tick]).actions.tolist()
        for tick, frame in enumerate(frames)
    ]
    worker = ProcessWorker(folder, spec)
    found["worker"] = [actions.tolist() for actions in answers(worker, frames)]
    worker.close()
    if config.type == "act":
        found["prefix"] = continued(policy, Path(folder))
    print(json.dumps(found))  # noqa: T201
