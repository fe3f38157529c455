"""A fused frame as a policy sees it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from robocache_ros.spec.layout import Layout
from robocache_ros.units import NS_PER_MS, NS_PER_S


@dataclass(frozen=True)
class FusedFrame:
    """A tick, and the window of H ticks that ends with this tick.

    Attributes:
        tick_ns: time of the tick, ns since the epoch.
        ticks_ns: (H,) int64, times of the window's ticks.
        tensors: by stream: vectors (H, D) and windows (H, n, D) float32; images (C, H, W) and voxels of the newest
            tick, if requested.
        valid: by stream (H,) uint8: 0 invalid, 1 aligned, 2 held.
        age_ns: by stream (H,) int64; ages from a message have the precision of float32 in ms.
        sample_age_ms: by window (H, n) float32, the age of each sample; -1 for padding.
    """

    tick_ns: int
    ticks_ns: Tensor
    tensors: dict[str, Tensor]
    valid: dict[str, Tensor]
    age_ns: dict[str, Tensor]
    sample_age_ms: dict[str, Tensor] = field(default_factory=dict)

    def mask(self, window: str) -> Tensor:
        """(H, n) bool: True for rows of a window that are samples, False for padding."""
        return self.sample_age_ms[window] >= 0

    def __getitem__(self, stream: str) -> Tensor:
        return self.tensors[stream]

    def to(self, device: torch.device) -> FusedFrame:
        """The frame with its tensors on a device."""
        if all(value.device == device for value in self.tensors.values()):
            return self

        def moved(values: dict[str, Tensor]) -> dict[str, Tensor]:
            return {name: value.to(device, non_blocking=device.type == "cuda") for name, value in values.items()}

        return replace(self, tensors=moved(self.tensors), sample_age_ms=moved(self.sample_age_ms))


def split_window(layout: Layout, tick_ns: int, window: Tensor) -> FusedFrame:
    """Split an (H, D + 2 N + W) float32 window that ends with a tick into a frame; columns as in Layout."""
    rate_hz = layout.spec.rate_hz
    newest = -(-tick_ns * rate_hz // NS_PER_S)
    horizon = len(window)
    ticks = [(newest - back) * NS_PER_S // rate_hz for back in range(horizon - 1, -1, -1)]
    count = len(layout.names)
    valid = window[:, layout.width : layout.width + count].to(torch.uint8)
    ages = window[:, layout.width + count : layout.width + 2 * count]
    age_ns = (ages.double() * NS_PER_MS).round().to(torch.int64)
    return FusedFrame(
        tick_ns,
        torch.tensor(ticks),
        stream_values(layout, window),
        {name: valid[:, index] for index, name in enumerate(layout.names)},
        {name: age_ns[:, index] for index, name in enumerate(layout.names)},
        sample_ages(layout, window),
    )


def sample_ages(layout: Layout, window: Tensor) -> dict[str, Tensor]:
    """The (H, n) sample ages of every window stream in the rows of a window, as views."""
    ages = window[:, window.shape[1] - layout.ages :]
    return {name: ages[:, slot] for name, slot in layout.sample_ages.items()}


def stream_values(layout: Layout, window: Tensor) -> dict[str, Tensor]:
    """The values of every vector stream in the rows of a window, as views: (H, D), or (H, n, D) for a window stream."""
    # One split is faster than several slices.
    values = torch.split(window, [*layout.widths, window.shape[1] - layout.width], dim=1)
    return {
        stream.name: value.view(len(window), stream.rows, stream.dim) if stream.rows else value
        for stream, value in zip(layout.spec.vectors, values, strict=False)
    }
