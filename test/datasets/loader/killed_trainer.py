"""A training that takes some steps and is then killed.

Arguments: the dataset, the file of the state, the number of workers, and that of the steps. It stores the state and
prints a line after each step.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
from itertools import chain, islice
from pathlib import Path
from typing import Any

from robocache_ros.datasets import Augmentation, RTXDataset, TimelineLoader, Window

EPOCHS = 2


def open_loader(folder: str, workers: int) -> TimelineLoader:
    dataset = RTXDataset(folder, target_hz=10, window=Window(n_obs=2, horizon=3, action_offset=1))
    changes = Augmentation(noise={"proprio": 0.1}, crop=(6, 5), brightness=0.3)
    return TimelineLoader(dataset, 5, shuffle=True, seed=11, workers=workers, augmentation=changes)


def reported(batch: dict[str, Any]) -> str:
    """The samples of a batch, and a digest of all of its values."""
    digest = hashlib.sha256()
    for key, value in sorted(batch.items()):
        digest.update(repr((key, value)).encode() if isinstance(value, list) else value.numpy().tobytes())
    return f"{batch['index'].tolist()} {digest.hexdigest()}"


def main(folder: str, state: Path, workers: int, steps: int) -> None:
    loader = open_loader(folder, workers)
    if state.exists():
        loader.load_state_dict(json.loads(state.read_text()))
    for batch in islice(chain(*[loader] * EPOCHS), steps):
        print(reported(batch), flush=True)  # noqa: T201
        state.write_text(json.dumps(loader.state_dict()))
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
