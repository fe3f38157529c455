"""Whether the memory of a training stays flat over many batches; a million takes some minutes.

    python -m benchmarks.loading.memory [--batches 1000000] [--workers 0] [--device cpu]

Small batches of low-dimensional windows, from the cache and from files, with changes of the samples. Prints the memory
of all processes after each twentieth.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import Any

import torch

from benchmarks.loading import datasets
from robocache_ros.datasets import Augmentation, RoboMimicDataset, TimelineLoader, Window
from robocache_ros.programs import HelpFormatter

STEPS = 20
WARM = 4  # steps before memory counts: allocators and the first epochs fill their pools


def main() -> None:
    """Measure and print the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=HelpFormatter)
    parser.add_argument("--batches", type=int, default=1_000_000)
    parser.add_argument("--workers", type=int, default=0, help="Without a cache: processes that read.")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--cache", default="host", choices=("none", "host", "device"))
    given = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="robocache-bench-") as folder:
        dataset = RoboMimicDataset(
            datasets.robomimic(Path(folder) / "lift.hdf5"), target_hz=20, rate_hz=20, window=Window()
        )
        loader = TimelineLoader(
            dataset,
            2,
            shuffle=True,
            workers=given.workers,
            device=given.device,
            cache=given.cache,
            augmentation=Augmentation({"proprio": 0.01}),
        )
        print(json.dumps(measured(loader, given.batches), indent=2))
        loader.close()


def measured(loader: TimelineLoader, batches: int) -> dict[str, Any]:
    """Take batches; return the MiB of this process and its workers after each step, and those of the GPU."""
    forever = _forever(loader)
    host, device = [], []
    for _ in range(STEPS):
        for _ in range(batches // STEPS):
            next(forever)
        host.append(round(sum(map(_resident, ("self", *loader.worker_pids))) / 2**20, 1))
        if loader.device.type == "cuda":
            device.append(round(torch.cuda.memory_reserved(loader.device) / 2**20, 1))
    forever.close()
    grown = {name: round(each[-1] - each[WARM], 1) for name, each in (("host", host), ("device", device)) if each}
    return {"batches": batches, "host_mib": host, "device_mib": device, "grown_mib_after_the_first_quarter": grown}


def _forever(loader: TimelineLoader) -> Generator[dict[str, Any], None, None]:
    while True:
        yield from loader


def _resident(process: object) -> int:
    status = Path(f"/proc/{process}/status").read_text(encoding="utf-8")
    return int(status.split("VmRSS:")[1].split()[0]) * 1024


if __name__ == "__main__":
    main()
