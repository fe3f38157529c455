"""Kernels for Python: compiled on first use, memoized, and launched on torch's current stream with little overhead."""

from __future__ import annotations

import ctypes
import struct
import threading
from importlib import import_module
from typing import Any

import torch

from robocache_ros.errors import RoboCacheError
from robocache_ros.ops.cuda import cache
from robocache_ros.ops.cuda.compiler import compile_cubin, compile_options, load_source

_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8  # CUfunction_attribute
_PARAMETER_BUFFER, _PARAMETER_BUFFER_SIZE = 1, 2  # CU_LAUNCH_PARAM_*

_lock = threading.Lock()
_modules: dict[tuple[str, tuple[str, ...], int], Any] = {}
_kernels: dict[tuple[str, str, int, tuple[str, ...]], Kernel] = {}


class _Arguments(threading.local):
    """The packed arguments of one thread and the list by which cuLaunchKernel finds them; every launch reuses both."""

    def __init__(self, size: int) -> None:
        self.buffer = ctypes.create_string_buffer(size)
        self._size = ctypes.c_size_t(size)
        self._extra = (ctypes.c_void_p * 5)(
            _PARAMETER_BUFFER, ctypes.addressof(self.buffer), _PARAMETER_BUFFER_SIZE, ctypes.addressof(self._size), 0
        )
        self.address = ctypes.addressof(self._extra)


class Kernel:
    """A compiled `__global__` function on one device."""

    def __init__(self, function: Any, driver: Any, layout: struct.Struct, device: int) -> None:
        self._keep = function  # keeps the module loaded
        self.pointer: int = function.ptr
        self._driver_launch = driver.launchKernel
        self._pack = layout.pack_into
        self._arguments = _Arguments(layout.size)
        self.device = device

    def launch(self, grid: tuple[int, int, int], block: int, shared: int, *arguments: int | float | bytes) -> None:
        """Launch on the current stream of the kernel's device, asynchronously.

        Args:
            grid: blocks in x, y, z, each at least 1.
            block: threads in a block.
            shared: bytes of dynamic shared memory.
            arguments: what the layout packs; pointers as the int of `data_ptr()`.
        """
        if _current_device() != self.device:
            with torch.cuda.device(self.device):
                return self.launch(grid, block, shared, *arguments)
        stream = raw_stream(self.device)
        self._driver_launch(self.pointer, *grid, block, 1, 1, shared, stream, 0, self.packed(*arguments))
        return None

    def packed(self, *arguments: int | float | bytes) -> int:
        """Address of the arguments in the form of cuLaunchKernel's `extra`, valid until this thread's next launch."""
        mine = self._arguments
        self._pack(mine.buffer, 0, *arguments)
        return mine.address


def kernel(
    file: str, name: str, layout: struct.Struct, device: int, defines: tuple[str, ...] = (), shared_limit: int = 0
) -> Kernel:
    """The kernel `name` of kernels/`file`, compiled for a device on first use and memoized.

    Args:
        file: such as `resample/resample.cu`. It and its headers include only headers in kernels/.
        name: of an `extern "C" __global__` function.
        layout: packs its one parameter, a structure passed by value; see `structures.packer`.
        device: index of the CUDA device.
        defines: such as `("THREADS=256",)`; each set compiles once.
        shared_limit: bytes of dynamic shared memory that launches may request, if more than 48 KiB.

    Raises:
        RoboCacheError: CuPy is missing, or the kernel does not compile for the device.
    """
    key = (file, name, device, defines)
    found = _kernels.get(key)
    if found is None:
        with _lock:
            found = _kernels.get(key) or _build(file, name, layout, device, defines, shared_limit)
            _kernels[key] = found
    return found


def _build(
    file: str, name: str, layout: struct.Struct, device: int, defines: tuple[str, ...], shared_limit: int
) -> Kernel:
    driver = import_cupy_cuda().driver
    module = _modules.get((file, defines, device))
    with torch.cuda.device(device):
        if module is None:
            module = _modules[file, defines, device] = _load(file, defines, device)
        function = module.get_function(name)
        if shared_limit > 48 * 1024:
            driver.funcSetAttribute(function.ptr, _MAX_DYNAMIC_SHARED_SIZE_BYTES, shared_limit)
    return Kernel(function, driver, layout, device)


def _load(file: str, defines: tuple[str, ...], device: int) -> Any:
    cuda = import_cupy_cuda()
    source = load_source(file, defines)
    options = compile_options("sm_{}{}".format(*torch.cuda.get_device_capability(device)), defines)
    key = source.key(options, cuda.nvrtc.getVersion())
    stored = cache.load(key)
    if stored is not None:
        module = cuda.function.Module()
        try:
            module.load(stored)
            return module
        except RuntimeError:
            pass  # a module that the driver refuses is rebuilt, like a damaged one
    cubin, _ = compile_cubin(cuda.nvrtc, source, options)
    cache.store(key, cubin)
    module = cuda.function.Module()
    module.load(cubin)
    return module


def import_cupy_cuda() -> Any:
    """`cupy.cuda`; raises RoboCacheError, with the command that installs it, if it is missing."""
    try:
        return import_module("cupy.cuda")
    except ImportError as error:
        version = (torch.version.cuda or "13").split(".")[0]
        raise RoboCacheError(
            f"CUDA tensors: CuPy is not installed ({error}); run pip install cupy-cuda{version}x"
        ) from error


def raw_stream(device: int) -> int:
    """The handle of torch's current stream, without the wrapper that `torch.cuda.current_stream` creates."""
    pointer: int = _raw_stream(device)
    return pointer


def _wrapped_stream(device: int) -> int:
    return int(torch.cuda.current_stream(device).cuda_stream)


# Without the check whether CUDA is initialised: kernels are launched for tensors on a device.
_current_device: Any = getattr(torch._C, "_cuda_getDevice", torch.cuda.current_device)
_raw_stream: Any = getattr(torch._C, "_cuda_getCurrentRawStream", _wrapped_stream)
