"""The output of the engine: every stream at each of T ticks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robocache_ros.units import NS_PER_MS


@dataclass(frozen=True)
class Frames:
    """T ticks of N streams; invalid values are zero, and `valid` marks them."""

    ticks_ns: NDArray[np.int64]  # (T,)
    fused: Tensor  # (T, D) float32, columns as in Layout
    valid: NDArray[np.uint8]  # (T, N) 0 invalid, 1 aligned, 2 held
    age_ns: NDArray[np.int64]  # (T, N) tick - stamp of its sample (the earlier of two, a window's newest); 0 if none
    media: dict[str, Tensor]  # images (T, C, H, W) uint8 or float32; voxels (T, X, Y, Z), (T, F, X, Y, Z)
    # Set only for a single tick on the GPU, whose tensors are views of rings that later ticks overwrite:
    window: Tensor | None = None  # (horizon, D + 2 N + W) float32, `rows()` of the last ticks up to this one
    host: Tensor | None = None  # (1, D) float32, `fused` in pinned memory, complete after `done`
    done: Any = None  # torch.cuda.Event after the tick; later work on the same CUDA stream need not wait for it

    sample_age_ms: NDArray[np.float32] | None = None  # (T, W) tick - stamp of each sample of the windows, -1 if none

    def __len__(self) -> int:
        return len(self.ticks_ns)

    def __getitem__(self, ticks: slice) -> Frames:
        media = {name: value[ticks] for name, value in self.media.items()}
        one = len(self) == 1 and ticks.indices(1) == (0, 1, 1)
        rest = (self.window, self.host, self.done) if one else ()
        parts = (self.ticks_ns[ticks], self.fused[ticks], self.valid[ticks], self.age_ns[ticks])
        ages = None if self.sample_age_ms is None else self.sample_age_ms[ticks]
        return replace(Frames(*parts, media, *rest), sample_age_ms=ages)

    @property
    def stamps_ns(self) -> NDArray[np.int64]:
        """(T, N) int64 stamp of the sample used (the earlier of two); 0 if there is none."""
        return np.where(self.valid > 0, self.ticks_ns[:, None] - self.age_ns, 0)

    def rows(self) -> Tensor:
        """(T, D + 2 N + W) float32 on the host: values, `valid`, ages in ms, sample ages; columns as in Layout.

        Waits for a tick on the GPU.
        """
        status = status_columns(self.valid, self.age_ns, self.sample_age_ms)
        if self.host is not None:
            self.done.synchronize()
        fused = self.fused.cpu() if self.host is None else self.host
        return torch.cat([fused, torch.from_numpy(status)], dim=1)


def status_columns(
    valid: NDArray[np.uint8], age_ns: NDArray[np.int64], sample_age_ms: NDArray[np.float32] | None
) -> NDArray[np.float32]:
    """(T, 2 N + W) float32 columns of a row after its values."""
    status = np.concatenate([valid.astype(np.float32), age_ms(age_ns)], axis=1)
    return status if sample_age_ms is None else np.concatenate([status, sample_age_ms], axis=1)


def age_ms(age_ns: NDArray[np.int64]) -> NDArray[np.float32]:
    """Ages in ms: divided once in float64 and rounded once, so that every writer gives float32(age_ns / 1e6)."""
    return (age_ns / NS_PER_MS).astype(np.float32)
