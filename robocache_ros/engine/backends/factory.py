"""Creates the backend of an engine: by the name of its device, or selected once for `auto`."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace

import torch

from robocache_ros.engine.backends.cpu import CpuBackend
from robocache_ros.engine.backends.interface import Backend, Options
from robocache_ros.errors import RoboCacheError
from robocache_ros.ops.image.nvjpeg import require_jpeg
from robocache_ros.ops.installation import missing_for_cuda
from robocache_ros.spec.layout import Layout

log = logging.getLogger(__name__)


def make_backend(
    layout: Layout, capacities: Mapping[str, int], device: str, unbounded: bool, options: Options
) -> Backend:
    """The backend of a device; `capacities` maps streams to slots, the other arguments are those of FusionEngine."""
    media = [stream.name for stream in layout.spec.media]
    for name in options.payload_bytes:
        if name not in media:
            known = ", ".join(media) or "none"
            raise RoboCacheError(f"payload_bytes.{name}: no image or cloud stream has that name; the spec has {known}")
    if options.jpeg not in ("cpu", "gpu"):
        raise RoboCacheError(f"jpeg: {options.jpeg!r} is not one of cpu, gpu")
    selected = resolve_device(device)
    if selected.type == "cpu":
        if options.jpeg == "gpu":
            raise RoboCacheError(f"jpeg: 'gpu' needs a GPU, and device: {device!r} is the CPU; use jpeg: cpu")
        return CpuBackend(layout, capacities, options, live=not unbounded)
    if unbounded:
        if options.jpeg == "gpu":
            require_jpeg()
        return CpuBackend(layout, capacities, replace(options, converts=selected), live=False)
    from robocache_ros.engine.backends.gpu import GpuBackend

    return GpuBackend(layout, capacities, selected, options)


def resolve_device(device: str) -> torch.device:
    """The torch device of a name; `auto` is the GPU if one works, else the CPU, which is logged.

    Raises:
        RoboCacheError: the name is unknown, or the GPU is not available.
    """
    if device == "auto":
        missing = missing_for_cuda()
        if missing:
            log.info("device: auto is the CPU here: %s", missing)
        return torch.device("cpu" if missing else "cuda", *([] if missing else [torch.cuda.current_device()]))
    try:
        selected = torch.device(device)
    except RuntimeError:
        selected = torch.device("meta")
    if selected.type not in ("cpu", "cuda"):
        raise RoboCacheError(f"device: {device!r} is not one of auto, cpu, cuda, cuda:<index>")
    if selected.type == "cuda":
        missing = missing_for_cuda()
        if missing:
            raise RoboCacheError(f"device: {device!r} is not available: {missing}; use device: cpu or auto")
        if (selected.index or 0) >= torch.cuda.device_count():
            raise RoboCacheError(f"device: {device!r} does not exist; see nvidia-smi, or use device: auto")
        return torch.device("cuda", torch.cuda.current_device() if selected.index is None else selected.index)
    return selected
