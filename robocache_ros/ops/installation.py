"""What runs here: the device of choice, and what is installed."""

from __future__ import annotations

import logging
import platform
import sys
from importlib.metadata import PackageNotFoundError, version

import torch

from robocache_ros.errors import RoboCacheError
from robocache_ros.ops.cuda.cache import cache_directory
from robocache_ros.ops.cuda.loader import import_cupy_cuda

log = logging.getLogger(__name__)


def missing_for_cuda() -> str:
    """What the CUDA backend lacks here; empty where it lacks nothing."""
    if not torch.cuda.is_available():
        return "PyTorch sees no CUDA device"
    try:
        import_cupy_cuda()
    except RoboCacheError as error:
        return str(error)
    return ""


def set_device(device: str | torch.device = "auto") -> torch.device:
    """Make a device the current one of this process: where `torch.device("cuda")`, and so the CUDA backend, is.

    Operations run where their tensors are, so this matters to whoever makes tensors without naming a device's index.

    Args:
        device: cpu, cuda, cuda:<index>, or auto: the current GPU where the CUDA backend works, else, with one line in
            the log, the CPU.

    Returns:
        The device with its index; `torch.zeros(..., device=set_device())` is how it is meant to be used.

    Raises:
        RoboCacheError: no such device, or the CUDA backend lacks something, which the message names.
    """
    name, missing = str(device), missing_for_cuda()
    if name == "auto":
        if missing:
            log.info("device: auto is the CPU here: %s", missing)
        name = "cpu" if missing else "cuda"
    kind, _, index = name.partition(":")
    if kind not in ("cpu", "cuda") or (index and not index.isdecimal()):
        raise RoboCacheError(f"device: {name!r} is not one of auto, cpu, cuda, cuda:<index>")
    if kind == "cpu":
        return torch.device("cpu")
    if missing:
        raise RoboCacheError(f"device: {name!r} cannot be had: {missing}; use cpu or auto")
    if int(index or 0) >= torch.cuda.device_count():
        raise RoboCacheError(f"device: {name!r} is not there; there are {torch.cuda.device_count()} GPUs")
    if index:
        torch.cuda.set_device(int(index))
    return torch.device("cuda", torch.cuda.current_device())


def print_installation_info() -> None:
    """Print what a bug report needs: versions, GPUs, where compiled kernels are kept, what the CUDA backend lacks."""
    for name, value in installation_info().items():
        print(f"{name:<16}{value}")  # noqa: T201


def installation_info() -> dict[str, str]:
    """What `print_installation_info` prints."""
    missing = missing_for_cuda()
    info = {
        "robocache_ros": _version("robocache_ros"),
        "Python": f"{sys.version.split()[0]} on {platform.platform()}",
        "NumPy": _version("numpy"),
        "PyTorch": f"{torch.__version__}, CUDA {torch.version.cuda or 'none'}",
        "CuPy": next((found for n in (13, 12) if (found := _version(f"cupy-cuda{n}x")) != "none"), _version("cupy")),
        "CUDA backend": missing or "ready",
        "kernels kept in": str(cache_directory() or "memory only"),
    }
    if not missing:
        nvrtc = import_cupy_cuda().nvrtc.getVersion()
        info["NVRTC"] = ".".join(map(str, nvrtc))
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        info[f"cuda:{index}"] = (
            f"{properties.name}, sm_{properties.major}{properties.minor}, "
            f"{properties.multi_processor_count} multiprocessors, {properties.total_memory / 2**30:.0f} GiB"
        )
    return info


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"
