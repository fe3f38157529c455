"""The launch of a tick for samples of one layout."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

NO_TARGET = (0,) * 5  # the values of Target, which each tick sets


class ImageVariant(NamedTuple):
    """What the kernel of an image is compiled with, and the pixels of the result."""

    family: int
    resize: int
    pixels: int


class CloudVariant(NamedTuple):
    """What the kernels of a voxel grid are compiled with, and the cells of the grid."""

    mode: str
    features: int  # 0 of a reduction that reads none
    cells: int
    is_depth: int  # 1 for depth images


Variant: TypeAlias = ImageVariant | CloudVariant


@dataclass(frozen=True)
class Prepared:
    """How a tick computes an image or a voxel grid from one sample's bytes.

    A stream's kernels are captured once for each `variant`; `task` holds the rest, which differs between samples.
    """

    shape: tuple[int, ...]  # of the result
    dtype: torch.dtype
    variant: Variant
    task: bytes  # ImageTask or CloudTask, without the target and the address of the bytes


def nowhere(nbytes: int) -> Tensor:
    """(nbytes,) uint8 at address 0: each tick sets the address of a sample's bytes."""
    return torch.empty(nbytes, dtype=torch.uint8, device="meta")
