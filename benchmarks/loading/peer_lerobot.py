"""Samples of a LeRobot dataset as its own reader gives them. Needs lerobot; run by the benchmark."""

from __future__ import annotations

import json
import os
import sys
import time
from importlib import import_module
from typing import Any

HORIZON, BATCH, FPS = 16, 32, 30
_KEPT: list[Any] = []  # definitions of operators end with their library


def main() -> None:
    """Measure; the argument is a JSON object: path, cameras (whether), workers, samples (at most).

    It may have `batch`, and `seconds`, after which batches are no longer read.
    """
    wanted: dict[str, Any] = json.loads(sys.argv[1])
    torch: Any = import_module("torch")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_num_threads(1)
    dataset = lerobot_dataset(wanted["path"], HORIZON)
    if not wanted["cameras"]:  # its reader decodes what the metadata calls a video
        for name in list(dataset.meta.video_keys):
            del dataset.meta.info["features"][name]
    workers = wanted["workers"]
    loader = torch.utils.data.DataLoader(
        dataset,
        batch_size=wanted.get("batch", BATCH),
        shuffle=True,
        num_workers=workers,
        pin_memory=device == "cuda",
        drop_last=True,
    )
    iterator = iter(loader)
    for _ in range(min(8, len(loader) - 1) if "seconds" in wanted else 1):  # starts the workers
        next(iterator)
    started, count = time.perf_counter(), 0
    for batch in iterator:
        moved = {key: value.to(device) for key, value in batch.items() if isinstance(value, torch.Tensor)}
        count += len(moved["action"])
        if count >= wanted["samples"] or time.perf_counter() - started > wanted.get("seconds", 1e9):
            break
    rate = count / (time.perf_counter() - started)
    backend = f" ({dataset.video_backend})" if wanted["cameras"] else ""
    print(json.dumps({f"LeRobotDataset{backend}, {workers} workers": rate}))


def prepare() -> None:
    """Let LeRobot be imported: nothing is looked for on the Hub, and torchvision goes with a torch without CUDA."""
    os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1")
    torch: Any = import_module("torch")
    # torchvision's compiled operators do not go with a CPU-only torch: declare the two it registers fakes for.
    if not torch.cuda.is_available() and not _KEPT:
        library: Any = torch.library.Library("torchvision", "FRAGMENT")
        for name in ("nms", "qnms"):
            if not hasattr(torch.ops.torchvision, name):
                library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _KEPT.append(library)


def lerobot_dataset(path: str, horizon: int, fps: float = FPS) -> Any:
    """Open a dataset with LeRobot, with so many rows of actions in a sample."""
    prepare()
    lerobot: Any = import_module("lerobot.datasets.lerobot_dataset")
    backend = "torchcodec"
    try:
        import_module("torchcodec.decoders")
    except Exception:  # FFmpeg or a package is missing, or does not go with torch
        backend, vars(import_module("lerobot.datasets.video_utils"))["decode_video_frames_torchvision"] = (
            "pyav",
            _decoded,
        )
    chunk = {"action": [step / fps for step in range(horizon)]}
    return lerobot.LeRobotDataset("local/data", root=path, delta_timestamps=chunk, video_backend=backend)


def _decoded(path: Any, times_s: list[float], tolerance_s: float, *_: Any, **__: Any) -> Any:
    """Return frames (n, 3, H, W) in 0..1: PyAV, where torchvision no longer reads videos and torchcodec is missing."""
    torch, av = import_module("torch"), import_module("av")
    found = []
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        for time_s in times_s:
            container.seek(round((time_s - tolerance_s) / stream.time_base), stream=stream)
            frame = next(each for each in container.decode(stream) if each.time >= time_s - tolerance_s)
            found.append(torch.from_numpy(frame.to_ndarray(format="rgb24")).permute(2, 0, 1))
    return torch.stack(found).float() / 255


if __name__ == "__main__":
    sys.path.remove(os.path.dirname(os.path.abspath(__file__)))  # its datasets.py is not the package of that name
    main()
