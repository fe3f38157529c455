"""Resampling and fusing against torch eager, torch.compile and a naive kernel.

python -m benchmarks.ops.vectors --out benchmarks/results
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.ops import device_time
from benchmarks.report import argument_parser
from robocache_ros.extras import need
from robocache_ros.ops import Fused, Stream, fuse, resample_trajectories
from robocache_ros.ops.resample.cpu import select_stream

SECOND = 1_000_000_000
ROTATED = 192 << 20  # bytes of inputs and outputs that rotate, three times the L2 cache
# B, S, T, D, and the target: maximum microseconds, or minimum share of the copy rate
RESAMPLE = [
    ((256, 100, 50, 32), 2.5),
    ((32, 500, 250, 256), 4.0),
    ((32, 500, 256, 256), None),
    ((2048, 500, 250, 256), 0.95),
    ((32768, 120, 100, 16), 0.85),
    ((32768, 120, 100, 14), 0.85),
    ((64, 75, 125, 270), None),  # odd widths: loads and stores of 2 and 4 bytes
    ((512, 333, 300, 77), None),
    ((16384, 200, 50, 23), None),
]
FUSED = ((30, 512), (100, 64), (200, 12))  # samples and columns of three streams in a second
UNEVEN = ((500, 256), (500, 14))
FUSE = [
    ("3 streams", FUSED, (4, 50), 2.5),
    ("3 streams", FUSED, (1024, 50), 0.85),
    ("256 + 14 columns", UNEVEN, (32, 250), 6.0),
]


class Case:
    """Inputs of one call: samples at a jittered rate over a second, targets on a regular grid, per batch."""

    def __init__(self, batches: int, streams: Sequence[tuple[int, int]], targets: int, dtype: torch.dtype) -> None:
        def stamps(size: int, jitter: float) -> Tensor:
            moved = torch.arange(size, device="cuda") + jitter * torch.rand(batches, size, device="cuda")
            return (moved * (SECOND / size)).long()

        self.sources = [torch.randn(batches, size, width, device="cuda").to(dtype) for size, width in streams]
        self.times = [stamps(size, 0.3) for size, _ in streams]
        self.targets = (stamps(targets, 0.0) + int(0.4 * SECOND / streams[0][0])).contiguous()
        width = sum(width for _, width in streams)
        self.out = torch.empty(batches, targets, width, device="cuda", dtype=dtype)
        self.streams = [Stream(source, times) for source, times in zip(self.sources, self.times, strict=True)]
        marks = (batches, targets, len(streams))
        valid, age = (torch.empty(marks, device="cuda", dtype=kind) for kind in (torch.uint8, torch.int64))
        self.fused = Fused(self.out, valid, age)

    def touched(self) -> int:
        """Bytes that must move: samples that are needed, times, targets and the output, each once."""
        total = self.targets.nbytes + self.out.nbytes
        for stream in self.streams:
            selection = select_stream(stream, self.targets)
            rows = torch.arange(len(stream.data), device="cuda")[:, None] * stream.data.shape[1]
            used = torch.cat([rows + selection.lower, rows + selection.upper])[
                torch.cat([selection.lower, selection.upper]) >= 0
            ]
            total += stream.times.nbytes + torch.unique(used).numel() * stream.data[0, 0].nbytes
        return total

    def resample(self) -> Tensor:
        """This package."""
        values = resample_trajectories(self.sources[0], self.times[0], self.targets, out=self.out)
        assert isinstance(values, Tensor)
        return values

    def fuse(self) -> Any:
        """This package: values, valid and age."""
        return fuse(self.streams, self.targets, out=self.fused)

    def eager(self) -> Tensor:
        """Plain torch, values only."""
        parts = [lerp(*inputs, self.targets) for inputs in zip(self.sources, self.times, strict=True)]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=2)

    def compiled(self) -> Tensor:
        """The same under torch.compile."""
        return compiled_lerps(self.sources, self.times, self.targets)

    def naive(self) -> None:
        """A launch of the naive kernel for each stream, values only."""
        batches, count, pitch = self.out.shape
        column, cupy = 0, need("cupy", "cuda13")
        for source, times in zip(self.sources, self.times, strict=True):
            size, width = source.shape[1:]
            pointers = [tensor.data_ptr() for tensor in (source, times, self.targets, self.out)]
            sizes = [cupy.int32(n) for n in (batches, size, count, width, pitch, column)]
            with cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream):
                naive_kernel()((-(-batches * count * width // 256),), (256,), (*pointers, *sizes))
            column += width


def lerp(source: Tensor, times: Tensor, targets: Tensor) -> Tensor:
    """Resampling as written in plain torch."""
    upper = torch.searchsorted(times, targets, right=True).clamp(1, times.shape[1] - 1)
    lower = upper - 1
    start, end = times.gather(1, lower), times.gather(1, upper)
    share = ((targets - start).double() / (end - start).double()).clamp(0, 1).to(source.dtype)[..., None]
    rows = source.shape[2]
    before = source.gather(1, lower[..., None].expand(-1, -1, rows))
    after = source.gather(1, upper[..., None].expand(-1, -1, rows))
    return torch.lerp(before, after, share)


@torch.compile(dynamic=False)
def compiled_lerps(sources: list[Tensor], times: list[Tensor], targets: Tensor) -> Tensor:
    """`lerp` of each stream, side by side."""
    parts = [lerp(*inputs, targets) for inputs in zip(sources, times, strict=True)]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=2)


_naive: list[Any] = []


def naive_kernel() -> Any:
    """naive_vectors.cu, compiled once."""
    if not _naive:
        text = (Path(__file__).parent / "naive_vectors.cu").read_text()
        _naive.append(need("cupy", "cuda13").RawKernel(text, "naive_resample"))
    return _naive[0]


def host_us(call: Callable[[], Any]) -> float:
    """Median microseconds of Python's side of one call, with the GPU keeping up."""
    calls, times = 200, []
    for _ in range(calls):
        call()
    for _ in range(15):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(calls):
            call()
        times.append((time.perf_counter() - start) / calls * 1e6)
    return statistics.median(times)


