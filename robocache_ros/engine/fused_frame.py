"""A fused frame as a policy sees it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from robocache_ros.spec.layout import Layout
from robocache_ros.units import NS_PER_MS, NS_PER_S


@dataclass(frozen=True)
class FusedFrame:
    """A tick, and the window of H ticks that ends with it.

    Attributes:
        tick_ns: time of the tick, ns since the epoch.
        ticks_ns: (H,) int64, times of the window's ticks.
        tensors: by stream: vectors (H, D) float32; images (C, H, W) and voxels of the newest tick, where asked for.
        valid: by stream (H,) uint8: 0 invalid, 1 aligned, 2 held past its neighbour.
        age_ns: by stream (H,) int64; from a message to the precision of float32 in ms.
    """

    tick_ns: int
    ticks_ns: Tensor
    tensors: dict[str, Tensor]
    valid: dict[str, Tensor]
    age_ns: dict[str, Tensor]

    def __getitem__(self, stream: str) -> Tensor:
        return self.tensors[stream]

    def to(self, device: torch.device) -> FusedFrame:
        """The frame with its tensors on a device."""
        if all(value.device == device for value in self.tensors.values()):
            return self
        tensors = {name: value.to(device, non_blocking=device.type == "cuda") for name, value in self.tensors.items()}
        return FusedFrame(self.tick_ns, self.ticks_ns, tensors, self.valid, self.age_ns)


def split_window(layout: Layout, tick_ns: int, window: Tensor) -> FusedFrame:
    """The frame of an (H, D + 2 N) float32 window that ends with a tick, as Layout names its columns."""
    rate_hz = layout.spec.rate_hz
    newest = -(-tick_ns * rate_hz // NS_PER_S)
    horizon = len(window)
    ticks = [(newest - back) * NS_PER_S // rate_hz for back in range(horizon - 1, -1, -1)]
    valid = window[:, layout.width : layout.width + len(layout.names)].to(torch.uint8)
    age_ns = (window[:, layout.width + len(layout.names) :].double() * NS_PER_MS).round().to(torch.int64)
    return FusedFrame(
        tick_ns,
        torch.tensor(ticks),
        {name: window[:, slot] for name, slot in layout.slots.items()},
        {name: valid[:, index] for index, name in enumerate(layout.names)},
        {name: age_ns[:, index] for index, name in enumerate(layout.names)},
    )
