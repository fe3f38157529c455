"""Runs under LeRobot's own Python, 0.4.4 or 0.3.3: records a dataset with `LeRobotDataset.create` and `add_frame`.

Arguments: the folder of the dataset, image or video, and the file for what was recorded.
"""

import inspect
import os
import sys

os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1")

import numpy as np
import torch

# torchvision's compiled operators do not go with a CPU-only torch: declare the two it registers fakes for.
library = torch.library.Library("torchvision", "DEF")
for operator in ("nms", "qnms"):
    library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

from datasets import Value  # noqa: E402
from lerobot.datasets.lerobot_dataset import LeRobotDataset  # noqa: E402

# NumPy 2.4 does not convert an array of one number to a float, which `datasets` needs for features of shape (1,).
encode = Value.encode_example
Value.encode_example = lambda self, value: encode(self, value.item() if isinstance(value, np.ndarray) else value)

root, media, out = sys.argv[1:4]
SIDE = 96
JOINTS = [f"joint_{k}" for k in range(6)]
features = {
    "observation.state": {"dtype": "float32", "shape": (6,), "names": JOINTS},
    "observation.images.front": {"dtype": media, "shape": (SIDE, SIDE, 3), "names": ["height", "width", "channels"]},
    "observation.images.wrist": {"dtype": media, "shape": (64, SIDE, 3), "names": ["height", "width", "channels"]},
    "action": {"dtype": "float32", "shape": (6,), "names": JOINTS},
    "next.reward": {"dtype": "float32", "shape": (1,), "names": None},
    "next.done": {"dtype": "bool", "shape": (1,), "names": None},
}
dataset = LeRobotDataset.create("local/robot", 30, features, root=root, robot_type="arm", use_videos=media == "video")
task_is_argument = "task" in inspect.signature(dataset.add_frame).parameters  # until lerobot 0.3

rng = np.random.default_rng(0)
recorded = {}
for episode, length in enumerate((7, 1, 12)):
    frames = []
    for row in range(length):
        ramp = np.add.outer(np.arange(SIDE) * 2, np.arange(SIDE)) + 10 * row + 40 * episode
        image = np.stack([ramp, 2 * ramp, 255 - ramp], axis=2).astype(np.uint8)
        frame = {
            "observation.state": rng.normal(size=6).astype(np.float32),
            "observation.images.front": image,
            "observation.images.wrist": np.ascontiguousarray(image[:64, ::-1]),
            "action": rng.normal(size=6).astype(np.float32),
            "next.reward": np.array([row == length - 1], np.float32),
            "next.done": np.array([row == length - 1]),
        }
        frames.append(dict(frame))
        if task_is_argument:
            dataset.add_frame(frame, task=f"task {episode % 2}")
        else:
            dataset.add_frame({**frame, "task": f"task {episode % 2}"})
    dataset.save_episode()
    recorded |= {f"{episode}|{key}": np.stack([frame[key] for frame in frames]) for key in frames[0]}
if hasattr(dataset, "finalize"):
    dataset.finalize()
np.savez(out, **recorded)
