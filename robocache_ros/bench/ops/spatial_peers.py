"""The peers of the spatial operations: plain torch, and a naive kernel with a thread for each point or pixel."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from robocache_ros.extras import need

LOW, SIZE, SIDE = -16.0, 0.25, 128
CELLS = SIDE**3


def cell_of(points: Tensor) -> Tensor:
    """Eager torch: cell number, CELLS if outside."""
    index = torch.floor((points[:, :3] - LOW) / SIZE).to(torch.int32)
    inside = ((index >= 0) & (index < SIDE)).all(dim=1)
    cell = (index[:, 0] * SIDE + index[:, 1]) * SIDE + index[:, 2]
    return torch.where(inside, cell, CELLS).long()


def torch_count(points: Tensor) -> Tensor:
    """Counts by scatter_add."""
    cell = cell_of(points)
    grid = torch.zeros(CELLS + 1, dtype=torch.int32, device="cuda")
    return grid.scatter_add_(0, cell, torch.ones_like(cell, dtype=torch.int32))


def torch_occupancy(points: Tensor) -> Tensor:
    """Occupancy by index_put of one value."""
    return torch.zeros(CELLS + 1, dtype=torch.uint8, device="cuda").index_fill_(0, cell_of(points), 1)


def torch_mean(points: Tensor) -> Tensor:
    """Means by float index_add, which differ between runs."""
    cell = cell_of(points)
    sums = torch.zeros(CELLS + 1, 5, device="cuda")
    sums.index_add_(0, cell, F.pad(points[:, 3:], (0, 1), value=1.0))
    return (sums[:, :4] / sums[:, 4:].clamp_min(1)).t().contiguous()


def torch_bytes(data: Tensor, transform: Tensor) -> Tensor:
    """Bytes of 16-byte points -> transformed -> occupancy."""
    points = data.view(torch.float32).view(-1, 4)[:, :3]
    return torch_occupancy(points @ transform[:3, :3].T + transform[:3, 3])


def torch_image(mode: str, data: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """rgb8 bytes -> (3, 224, 224) bf16 by interpolate."""
    image = data.view(1080, 1920, 3).permute(2, 0, 1)[None].float()
    size = (224, 224)
    image = F.interpolate(image, size, mode="area") if mode == "area" else F.interpolate(image, size, mode="bilinear")
    return ((image[0] / 255 - mean) / std).to(torch.bfloat16)


class Naive:
    """naive_spatial.cu, compiled by CuPy and launched on torch's current stream."""

    def __init__(self) -> None:
        source = (Path(__file__).parent / "naive_spatial.cu").read_text()
        self._cupy: Any = need("cupy", "cuda13")
        self._module = self._cupy.RawModule(code=source)

    def launch(self, name: str, threads: int, *arguments: Any) -> None:
        """One thread for each of `threads` items."""
        cupy, kernel = self._cupy, self._module.get_function(name)
        packed = [
            cupy.int32(a) if isinstance(a, int) else cupy.float32(a) if isinstance(a, float) else a for a in arguments
        ]
        pointers = [cupy.uint64(a.data_ptr()) if isinstance(a, Tensor) else a for a in packed]
        with cupy.cuda.Stream.from_external(torch.cuda.current_stream()):
            kernel(((threads + 255) // 256,), (256,), tuple(pointers))

    def count(self, points: Tensor, grid: Tensor) -> None:
        """Clear and count."""
        grid.zero_()
        self.launch("count_points", len(points), points, grid, len(points), LOW, SIZE, SIDE)

    def mean(self, points: Tensor, sums: Tensor) -> None:
        """Clear, add in float, divide."""
        sums.zero_()
        self.launch("mean_points", len(points), points, sums, len(points), LOW, SIZE, SIDE)
        self.launch("divide", CELLS, sums, CELLS)
