"""What a tick launches for one layout of a stream's samples."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

NO_TARGET = (0,) * 5  # the numbers of Target, which each tick fills in


@dataclass(frozen=True)
class Prepared:
    """How a tick makes an image or a voxel grid of one sample's bytes.

    A stream's kernels are captured once for each `variant`; `task` holds the rest, which differs between samples.
    """

    shape: tuple[int, ...]  # of the result
    dtype: torch.dtype
    variant: tuple[int, ...]  # images: family, resize, pixels; clouds: mode, features, cells, whether of depth
    task: bytes  # ImageTask or CloudTask, without the target and the address of the bytes


def nowhere(nbytes: int) -> Tensor:
    """(nbytes,) uint8 at address 0: each tick fills in the address of a sample's bytes."""
    return torch.empty(nbytes, dtype=torch.uint8, device="meta")
