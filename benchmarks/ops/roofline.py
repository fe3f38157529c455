"""Each operation's bytes and time against the ceilings of the GPU: the copy rate of its memory and of its L2, a launch.

    python -m benchmarks.ops.roofline [--out FOLDER]

Writes roofline.json, roofline.md and roofline.png. The ceilings are measured in the same run: a copy of 2 GiB, a copy
of 16 MiB that stays in the L2 cache, and an empty kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from benchmarks.ops import device_time
from benchmarks.ops.spatial import GRID, random_points
from benchmarks.ops.vectors import FUSED, cases
from benchmarks.report import argument_parser
from robocache_ros import ops
from robocache_ros.extras import need

L2_BYTES = 16 << 20  # of a copy that stays in the L2 cache
BATCHES = (1, 16, 256, 2048, 16384)
POINTS = tuple(1 << exponent for exponent in range(12, 25, 3))
WIDTHS = (320, 640, 1280, 1920, 3840)
Row = dict[str, Any]


def ceilings() -> dict[str, float]:
    """Bytes per microsecond of the memory and of the L2 cache, and microseconds of an empty kernel in a graph."""
    nothing = torch.zeros(1, device="cuda")
    return {
        "memory": device_time.copy_rate() / 1e6,
        "L2": L2_BYTES / device_time.copy_us(L2_BYTES, rotate=0),
        "launch us": device_time.device_us([partial(torch.bitwise_not, nothing.int(), out=nothing.int())]),
    }


def measured(operation: str, size: str, bytes_moved: int, calls: Sequence[Callable[[], Any]]) -> Row:
    """Measure calls that move `bytes_moved` bytes each."""
    us = device_time.device_us(calls, 8, 9)
    return {"operation": operation, "size": size, "MB": bytes_moved / 1e6, "us": us, "GB/s": bytes_moved / us / 1e3}


def vectors() -> Iterator[Row]:
    """Resample and fuse, by the batch."""
    for name, streams, targets in (("resample", [(100, 32)], 50), ("fuse 3 streams", FUSED, 50)):
        for batch in BATCHES:
            made = cases(batch, streams, targets, torch.bfloat16)
            yield measured(name, f"B {batch}", made[0].touched(), [case.fuse for case in made])
            del made


def clouds() -> Iterator[Row]:
    """Voxels of clouds, by the number of points; bytes are the points and the grid, written twice: cleared, filled."""
    for count in POINTS:
        points = random_points(count)
        out = ops.voxelize_pointcloud(points, *GRID, "occupancy").grid
        call = partial(ops.voxelize_pointcloud, points, *GRID, "occupancy", out=out)
        yield measured("voxelize", f"{count} points", points.nbytes + 2 * out.nbytes, [call])


def images() -> Iterator[Row]:
    """Images resized and normalised, by their width; bytes are the pixels that come in and those that go out."""
    for width in WIDTHS:
        height = width * 9 // 16
        image = torch.randint(0, 256, (height * width * 3,), dtype=torch.uint8, device="cuda")
        convert = partial(
            ops.convert_image, image, encoding="rgb8", width=width, height=height, step=width * 3, size=(224, 224),
            resize="area", normalize="imagenet", dtype=torch.bfloat16,
        )  # fmt: skip
        yield measured("resize, area", f"{width} x {height}", image.nbytes + 3 * 224 * 224 * 2, [convert])


def draw(rows: Sequence[Row], limits: dict[str, float], title: str, file: Path) -> None:
    """Draw the rate of each operation over its bytes, with the ceilings."""
    plt, np = need("matplotlib.pyplot", "export"), need("numpy", "export")
    figure, axis = plt.subplots(figsize=(8, 5), constrained_layout=True)
    sizes = np.logspace(3, 10, 100)
    for name in ("memory", "L2"):
        least_us = np.maximum(sizes / limits[name], limits["launch us"])
        axis.loglog(sizes, sizes / least_us / 1e3, "k-" if name == "memory" else "k:", label=f"ceiling: {name}")
    for operation in dict.fromkeys(row["operation"] for row in rows):
        own = [row for row in rows if row["operation"] == operation]
        axis.loglog([row["MB"] * 1e6 for row in own], [row["GB/s"] for row in own], "o-", label=operation)
    axis.set(xlabel="bytes that must move", ylabel="GB/s", title=title)
    axis.legend(frameon=False)
    axis.grid(True, which="major", alpha=0.3)
    figure.savefig(file, dpi=110)
    plt.close(figure)


def main() -> None:
    """Measure, and write roofline.json, roofline.md and roofline.png."""
    parser = argument_parser(__doc__)
    given = parser.parse_args()
    torch.manual_seed(0)
    limits = ceilings()
    extra: dict[str, Any] = {f"ceiling, {name}, GB/s": round(limits[name] / 1e3, 1) for name in ("memory", "L2")}
    extra["ceiling, launch, us"] = round(limits["launch us"], 3)
    with device_time.written("roofline", "Operations against the ceilings of the GPU", extra, given.out) as rows:
        for row in chain(vectors(), clouds(), images()):
            share = max(row["MB"] * 1e6 / limits["memory"], limits["launch us"]) / row["us"]
            rows.append({**row, "% of the ceiling": 100 * share})
    draw(rows, limits, device_time.machine()["gpu"], given.out / "roofline.png")


if __name__ == "__main__":
    main()
