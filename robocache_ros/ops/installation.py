"""The device that operations use, and the versions that are installed."""

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
    """Why the CUDA backend is not available; empty where it is."""
    if not torch.cuda.is_available():
        return "PyTorch sees no CUDA device"
    try:
        import_cupy_cuda()
    except RoboCacheError as error:
        return str(error)
    return ""


def set_device(device: str | torch.device = "auto") -> torch.device:
    """Set the current device of this process, which `torch.device("cuda")` and so the CUDA backend use.

    Operations run on the device of their tensors, so this matters for tensors that are made without a device index.

    Args:
        device: cpu, cuda, cuda:<index>, or auto: the current GPU if the CUDA backend is available, else
            the CPU, which logs one line.

    Returns:
        The device with its index, as in `torch.zeros(..., device=set_device())`.

    Raises:
        RoboCacheError: the device does not exist, or the CUDA backend is not available; the message says why.
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
        raise RoboCacheError(f"device: {name!r} is not available: {missing}; use cpu or auto")
    if int(index or 0) >= torch.cuda.device_count():
        raise RoboCacheError(f"device: {name!r} does not exist; this machine has {torch.cuda.device_count()} GPUs")
    if index:
        torch.cuda.set_device(int(index))
    return torch.device("cuda", torch.cuda.current_device())


def print_installation_info() -> None:
    """Print what a bug report needs: versions, GPUs, the kernel cache, and why the CUDA backend is not available."""
    for name, value in installation_info().items():
        print(f"{name:<16}{value}")  # noqa: T201


def installation_info() -> dict[str, str]:
    """The lines that `print_installation_info` prints, by name."""
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
