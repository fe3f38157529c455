"""Creates the backend of an engine: by the name of its device, or selected once for `auto`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from robocache_ros.engine.backends.cpu import CpuBackend
from robocache_ros.engine.backends.interface import Backend, Options
from robocache_ros.errors import RoboCacheError
from robocache_ros.ops.image.nvjpeg import require_jpeg
from robocache_ros.ops.installation import resolve_device
from robocache_ros.spec.layout import Layout


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
