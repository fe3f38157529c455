"""The processes of a training: one per GPU, as torchrun starts them, or this one alone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import distributed

from robocache_ros.errors import RoboCacheError
from robocache_ros.training.trainer import release_graphs


@dataclass(frozen=True)
class ProcessGroup:
    """This process among those of the training."""

    device: torch.device
    rank: int = 0
    size: int = 1

    @property
    def first(self) -> bool:
        """Whether this process prints and writes files."""
        return self.rank == 0


@contextmanager
def process_group(device: str = "auto") -> Iterator[ProcessGroup]:
    """Join the processes that torchrun has started, if it has, and leave them at the end.

    Args:
        device: cpu, cuda, or auto: cuda if there is a GPU. Each process of a machine has a GPU of its own.
    """
    if device not in ("auto", "cpu", "cuda"):
        raise RoboCacheError(f"device: {device!r} is not auto, cpu or cuda; choose one of them")
    gpu = torch.cuda.is_available() if device == "auto" else device == "cuda"
    if gpu and not torch.cuda.is_available():
        raise RoboCacheError("device: there is no CUDA device; use auto or cpu")
    local = int(os.environ.get("LOCAL_RANK", "0"))
    here = torch.device("cuda", local) if gpu else torch.device("cpu")
    if gpu:
        torch.cuda.set_device(here)
    if int(os.environ.get("WORLD_SIZE", "1")) < 2:
        yield ProcessGroup(here)
        return
    if gpu:
        os.environ.setdefault("TORCH_NCCL_HIGH_PRIORITY", "1")  # gradients are exchanged beside other operations
    distributed.init_process_group("nccl" if gpu else "gloo")
    try:
        yield ProcessGroup(here, distributed.get_rank(), distributed.get_world_size())
        # None closes its connections while another one uses them.
        distributed.barrier(device_ids=[local] if gpu else None)
    finally:
        release_graphs()
        distributed.destroy_process_group()
