"""Checks of the loader's arguments, and what their defaults are on this machine."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.ops.image.nvjpeg_batch import library

CACHES = ("none", "auto", "device", "host")
ON_ERROR = ("raise", "skip")
ALIGN_ON = ("auto", "device", "workers")
JPEG = ("cpu", "gpu")
MAX_WORKERS = 1024
MAX_PREFETCH = 4096


def check_choice(name: str, value: str, choices: Sequence[str]) -> str:
    """Return a known value.

    Errors:
        RoboCacheError: it is unknown.
    """
    if value not in choices:
        raise RoboCacheError(f"{name}: {printable(value, 30)!r} is not one of {', '.join(choices)}; choose one of them")
    return value


def check_workers(workers: int, prefetch: int | None) -> int:
    """Return how many batches are read ahead.

    Errors:
        RoboCacheError: a number is out of range.
    """
    if not 0 <= workers <= MAX_WORKERS:
        raise RoboCacheError(f"workers: {workers} is not in 0..{MAX_WORKERS}; give the number of processes")
    prefetch = max(2 * workers, 2) if prefetch is None else prefetch
    if not 1 <= prefetch <= MAX_PREFETCH:
        raise RoboCacheError(f"prefetch: {prefetch} is not in 1..{MAX_PREFETCH}; give the batches that are read ahead")
    return prefetch


def aligns_on_device(align_on: str, jpeg: str, device: torch.device) -> bool:
    """Return whether batches are aligned on their device.

    Errors:
        RoboCacheError: a value is unknown, nvJPEG is missing, or the GPU cannot decode what the workers align.
    """
    check_choice("align_on", align_on, ALIGN_ON)
    check_choice("jpeg", jpeg, JPEG)
    if jpeg == "gpu":
        if device.type != "cuda":
            raise RoboCacheError("jpeg: gpu needs a CUDA device; use jpeg='cpu'")
        if align_on == "workers":
            raise RoboCacheError("jpeg: gpu needs align_on='device': workers align decoded images; use jpeg='cpu'")
        library()
    return align_on == "device" or (align_on == "auto" and device.type == "cuda")


def ranks(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """Return the rank of this process and the number of ranks; those of torch.distributed where none are given.

    Errors:
        RoboCacheError: one of the two is given without the other.
    """
    if (rank is None) != (world_size is None):
        raise RoboCacheError("rank: rank and world_size belong together; give both, or neither")
    if rank is not None and world_size is not None:
        return rank, world_size
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return 0, 1


def check_ranks(world_size: int, given: bool) -> None:
    """Refuse an epoch in which all ranks would see the same samples.

    Errors:
        RoboCacheError: torch.distributed was initialised after the loader took this process for the only one.
    """
    if world_size == 1 and not given and ranks(None, None)[1] > 1:
        raise RoboCacheError(
            "rank: torch.distributed was initialised after the loader was created; create it afterwards, in Lightning "
            "in train_dataloader"
        )


def find_device(device: str | torch.device) -> torch.device:
    """Return the device of the batches, a GPU with its index.

    Errors:
        RoboCacheError: there is no such device.
    """
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise RoboCacheError(f"device: {printable(error)}; use cpu, cuda, cuda:<index> or auto") from None
    if found.type not in ("cpu", "cuda"):
        raise RoboCacheError(f"device: {found.type} is not supported; use cpu, cuda, cuda:<index> or auto")
    if found.type == "cuda" and not torch.cuda.is_available():
        raise RoboCacheError("device: there is no CUDA device; use device='cpu' or 'auto'")
    if found.type == "cuda" and found.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return found
