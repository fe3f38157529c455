"""Runs under the real LeRobot's own Python: examples/train_lerobot_policy.py, with its options.

Prints as JSON the largest difference, by key, of its rows from those of LeRobotDataset.
"""

import json
import runpy
import sys
from pathlib import Path

import without_cuda  # noqa: F401

# isort: split

import torch
from lerobot.datasets.lerobot_dataset import LeRobotDataset
from torch.utils.data import DataLoader

from robocache_ros.datasets import LoaderOptions, TimelineLoader, Window
from robocache_ros.training.training_data import data_info, open_for_training

if __name__ == "__main__":  # workers of the loader import this file
    example = runpy.run_path(str(Path(__file__).parents[4] / "examples" / "train_lerobot_policy.py"))
    example["main"](sys.argv[1:])

    folder, horizon = sys.argv[1], 12
    dataset = open_for_training(folder, window=Window(1, horizon, n_images=1), vision=True)
    loader = TimelineLoader(dataset, 8, shuffle=False, options=LoaderOptions(image_dtype=torch.float32))
    ours = next(example["rows"](loader, data_info(dataset).images))
    chunk = {"action": [tick / 50 for tick in range(horizon)]}
    theirs = next(iter(DataLoader(LeRobotDataset("local/lift", root=folder, delta_timestamps=chunk), 8)))
    del ours["task"]
    differences = {key: float((value.double() - theirs[key].double()).abs().max()) for key, value in ours.items()}
    print(json.dumps({"differences": differences}))  # noqa: T201
