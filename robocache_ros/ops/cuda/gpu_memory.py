"""Pinned memory, and copies out of it that return at once."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from robocache_ros.ops.cuda.loader import import_cupy_cuda

_ANY_DIRECTION = 4  # cudaMemcpyDefault: the driver tells host from device by the address


def pinned(nbytes: int) -> Tensor:
    """(nbytes,) uint8 in host memory that copies run from, and kernels write to, by its address."""
    return torch.zeros(nbytes, dtype=torch.uint8, pin_memory=True)


def copy_async(target: int, source: int, nbytes: int, stream: int) -> None:
    """Copy bytes between addresses, in the order of a stream; pinned memory and the device's alone are asynchronous."""
    _memcpy_async()(target, source, nbytes, _ANY_DIRECTION, stream)


def new_event() -> Any:
    """A torch.cuda.Event, untimed."""
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
