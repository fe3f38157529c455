"""Runs under the real LeRobot's own Python: opens a dataset and prints as JSON what it read."""

import json
import sys

import without_cuda  # noqa: F401

# isort: split

import numpy as np
import torch
from lerobot.datasets.lerobot_dataset import LeRobotDataset

root, *indices = sys.argv[1:]
plain = LeRobotDataset("local/dataset", root=root, video_backend="torchcodec")
window = {
    "action": [0.0, 0.02, 0.04],
    "observation.state": [-0.02, 0.0],
    **{k: [-0.02, 0.0] for k in plain.meta.camera_keys},
}
windowed = LeRobotDataset("local/dataset", root=root, video_backend="torchcodec", delta_timestamps=window)


def reported(value):
    """A tensor as shape, type and mean (images) or values (the rest)."""
    if not isinstance(value, torch.Tensor):
        return value
    about = {"shape": list(value.shape), "dtype": str(value.dtype)}
    return about | ({"mean": float(value.double().mean())} if value.numel() > 1000 else {"value": value.tolist()})


answer = {
    "frames": plain.num_frames,
    "episodes": plain.num_episodes,
    "fps": plain.fps,
    "cameras": plain.meta.camera_keys,
    "robot_type": plain.meta.robot_type,
    "items": {i: {k: reported(v) for k, v in plain[int(i)].items()} for i in indices},
    "windows": {i: {k: reported(v) for k, v in windowed[int(i)].items()} for i in indices},
    "stats": {k: {n: np.asarray(v).tolist() for n, v in s.items()} for k, s in plain.meta.stats.items()},
}
print(json.dumps(answer))  # noqa: T201
