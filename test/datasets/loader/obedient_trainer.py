"""A training that takes a step when it is told to: its test kills it between two steps.

Arguments: the dataset, the file of the state, and the number of workers. It prints its workers, then a line for each
batch after it has stored the state.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
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


def main(folder: str, state: Path, workers: int) -> None:
    loader = open_loader(folder, workers)
    if state.exists():
        loader.load_state_dict(json.loads(state.read_text()))
    print(json.dumps(loader.worker_pids), flush=True)  # noqa: T201
    while loader.state_dict()["epoch"] < EPOCHS:
        for batch in loader:
            partial = state.with_suffix(".partial")
            partial.write_text(json.dumps(loader.state_dict()))
            os.replace(partial, state)
            print(reported(batch), flush=True)  # noqa: T201
            sys.stdin.readline()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
