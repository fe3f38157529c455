"""Runs under the real LeRobot's own Python: opens a dataset and prints as JSON what it read."""

import json
import os
import sys

os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1")

import av
import numpy as np
import torch

# torchvision's compiled operators do not go with a CPU-only torch: declare the two it registers fakes for.
library = torch.library.Library("torchvision", "DEF")
for operator in ("nms", "qnms"):
    library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

import lerobot.datasets.video_utils as video_utils  # noqa: E402
from lerobot.datasets.lerobot_dataset import LeRobotDataset  # noqa: E402


def decode(path, timestamps, tolerance_s, *_args, **_keywords):
    """What torchvision's reader did before it was removed: the frames at the timestamps."""
    with av.open(str(path)) as container:
        frames = [(frame.time, frame.to_ndarray(format="rgb24")) for frame in container.decode(video=0)]
    times = np.array([time for time, _ in frames])
    rows = [int(np.abs(times - wanted).argmin()) for wanted in timestamps]
    assert all(abs(times[row] - wanted) <= tolerance_s for row, wanted in zip(rows, timestamps, strict=True))
    images = np.stack([frames[row][1] for row in rows])
    return torch.from_numpy(images).permute(0, 3, 1, 2).float() / 255


video_utils.decode_video_frames_torchvision = decode

root, *indices = sys.argv[1:]
plain = LeRobotDataset("local/dataset", root=root, video_backend="pyav")
window = {
    "action": [0.0, 0.02, 0.04],
    "observation.state": [-0.02, 0.0],
    **{k: [-0.02, 0.0] for k in plain.meta.camera_keys},
}
windowed = LeRobotDataset("local/dataset", root=root, video_backend="pyav", delta_timestamps=window)


def told(value):
    """A tensor as shape, type and mean (images) or values (the rest)."""
    if not isinstance(value, torch.Tensor):
        return value
    about = {"shape": list(value.shape), "dtype": str(value.dtype)}
    return about | ({"mean": float(value.double().mean())} if value.numel() > 1000 else {"value": value.tolist()})


print(  # noqa: T201
    json.dumps(
        {
            "frames": plain.num_frames,
            "episodes": plain.num_episodes,
            "fps": plain.fps,
            "cameras": plain.meta.camera_keys,
            "robot_type": plain.meta.robot_type,
            "items": {i: {k: told(v) for k, v in plain[int(i)].items()} for i in indices},
            "windows": {i: {k: told(v) for k, v in windowed[int(i)].items()} for i in indices},
            "stats": {k: {n: np.asarray(v).tolist() for n, v in s.items()} for k, s in plain.meta.stats.items()},
        }
    )
)
