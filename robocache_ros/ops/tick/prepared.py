"""The launch of a tick for samples of one layout."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

NO_TARGET = (0,) * 5  # the values of Target, which each tick sets


@dataclass(frozen=True)
class Prepared:
    """How a tick computes an image or a voxel grid from one sample's bytes.

    A stream's kernels are captured once for each `variant`; `task` holds the rest, which differs between samples.
    """

    shape: tuple[int, ...]  # of the result
    dtype: torch.dtype
    variant: tuple[int, ...]  # images: family, resize, pixels; clouds: mode, features, cells, whether of depth
    task: bytes  # ImageTask or CloudTask, without the target and the address of the bytes


def nowhere(nbytes: int) -> Tensor:
    """(nbytes,) uint8 at address 0: each tick sets the address of a sample's bytes."""
    return torch.empty(nbytes, dtype=torch.uint8, device="meta")
