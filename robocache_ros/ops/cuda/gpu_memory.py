"""Pinned memory, and asynchronous copies from it."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from robocache_ros.ops.cuda.loader import import_cupy_cuda

_ANY_DIRECTION = 4  # cudaMemcpyDefault: the driver derives the direction from the addresses


def pinned(nbytes: int) -> Tensor:
    """(nbytes,) uint8 in pinned host memory, which copies read and kernels write by its address."""
    return torch.zeros(nbytes, dtype=torch.uint8, pin_memory=True)


def copy_async(target: int, source: int, nbytes: int, stream: int) -> None:
    """Copy bytes between addresses, in the order of a stream; asynchronous between pinned and GPU memory only."""
    _memcpy_async()(target, source, nbytes, _ANY_DIRECTION, stream)


def new_event() -> Any:
    """A torch.cuda.Event without timing."""
    return _event()


def new_stream(device: torch.device) -> Any:
    """A torch.cuda.Stream."""
    return _stream(device)


_event: Any = torch.cuda.Event
_stream: Any = torch.cuda.Stream


@cache
def _memcpy_async() -> Any:
    import_cupy_cuda()
    return import_module("cupy.cuda.runtime").memcpyAsync
