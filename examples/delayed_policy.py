"""A trained policy that answers late: `robocache run examples/delayed_policy.py:policy --spec …`.

The environment names it: CHECKPOINT, and LATENCY_MS from a frame to its answer.
"""

from __future__ import annotations

import os
import time

import numpy as np
import torch
from numpy.typing import NDArray

from robocache_ros.engine.frames import FusedFrame
from robocache_ros.training.trained_policy import TrainedPolicy

torch.set_num_threads(1)
TRAINED = TrainedPolicy.load(os.environ["CHECKPOINT"])
LATENCY_S = float(os.environ.get("LATENCY_MS", "0")) / 1e3


def policy(frame: FusedFrame) -> NDArray[np.float32]:
    """Plan (H, A) actions."""
    begin = time.monotonic()
    actions: NDArray[np.float32] = TRAINED.act(frame)[0].numpy()
    time.sleep(max(0.0, LATENCY_S - (time.monotonic() - begin)))
    return actions
