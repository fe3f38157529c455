"""One rank of a training with torch.distributed: the samples that it sees, and what all ranks see.

Arguments: the folder of the dataset, the file by which the ranks meet, and the rank.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch

from robocache_ros.datasets import RTXDataset, TimelineLoader, Window


def main(folder: str, meeting: str, rank: int) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    dataset = RTXDataset(folder, target_hz=10, window=Window(2))
    gradient = torch.zeros(1)
    loader = TimelineLoader(dataset, 4, shuffle=True, seed=3, workers=rank)  # none, and one
    epochs = []
    for _ in range(2):
        mine: list[list[int]] = []
        for batch in loader:  # a rank with a batch more would wait for the other for ever
            torch.distributed.all_reduce(gradient)
            mine.append(batch["index"].tolist())
        gathered: list[Any] = [None, None]
        torch.distributed.all_gather_object(gathered, mine)
        epochs.append(gathered)
    print(json.dumps({"repr": repr(loader), "length": len(loader), "samples": len(dataset), "epochs": epochs}))  # noqa: T201
    torch.distributed.barrier()  # none closes its connections while the other one uses them
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
