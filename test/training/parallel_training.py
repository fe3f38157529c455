"""One of the processes of test_parallel_training.py: `parallel_training.py RANK FOLDER`."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import distributed

from robocache_ros.training.trainer import Trainer
from test.training.conftest import losses, new_trainer

PROCESSES = 3  # two summands have the same sum in any order
STEPS, STOP = 6, 3
JOINED = {"config": "plain", "accumulate": 2}
RESUMED: dict[str, dict[str, Any]] = {
    "float32": {"config": "diffusion", "accumulate": 2},
    "bf16": {"config": "transformer", "bf16": True, "clip_norm": 0.0},
}


def run_process(rank: int, folder: str) -> None:
    """Train, also with an interruption, and write losses, weights and averages."""
    torch.set_num_threads(1)
    store = distributed.FileStore(f"{folder}/store", PROCESSES)
    distributed.init_process_group("gloo", store=store, rank=rank, world_size=PROCESSES)
    found = {"joined": _found(made := new_trainer(batch_size=4, **JOINED), losses(made, STEPS))}
    for name, options in RESUMED.items():
        whole = new_trainer(batch_size=4, **options)
        found[name] = _found(whole, losses(whole, STEPS))
        first = new_trainer(batch_size=4, **options)
        before, state = losses(first, STOP), first.state_dict()
        second = new_trainer(batch_size=4, **options)
        second.load_state_dict(state)
        found[f"{name} resumed"] = _found(second, before + losses(second, STEPS - STOP))
    torch.save(found, f"{folder}/{rank}.pt")
    distributed.barrier()  # none closes its connections while another one uses them
    distributed.destroy_process_group()


def _found(made: Trainer, seen: list[float]) -> dict[str, Any]:
    return {"losses": seen, "weights": made.policy.state_dict(), "average": made.average}


if __name__ == "__main__":
    run_process(int(sys.argv[1]), sys.argv[2])
