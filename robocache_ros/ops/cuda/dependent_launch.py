"""Programmatic dependent launch: a kernel starts while the previous one on the stream still runs.

The kernel waits (griddepcontrol.wait) before it accesses what the previous one writes. This needs compute capability
9.0; on older GPUs the launch is an ordinary one, with the same result.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from robocache_ros.ops.cuda.loader import Kernel, raw_stream

_PROGRAMMATIC_STREAM_SERIALIZATION = 6  # CUlaunchAttributeID


class _Attribute(ctypes.Structure):
    _fields_ = (("id", ctypes.c_int), ("pad", ctypes.c_char * 4), ("value", ctypes.c_int), ("rest", ctypes.c_char * 60))


class _Config(ctypes.Structure):
    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("count", ctypes.c_uint),
    )


class _Launch(threading.local):
    """One thread's launch configuration, reused from launch to launch."""

    def __init__(self) -> None:
        self.attribute = _Attribute(_PROGRAMMATIC_STREAM_SERIALIZATION, b"", 1, b"")
        self.config = _Config()
        self.config.attributes = ctypes.pointer(self.attribute)
        self.config.count = 1
        self.reference = ctypes.byref(self.config)


_launch = _Launch()


def launch_dependent(
    kernel: Kernel, grid: tuple[int, int, int], block: int, shared: int, *arguments: int | float | bytes
) -> None:
    """Launch like `Kernel.launch`; the kernel may start before the previous one on the stream has ended."""
    device = kernel.device
    if not _supported(device) or torch.cuda.current_device() != device:
        return kernel.launch(grid, block, shared, *arguments)
    config = _launch.config
    config.grid[:] = grid
    config.block[:] = (block, 1, 1)
    config.shared = shared
    config.stream = raw_stream(device)
    status = _driver().cuLaunchKernelEx(_launch.reference, kernel.pointer, None, kernel.packed(*arguments))
    if status:
        raise RuntimeError(f"cuLaunchKernelEx: CUDA error {status}")
    return None


def launch_captured_dependent(
    kernel: Kernel, grid: tuple[int, int, int], block: int, shared: int, *arguments: int | float | bytes
) -> None:
    """`launch_dependent` while a CUDA graph is captured; else `Kernel.launch`, whose call takes less time."""
    launch = launch_dependent if _capturing() else Kernel.launch
    launch(kernel, grid, block, shared, *arguments)


_capturing: Callable[[], bool] = getattr(
    torch._C, "_cuda_isCurrentStreamCapturing", torch.cuda.is_current_stream_capturing
)


@cache
def _supported(device: int) -> bool:
    return torch.cuda.get_device_capability(device) >= (9, 0)


@cache
def _driver() -> Any:
    library = ctypes.CDLL("libcuda.so.1")
    library.cuLaunchKernelEx.argtypes = (ctypes.c_void_p,) * 4
    return library
