"""Samples of a LeRobot dataset as its own reader gives them. Needs lerobot; run by the benchmark."""

from __future__ import annotations

import json
import os
import sys
import time
from importlib import import_module
from typing import Any

os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1")
HORIZON, BATCH, FPS = 16, 32, 30


def main() -> None:
    """Measure; the argument is a JSON object: path, cameras (whether), workers, samples (at most)."""
    wanted: dict[str, Any] = json.loads(sys.argv[1])
    torch: Any = import_module("torch")
    # torchvision's compiled operators do not go with a CPU-only torch: declare the two it registers fakes for.
    library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    lerobot: Any = import_module("lerobot.datasets.lerobot_dataset")
    torch.set_num_threads(1)
    chunk = {"action": [step / FPS for step in range(HORIZON)]}
    dataset = lerobot.LeRobotDataset("local/data", root=wanted["path"], delta_timestamps=chunk)
    if not wanted["cameras"]:  # its reader decodes what the metadata calls a video
        for name in list(dataset.meta.video_keys):
            del dataset.meta.info["features"][name]
    workers = wanted["workers"]
    loader = torch.utils.data.DataLoader(dataset, batch_size=BATCH, shuffle=True, num_workers=workers)
    iterator = iter(loader)
    next(iterator)  # starts the workers
    started, count = time.perf_counter(), 0
    for batch in iterator:
        count += len(batch["action"])
        if count >= wanted["samples"]:
            break
    rate = count / (time.perf_counter() - started)
    backend = f" ({dataset.video_backend})" if wanted["cameras"] else ""
    print(json.dumps({f"LeRobotDataset{backend}, {workers} workers": rate}))


if __name__ == "__main__":
    main()
