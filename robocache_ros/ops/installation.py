"""The devices and versions of this machine, and a test that the operations work on it."""

from __future__ import annotations

import logging
import platform
import sys
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch
from torch import Tensor

from robocache_ros.alignments import NAMES
from robocache_ros.errors import RoboCacheError
from robocache_ros.ops.cuda.kernels import cache_directory, import_cupy_cuda
from robocache_ros.ops.resample.inputs import Stream
from robocache_ros.ops.resample.resample import fuse, resample_trajectories
from robocache_ros.reductions import REDUCTIONS

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
    chosen = resolve_device(device)
    if chosen.type == "cuda":
        torch.cuda.set_device(chosen)
    return chosen


def resolve_device(device: str | torch.device) -> torch.device:
    """Return the device that `set_device` sets."""
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
    return torch.device("cuda", int(index) if index else torch.cuda.current_device())


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


Case = tuple[str, Callable[[str], Any]]


def self_test(device: str | torch.device = "auto") -> bool:
    """Check this machine: run every kind of operation on `device` and on the CPU, compare all bits, and print a table.

    Args:
        device: as for `set_device`. On the CPU the operations run twice, and the comparison is of the CPU with itself.

    Returns:
        Whether all bits were the same.
    """
    chosen = set_device(device)
    print_installation_info()
    print(f"\n{'operation on ' + str(chosen):<48}{'same bits':>10}{'first ms':>10}{'then us':>10}")  # noqa: T201
    good = True
    for name, run in _cases():
        try:
            expected = run("cpu")
            first, got = _timed(run, str(chosen))
            same = all(_same(a, b.cpu()) for a, b in zip(expected, got, strict=True))
            later = min(_timed(run, str(chosen))[0] for _ in range(10))
            line = f"{name:<48}{'yes' if same else 'NO':>10}{first * 1e3:>10.1f}{later * 1e6:>10.0f}"
        except RoboCacheError as error:
            same, line = False, f"{name:<48}{error}"
        good = good and same
        print(line)  # noqa: T201
    print("Passed: all bits are the same." if good else "Failed: some bits differ; see the lines above.")  # noqa: T201
    return good


def _cases() -> list[Case]:
    random = torch.Generator().manual_seed(0)
    ticks = torch.arange(50) * 20_000_000
    stamps = (torch.rand(16, 100, generator=random) * 1e9).long().sort(dim=1).values
    values = torch.randn(16, 100, 32, generator=random)

    def resample(method: str, dtype: torch.dtype) -> Case:
        data = values.to(dtype)
        return (
            f"resample {method} {str(dtype)[6:]}, 16 x 100 -> 50, 32",
            lambda device: resample_trajectories(
                data.to(device), stamps.to(device), ticks.to(device), method=method, return_valid=True
            ),
        )

    def fusion(device: str) -> tuple[Tensor, ...]:
        streams = [Stream(values[:, :, :n].contiguous().to(device), stamps.to(device), m) for n, m in _FUSED]
        return fuse(streams, ticks.to(device))

    cases = [resample(method, torch.float32) for method in NAMES]
    cases += [resample("linear", dtype) for dtype in (torch.float16, torch.bfloat16)]
    return [*cases, ("fuse 3 streams, 16 x 100 -> 50", fusion), *_space_cases(random)]


_FUSED = ((32, "linear"), (4, "slerp"), (7, "angle"))


def _space_cases(random: torch.Generator) -> list[Case]:
    from robocache_ros.ops.image.convert import convert_image
    from robocache_ros.ops.voxel.voxelize import voxelize_pointcloud

    points = torch.rand(20000, 4, generator=random)
    image = torch.randint(0, 256, (480 * 640 * 3,), generator=random, dtype=torch.uint8)

    def voxels(mode: str) -> Case:
        def run(device: str) -> tuple[Tensor]:
            result = voxelize_pointcloud(points.to(device), (0.0, 0.0, 0.0), 0.02, (50, 50, 50), mode=mode)
            return (result.grid,)

        return f"voxelize {mode}, 20000 points", run

    def picture(device: str) -> tuple[Tensor]:
        return (convert_image(image.to(device), encoding="rgb8", width=640, height=480, step=1920, size=(224, 224)),)

    return [
        *(voxels(mode) for mode, kind in REDUCTIONS.items() if not kind.needs_max_points),
        ("image rgb8 480p -> 224 x 224", picture),
    ]


def _timed(run: Callable[[str], Any], device: str) -> tuple[float, Any]:
    start = time.perf_counter()
    result = run(device)
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - start, result


def _same(a: Tensor, b: Tensor) -> bool:
    return a.dtype == b.dtype and torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))
