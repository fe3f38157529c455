"""Which backend an engine gets: asked for by name, or chosen once, and said."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import torch

from robocache_ros.engine.backend import Backend, Options
from robocache_ros.engine.host import HostBackend
from robocache_ros.errors import RoboCacheError
from robocache_ros.layout import Layout
from robocache_ros.ops.installation import missing_for_cuda

log = logging.getLogger(__name__)


def make_backend(
    layout: Layout, capacities: Mapping[str, int], device: str, unbounded: bool, options: Options
) -> Backend:
    """The backend of a device; `capacities` are slots by stream, the rest is as FusionEngine's."""
    media = [stream.name for stream in layout.spec.media]
    for name in options.payload_bytes:
        if name not in media:
            known = ", ".join(media) or "none"
            raise RoboCacheError(f"payload_bytes.{name}: no image or cloud stream has that name; the spec has {known}")
    if options.jpeg not in ("cpu", "gpu"):
        raise RoboCacheError(f"jpeg: {options.jpeg!r} is not one of cpu, gpu")
    chosen = resolve_device(device)
    if chosen.type == "cpu":
        if options.jpeg == "gpu":
            raise RoboCacheError(f"jpeg: 'gpu' needs a GPU, and device: {device!r} is the CPU here; use jpeg: cpu")
        return HostBackend(layout, capacities, options.normalized)
    if unbounded:
        raise RoboCacheError(
            f"device: {device!r} holds a fixed number of samples; recordings are fused with device: cpu"
        )
    from robocache_ros.engine.device import DeviceBackend

    return DeviceBackend(layout, capacities, chosen, options)


def resolve_device(device: str) -> torch.device:
    """`auto` to the GPU where one works, else to the CPU with a line in the log; others as they are, if there."""
    if device == "auto":
        missing = missing_for_cuda()
        if missing:
            log.info("device: auto is the CPU here: %s", missing)
        return torch.device("cpu" if missing else "cuda", *([] if missing else [torch.cuda.current_device()]))
    try:
        chosen = torch.device(device)
    except RuntimeError:
        chosen = torch.device("meta")
    if chosen.type not in ("cpu", "cuda"):
        raise RoboCacheError(f"device: {device!r} is not one of auto, cpu, cuda, cuda:<index>")
    if chosen.type == "cuda":
        missing = missing_for_cuda()
        if missing:
            raise RoboCacheError(f"device: {device!r} cannot be had: {missing}; use device: cpu or auto")
        if (chosen.index or 0) >= torch.cuda.device_count():
            raise RoboCacheError(f"device: {device!r} is not there; there are {torch.cuda.device_count()} GPUs")
        return torch.device("cuda", torch.cuda.current_device() if chosen.index is None else chosen.index)
    return chosen
