"""The peers of the spatial operations: plain torch, and a naive kernel with a thread for each point or pixel."""

from __future__ import annotations

import math
from collections import namedtuple
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from benchmarks.ops import device_time
from benchmarks.report import argument_parser
from robocache_ros import ops
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


# Voxels, clouds and images against torch eager, torch.compile and a naive kernel.
#
# python -m benchmarks.ops.spatial --out benchmarks/results


Field = namedtuple("Field", "name offset datatype count")
GRID = ((LOW,) * 3, SIZE, (SIDE,) * 3)
IMAGENET = torch.tensor([[0.485, 0.456, 0.406], [0.229, 0.224, 0.225]])
ROTATED = 96 << 20  # bytes of inputs that rotate, more than the L2 cache holds


def random_points(count: int, columns: int = 3) -> Tensor:
    """Uniform in the grid: nearly every point is in a different voxel."""
    points = torch.rand(count, columns, device="cuda")
    points[:, :3] = points[:, :3] * (SIDE * SIZE) + LOW
    return points


def lidar_scan(count: int) -> Tensor:
    """A spinning 64-ring lidar 1.8 m above the floor of a hall of 24 x 18 m, 2 cm of noise, in firing order."""
    rings = 64
    azimuth = torch.arange(count // rings + 1, device="cuda").repeat_interleave(rings)[:count] * (
        2 * math.pi * rings / count
    )
    elevation = torch.linspace(-0.43, 0.26, rings, device="cuda").repeat(count // rings + 1)[:count]
    way = torch.stack([elevation.cos() * azimuth.cos(), elevation.cos() * azimuth.sin(), elevation.sin()], dim=1)
    far = torch.tensor([[12.0, 9.0, 1.8], [12.0, 9.0, 4.0]], device="cuda")
    reach = torch.where(way < 0, far[0], far[1]) / way.abs().clamp_min(1e-6)
    distance = reach.amin(dim=1) + 0.02 * torch.randn(count, device="cuda")
    return (way * distance[:, None]).contiguous()


def row(
    name: str, target: str, ours: Sequence[Callable[[], Any]], peers: Mapping[str, Sequence[Callable[[], Any]]]
) -> dict[str, Any]:
    """One line of the table."""
    result: dict[str, Any] = {"workload": name, "target": target, "robocache": device_time.device_us(ours)}
    for peer, calls in peers.items():
        result[peer] = device_time.device_us(calls)
    print(result, flush=True)
    return result


def rotated(make: Callable[[], Tensor], one_is_enough: bool = False) -> list[Tensor]:
    """Inputs that together exceed the L2 cache, or one."""
    first = make()
    size = first.numel() * first.element_size()
    return [first, *(make() for _ in range(0 if one_is_enough else min(ROTATED // size, 200)))]


def voxel_rows(naive: Naive) -> Iterator[dict[str, Any]]:
    """Count, occupancy and mean."""
    counts = torch.empty((SIDE,) * 3, dtype=torch.int32, device="cuda")
    bytes_ = torch.empty((SIDE,) * 3, dtype=torch.uint8, device="cuda")
    bits = torch.empty((SIDE, SIDE, SIDE // 32), dtype=torch.int32, device="cuda")
    compiled_count, compiled_occupancy = torch.compile(torch_count), torch.compile(torch_occupancy)
    grids = {"count": counts, "occupancy": bytes_, "occupancy_bits": bits}
    for label, make, limits in (
        ("500,000 random", partial(random_points, 500_000), {"count": "7", "occupancy": "5"}),
        ("100,000 lidar", partial(lidar_scan, 100_000), {"count": "4", "occupancy": "4"}),
    ):
        for inputs in (rotated(make, True), rotated(make)):
            where = "in L2" if len(inputs) == 1 else "from memory"
            for mode, out in grids.items():
                peers: dict[str, Sequence[Callable[[], Any]]] = {}
                if mode != "occupancy_bits":
                    eager = torch_count if mode == "count" else torch_occupancy
                    compiled = compiled_count if mode == "count" else compiled_occupancy
                    peers = {
                        "eager": [partial(eager, p) for p in inputs],
                        "compiled": [partial(compiled, p) for p in inputs],
                    }
                    peers["naive"] = [partial(naive.count, p, counts) for p in inputs]
                ours = [partial(ops.voxelize_pointcloud, p, *GRID, mode, out=out) for p in inputs]
                yield row(f"{mode}, {label}, {where}", limits.get(mode, ""), ours, peers)
    inputs = rotated(partial(random_points, 500_000, 7))
    means = torch.empty((4, SIDE, SIDE, SIDE), device="cuda")
    sums = torch.empty((5, SIDE, SIDE, SIDE), device="cuda")
    compiled_mean = torch.compile(torch_mean)
    for where, some in (("in L2", inputs[:1]), ("from memory", inputs)):
        peers = {"eager": [partial(torch_mean, p) for p in some], "compiled": [partial(compiled_mean, p) for p in some]}
        peers["naive"] = [partial(naive.mean, p, sums) for p in some]
        ours = [partial(ops.voxelize_pointcloud, p, *GRID, "mean", out=means) for p in some]
        yield row(f"mean of 4 features, 500,000 random, {where}", "25", ours, peers)


def cloud_bytes(make: Callable[[int], Tensor]) -> Tensor:
    """100,000 points of 16 bytes: x, y, z and an intensity."""
    return F.pad(make(100_000), (0, 1), value=0.5).view(torch.uint8).view(-1)


def cloud_rows() -> Iterator[dict[str, Any]]:
    """PointCloud2 bytes, 16 bytes a point, with an extrinsic."""
    turn = math.cos(0.3), math.sin(0.3)
    transform = torch.tensor([[turn[0], -turn[1], 0, 0.5], [turn[1], turn[0], 0, -0.2], [0, 0, 1, 0.1], [0, 0, 0, 1]])
    there = transform.cuda()
    fields = [Field(name, 4 * i, 7, 1) for i, name in enumerate(("x", "y", "z", "intensity"))]
    out = torch.empty((SIDE,) * 3, dtype=torch.uint8, device="cuda")
    compiled = torch.compile(torch_bytes)
    for label, make in (("random", random_points), ("lidar", lidar_scan)):
        clouds = rotated(partial(cloud_bytes, make))
        for where, some in (("in L2", clouds[:1]), ("from memory", clouds)):
            convert = partial(
                ops.voxelize_cloud_bytes, width=100_000, height=1, point_step=16, row_step=1_600_000, fields=fields,
                transform=transform, grid_min=GRID[0], voxel_size=GRID[1], grid_size=GRID[2], out=out,
            )  # fmt: skip
            peers = {
                "eager": [partial(torch_bytes, c, there) for c in some],
                "compiled": [partial(compiled, c, there) for c in some],
            }
            yield row(f"bytes -> occupancy, 100,000 {label}, {where}", "5", [partial(convert, c) for c in some], peers)


def image_rows(naive: Naive) -> Iterator[dict[str, Any]]:
    """1080p rgb8 -> 3 x 224 x 224 bf16, normalised."""
    size = 1080 * 1920 * 3
    images = rotated(lambda: torch.randint(0, 256, (size,), dtype=torch.uint8, device="cuda"))
    out = torch.empty((3, 224, 224), dtype=torch.bfloat16, device="cuda")
    mean, std = IMAGENET.view(2, 3, 1, 1).cuda()
    goal = device_time.copy_us(size + out.numel() * 2) / 0.9
    limits = {
        "bilinear": "3",
        "area": f"{goal:.2f} (copy of its bytes / 0.9)",
    }
    for mode, limit in limits.items():
        compiled = torch.compile(torch_image)
        for where, some in (("in L2", images[:1]), ("from memory", images)):
            peers: dict[str, Sequence[Callable[[], Any]]] = {}
            peers["eager"] = [partial(torch_image, mode, i, mean, std) for i in some]
            peers["compiled"] = [partial(compiled, mode, i, mean, std) for i in some]
            if mode == "bilinear":
                peers["naive"] = [
                    partial(naive.launch, "resize", 224 * 224, i, out, 1920, 1080, 224, 224) for i in some
                ]
            convert = partial(
                ops.convert_image, encoding="rgb8", width=1920, height=1080, step=5760, size=(224, 224), resize=mode,
                normalize="imagenet", dtype=torch.bfloat16, out=out,
            )  # fmt: skip
            yield row(f"1080p rgb8 -> 224, {mode}, {where}", limit, [partial(convert, i) for i in some], peers)


def curves() -> list[dict[str, Any]]:
    """Device time over the number of points, and over the image's size."""
    result: list[dict[str, Any]] = []
    for exponent in range(10, 24):
        points = random_points(1 << exponent)
        some: dict[str, float] = {"points": 1 << exponent}
        for mode in ("count", "occupancy", "occupancy_bits"):
            out = ops.voxelize_pointcloud(points, *GRID, mode).grid
            some[mode] = device_time.device_us([partial(ops.voxelize_pointcloud, points, *GRID, mode, out=out)], 8, 9)
        result.append(some)
    for width in (320, 640, 1280, 1920, 3840):
        height = width * 9 // 16
        image = torch.randint(0, 256, (height * width * 3,), dtype=torch.uint8, device="cuda")
        some = {"width": width}
        for mode in ("nearest", "bilinear", "area"):
            convert = partial(
                ops.convert_image, image, encoding="rgb8", width=width, height=height, step=width * 3,
                size=(224, 224), resize=mode, normalize="imagenet", dtype=torch.bfloat16,
            )  # fmt: skip
            some[mode] = device_time.device_us([convert], 8, 9)
        result.append(some)
    return result


def main() -> None:
    """Measure and write spatial.json and spatial.md."""
    parser = argument_parser(__doc__)
    parser.add_argument("--quick", action="store_true", help="Leave the scaling curves out.")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    naive = Naive()
    extra: dict[str, Any] = {
        "empty kernel": device_time.device_us([partial(naive.launch, "nothing", 1)]),
        "copy rate, TB/s": device_time.copy_rate() / 1e12,
    }
    with device_time.written("spatial", "Voxels, clouds and images", extra, arguments.out) as rows:
        for measured in (voxel_rows(naive), cloud_rows(), image_rows(naive)):
            rows.extend(measured)  # one by one, as they are measured
        if not arguments.quick:
            extra["curves"] = curves()


if __name__ == "__main__":
    main()
