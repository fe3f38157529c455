"""Resampling on a GPU of trajectories that are in host memory, in slabs: the copies and the launches overlap."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from robocache_ros.errors import RoboCacheError
from robocache_ros.ops.resample.inputs import Stream, check_streams
from robocache_ros.ops.resample.trajectories import resample_trajectories

SLAB_BYTES = 64 << 20  # large enough for the full rate of PCIe, small enough that little is waited for at both ends


class _Buffers(NamedTuple):
    """Memory of the device for a slab."""

    data: Tensor
    times: Tensor
    copied: Any  # torch.cuda.Event
    read: Any


# More than 50 lines because of its signature and docstring.
def resample_from_host(
    source: Tensor,
    source_times: Tensor,
    target_times: Tensor,
    device: str | torch.device = "cuda",
    *,
    method: str = "linear",
    max_gap: float | None = None,
    max_age: float | None = None,
    out: Tensor | None = None,
    slab_bytes: int = SLAB_BYTES,
) -> Tensor:
    """Resample trajectories in host memory at new times, on a GPU.

    The result is that of `resample_trajectories`, bit for bit. The device has two slabs of the source at a time; one is
    copied while the other is resampled. The call returns before the device is done: the source must stay as it is until
    torch's current stream is.

    Args:
        source: (B, S, D) contiguous, in host memory. Pinned memory is copied at the rate of PCIe; other memory several
            times slower.
        source_times: (B, S), or (S,) for all batches, in host memory.
        target_times: (T,), of the dtype of `source_times`.
        device: a CUDA device.
        method: as in `resample_trajectories`.
        max_gap: as in `resample_trajectories`.
        max_age: as in `resample_trajectories`.
        out: (B, T, D) contiguous on the device; allocated if None.
        slab_bytes: of the source that is copied at once, at least one trajectory.

    Raises:
        RoboCacheError: an argument is wrong; the message has its name, the expected value and the given one.
    """
    place = torch.device(device)
    if place.type != "cuda":
        raise RoboCacheError(f"device: {place} is not a CUDA device; use resample_trajectories")
    stream = Stream(source, source_times, method, None, max_gap, max_age)
    shape = check_streams((stream,), target_times)
    if shape.device.type != "cpu" or target_times.dim() != 1:
        raise RoboCacheError(f"source: expected host memory, and one row of targets, got {shape.device}")
    if out is None:
        out = torch.empty((shape.batches, shape.targets, shape.width), dtype=source.dtype, device=place)
    rows = max(1, min(slab_bytes // max(1, source[:1].nbytes), shape.batches))
    each = source_times.dim() == 2
    targets = target_times.to(place)
    shared = None if each else source_times.to(place)
    with torch.cuda.device(out.device):
        current = torch.cuda.current_stream()
        copies: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        copies.wait_stream(current)  # which may still use what was in the buffers' memory
        buffers = [_buffers(source, source_times, rows, place) for _ in range(2)]
        for number, first in enumerate(range(0, shape.batches, rows)):
            some, slab = slice(first, min(first + rows, shape.batches)), buffers[number % 2]
            count = some.stop - first
            with torch.cuda.stream(copies):
                if number >= len(buffers):
                    copies.wait_event(slab.read)
                slab.data[:count].copy_(source[some], non_blocking=True)
                if each:
                    slab.times[:count].copy_(source_times[some], non_blocking=True)
                slab.copied.record(copies)
            current.wait_event(slab.copied)
            times = slab.times[:count] if shared is None else shared
            limits = {"method": method, "max_gap": max_gap, "max_age": max_age}
            resample_trajectories(slab.data[:count], times, targets, out=out[some], **limits)  # type: ignore[arg-type]
            slab.read.record(current)
    return out


def _buffers(source: Tensor, times: Tensor, rows: int, device: torch.device) -> _Buffers:
    data = torch.empty((rows, *source.shape[1:]), dtype=source.dtype, device=device)
    stamps = torch.empty((rows, *times.shape[1:]) if times.dim() == 2 else (0,), dtype=times.dtype, device=device)
    return _Buffers(data, stamps, torch.cuda.Event(), torch.cuda.Event())  # type: ignore[no-untyped-call]