def cases(batches: int, streams: Sequence[tuple[int, int]], targets: int, dtype: torch.dtype) -> list[Case]:
    """Enough sets of inputs to exceed the L2 cache."""
    first = Case(batches, streams, targets, dtype)
    size = sum(tensor.nbytes for tensor in (*first.sources, *first.times, first.targets, first.out))
    return [first, *(Case(batches, streams, targets, dtype) for _ in range(min(ROTATED // size, 63)))]


def row(
    name: str, operation: str, made: list[Case], goal: float | None, rate: float, peers: Sequence[str]
) -> dict[str, Any]:
    """One line of the table."""
    touched = made[0].touched()
    floor = touched / rate * 1e6
    ours = [getattr(case, operation) for case in made]
    result: dict[str, Any] = {"workload": name, "floor": floor, "copied": device_time.copy_us(touched)}
    result["ours"] = device_time.device_us(ours)
    result["of copy rate %"] = 100 * floor / result["ours"]
    result["in L2"] = device_time.device_us(ours[:1])
    for peer in peers:
        result[peer] = device_time.device_us([getattr(case, peer) for case in made])
    if "compiled" in peers:
        result["compiled in L2"] = device_time.device_us([made[0].compiled])
    if goal is not None:
        result["goal"] = f"{goal:.1f} us" if goal > 1 else f"{100 * goal:.0f} %"
        met = result["ours"] <= goal if goal > 1 else floor / result["ours"] >= goal
        result["met"] = "yes" if met else "no"
    result["host"] = host_us(ours[0])
    return result


def curves(dtype: torch.dtype, every: int = 1) -> list[dict[str, Any]]:
    """Time against each size in turn, with the others constant; `every`: measure each n-th size."""
    base = {"batches": 256, "samples": 100, "targets": 50, "width": 32, "streams": 1}
    sweeps = {
        "batches": [1, 4, 16, 64, 256, 1024, 4096, 16384, 65536],
        "samples": [2, 10, 50, 100, 200, 500, 1000, 2000, 3000, 5000, 10000],
        "targets": [1, 4, 10, 25, 50, 100, 200, 500, 1000, 5000],
        "width": [1, 2, 4, 7, 8, 14, 16, 31, 32, 64, 100, 128, 256, 512, 1000, 1024, 2048],
        "streams": [1, 2, 3, 4, 8, 16, 32],
    }
    rows = []
    for name, sizes in sweeps.items():
        for size in sizes[::every]:
            at = {**base, name: size}
            made = cases(at["batches"], [(at["samples"], at["width"])] * at["streams"], at["targets"], dtype)
            bytes_moved = made[0].touched()
            device_us = device_time.device_us([case.fuse for case in made], replays=9)
            rows.append({"of": name, "size": size, "us": device_us, "bytes": bytes_moved})
            del made
    return rows


def main() -> None:
    """Measure, print the table and write vectors.json and vectors.md."""
    parser = argument_parser(__doc__)
    parser.add_argument("--no-peers", action="store_true", help="Measure this package only.")
    parser.add_argument("--quick", action="store_true", help="Leave out float16, and every other size of the curves.")
    parser.add_argument("--no-curves", action="store_true", help="Leave the scaling curves out.")
    given = parser.parse_args()
    torch.manual_seed(0)
    torch._dynamo.config.cache_size_limit = 64
    rate = device_time.copy_rate()
    dtypes = (torch.bfloat16, torch.float32) if given.quick else (torch.bfloat16, torch.float32, torch.float16)
    extra: dict[str, Any] = {"copy rate TB/s": round(rate / 1e12, 3)}
    with device_time.written("vectors", "Resample and fuse", extra, given.out) as rows:
        for dtype in dtypes:
            peers = ("compiled", "eager", "naive") if dtype == torch.bfloat16 and not given.no_peers else ()
            for (batches, samples, targets, width), goal in RESAMPLE:
                name = f"resample {batches}, {samples}->{targets}, {width} {str(dtype)[6:]}"
                made = cases(batches, [(samples, width)], targets, dtype)
                rows.append(row(name, "resample", made, goal if dtype == torch.bfloat16 else None, rate, peers))
                del made
            for which, streams, (batches, targets), goal in FUSE:
                name = f"fuse {which}, B {batches} {str(dtype)[6:]}"
                made = cases(batches, streams, targets, dtype)
                rows.append(row(name, "fuse", made, goal if dtype == torch.bfloat16 else None, rate, peers))
                del made
        if not given.no_curves:
            extra["curves"] = curves(torch.bfloat16, 2 if given.quick else 1)


if __name__ == "__main__":
    main()
