"""The loader on a GPU, against DataLoaders that align with NumPy in their workers.

python -m benchmarks.loading.on_gpu --out benchmarks/results
"""

from __future__ import annotations

import io
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from benchmarks.loading.trajectories import (
    SECONDS,
    STREAMS,
    InterpTrajectories,
    JpegEpisodes,
    VectorisedTrajectories,
    write_trajectories,
)
from benchmarks.ops import device_time
from benchmarks.report import argument_parser, write_results
from robocache_ros.datasets import Hdf5Trajectories, LoaderOptions, TimelineDataset, TimelineLoader
from robocache_ros.extras import need
from robocache_ros.ops import Fused, Stream, fuse, resample_from_host, resample_trajectories
from robocache_ros.ops.image.nvjpeg import JpegBatchDecoder

Row = dict[str, Any]


def row(what: str, measured: float, unit: str, target: str, **more: Any) -> Row:
    """One line of the table, which is also printed at once."""
    found = {"what": what, "measured": round(measured, 4), "unit": unit, "target": target, **more}
    sys.stdout.write(f"{found}\n")
    sys.stdout.flush()
    return found


def write(rows: list[Row], folder: Path) -> None:
    """Write loading_on_gpu.json and .md."""
    method = "trajectories/s and frames/s: wall time over whole epochs, on the host; us: medians of CUDA-graph replays"
    about = {**device_time.machine(), "cores": str(os.cpu_count())}
    streams = ", ".join(f"{name} {width} columns at {hz} Hz" for name, (hz, width) in STREAMS.items())
    text = {"machine": about, "method": method, "trajectories": f"{SECONDS} s: {streams}", "rows": rows}
    lines = [
        "# The loader on a GPU",
        "",
        ", ".join(about.values()) + ".",
        "",
        f"Trajectories of {text['trajectories']}.",
        "",
    ]
    lines += [f"{method}.", "", "| | measured | target | |", "| --- | --- | --- | --- |"]
    for each in rows:
        rest = ", ".join(
            f"{key} {value}" for key, value in each.items() if key not in ("what", "measured", "unit", "target")
        )
        lines.append(f"| {each['what']} | {each['measured']:,.2f} {each['unit']} | {each['target']} | {rest} |")
    write_results(folder, "loading_on_gpu", text, "\n".join(lines) + "\n")


MILLION = 1_000_000
PARTS = ("trajectories", "jpeg", "fuse", "bulk")


def rate(epoch: Callable[[], Iterator[int]], at_least_s: float, warm: int = 1) -> float:
    """Trajectories per second over whole epochs, after `warm` of them; `epoch` yields the sizes of batches."""
    for _ in range(warm):
        sum(epoch())
    torch.cuda.synchronize()
    start, count = time.perf_counter(), 0
    while time.perf_counter() - start < at_least_s:
        count += sum(epoch())
    torch.cuda.synchronize()
    return count / (time.perf_counter() - start)


def peer(dataset: Dataset[Any], workers: int, at_least_s: float) -> float:
    """Trajectories per second of a DataLoader, copied to the GPU."""
    loader: Any = DataLoader(
        dataset, 32, shuffle=True, num_workers=workers, pin_memory=True, persistent_workers=True, prefetch_factor=4
    )

    def epoch() -> Iterator[int]:
        for batch in loader:
            yield len(batch.to("cuda", non_blocking=True))

    return rate(epoch, at_least_s)


def ours(loader: TimelineLoader, at_least_s: float) -> float:
    """Trajectories per second of a loader of this package."""

    def epoch() -> Iterator[int]:
        for batch in loader:
            yield len(batch["fused"])

    return rate(epoch, at_least_s, warm=2)


def trajectories(path: Path, count: int, at_least_s: float) -> Iterator[Row]:
    """Trajectories of an HDF5 file, by the loader, by its cache, and by DataLoaders, for some seconds each."""
    cores = os.cpu_count() or 1
    write_trajectories(path, count)
    begin = time.perf_counter()
    dataset = TimelineDataset(Hdf5Trajectories(path), modalities=("proprio",))
    opened = time.perf_counter() - begin
    begin = time.perf_counter()
    for index in range(min(count, 1000)):
        dataset.source.read(index)
    reading = (time.perf_counter() - begin) / min(count, 1000) * 1e6
    usual = peer(InterpTrajectories(path, count), min(8, cores), at_least_s)
    yield row("DataLoader, np.interp, 8 workers", usual, "trajectories/s", "")
    vectorised = peer(VectorisedTrajectories(path, count), cores, at_least_s)
    yield row(f"DataLoader, vectorised, {cores} workers", vectorised, "trajectories/s", "")
    yield row("reading a trajectory", reading, "us", "7 us seen", opened_s=round(opened, 2))
    loader = TimelineLoader(
        dataset, 32, shuffle=True, workers=cores, options=LoaderOptions(prefetch=4 * cores), device="cuda"
    )
    found = ours(loader, at_least_s)
    loader.close()
    both = {"x np.interp": round(found / usual, 1), "x vectorised": round(found / vectorised, 1)}
    yield row(f"loader, batch 32, {cores} workers", found, "trajectories/s", "10 x np.interp, 5 x vectorised", **both)
    loader = TimelineLoader(dataset, 128, shuffle=True, workers=8, device="cuda", cache="device")
    found = ours(loader, at_least_s)
    loader.close()
    both = {"x np.interp": round(found / usual, 1), "us a batch": round(128e6 / found, 1)}
    yield row('loader, batch 128, cache="device"', found, "trajectories/s", "100 x np.interp", **both)


def bulk(count: int = MILLION) -> list[Row]:
    """A million trajectories of 120 x 14 bf16, from pinned host memory and on the device, to 100 ticks."""
    targets = torch.arange(100, device="cuda") * 10_000_000 + 1
    source = torch.empty((count, 120, 14), dtype=torch.bfloat16, device="cuda").normal_()
    jitter = torch.randint(0, 2_000_000, (count, 120), device="cuda")
    times = torch.arange(120, device="cuda") * 8_333_333 + jitter
    out = torch.empty((count, 100, 14), dtype=torch.bfloat16, device="cuda")

    def seconds(call: Callable[[], Any], repeats: int = 7) -> float:
        found = []
        for _ in range(repeats + 1):
            torch.cuda.synchronize()
            begin = time.perf_counter()
            call()
            torch.cuda.synchronize()
            found.append(time.perf_counter() - begin)
        return statistics.median(found[1:])

    on_device = seconds(lambda: resample_trajectories(source, times, targets, out=out))
    host, host_times = (
        torch.empty(each.shape, dtype=each.dtype, pin_memory=True).copy_(each) for each in (source, times)
    )
    expected, host_targets = out.clone(), targets.cpu()
    pcie = seconds(lambda: source.copy_(host, non_blocking=True))
    from_host = seconds(lambda: resample_from_host(host, host_times, host_targets, out=out))
    same = bool(out.view(torch.int16).equal(expected.view(torch.int16)))
    moved = host.nbytes + host_times.nbytes
    speed = {"GB/s": round(moved / from_host / 1e9, 1), "copy GB/s": round(host.nbytes / pcie / 1e9, 1)}
    return [
        row(f"{count:,} trajectories on the device", on_device * 1e3, "ms", "3 ms"),
        row(f"{count:,} trajectories from pinned memory", from_host, "s", "0.10 s", **speed, **{"same bits": same}),
    ]


def one_batch() -> list[Row]:
    """A batch of 32, 500 samples to 250 ticks, 256 + 14 columns of bf16: inputs rotate beyond the L2 cache."""

    def call(_: int) -> Callable[[], Any]:
        stamps = torch.arange(500, device="cuda") * 2_000_000 + torch.randint(0, 600_000, (32, 500), device="cuda")
        streams = [Stream(torch.randn(32, 500, width, device="cuda").bfloat16(), stamps) for width in (256, 14)]
        ticks = (torch.arange(250, device="cuda") * 4_000_000 + 1_000_000).expand(32, -1).contiguous()
        out = fuse(streams, ticks)
        return lambda: fuse(streams, ticks, out=Fused(*out))

    calls = [call(i) for i in range(24)]
    inside = device_time.device_us(calls[:1])
    return [
        row("fuse 32 x (500 -> 250), 256 + 14 columns", device_time.device_us(calls), "us", "5 us", **{"in L2": inside})
    ]


def jpeg(at_least_s: float) -> Iterator[Row]:
    """Jpeg files of 256x256 into batches, for some seconds each."""
    image, random = need("PIL.Image", "export"), np.random.default_rng(0)
    files = []
    for _ in range(SECONDS * 30):
        file = io.BytesIO()
        noise = image.fromarray(random.integers(0, 255, (24, 24, 3), dtype=np.uint8))
        noise.resize((256, 256), image.BICUBIC).save(file, "jpeg", quality=90)
        files.append(file.getvalue())
    data = torch.from_numpy(np.frombuffer(b"".join(files * 12), np.uint8).copy()).pin_memory()
    sizes = np.array([len(file) for file in files * 12], np.int64)
    addresses = data.data_ptr() + np.cumsum(sizes) - sizes
    out = torch.empty((len(sizes), 256, 256, 3), dtype=torch.uint8, device="cuda")
    decoder = JpegBatchDecoder(out.device)

    def decoded() -> Iterator[int]:
        assert not decoder.decode(addresses, sizes, out, np.arange(len(sizes)))
        yield len(sizes)

    alone = rate(decoded, at_least_s)
    yield row("nvJPEG alone, 256x256", alone, "frames/s", "30,000 seen", bytes=round(float(sizes.mean())))
    dataset = TimelineDataset(JpegEpisodes(160, files), target_hz=30)
    cores = os.cpu_count() or 1
    for where, target in (("gpu", "25,000"), ("cpu", "")):
        loader = TimelineLoader(dataset, 8, workers=cores, device="cuda", options=LoaderOptions(jpeg=where))

        def epoch(batches: TimelineLoader = loader) -> Iterator[int]:
            for batch in batches:
                yield batch["vision"].shape[0] * batch["vision"].shape[1]

        what = f'loader, batch 8 of 90 images, jpeg="{where}", {cores} workers'
        yield row(what, rate(epoch, at_least_s), "frames/s", target)
        loader.close()


def main() -> None:
    """Measure, and write the results."""
    parser = argument_parser(__doc__)
    parser.add_argument("--count", type=int, default=5000, help="Trajectories of the file.")
    parser.add_argument("--part", choices=PARTS, action="append", help="Measure this part only; may be repeated.")
    parser.add_argument("--seconds", type=float, default=2.0, help="At least so long for each rate, in whole epochs.")
    given = parser.parse_args()
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trajectories.hdf5"
        measures: dict[str, Callable[[], Iterable[Row]]] = {
            "trajectories": lambda: trajectories(path, given.count, given.seconds),
            "jpeg": lambda: jpeg(given.seconds),
            "fuse": one_batch,
            "bulk": bulk,
        }
        rows: list[Row] = []
        for part in given.part or PARTS:
            for each in measures[part]():
                rows.append(each)
                write(rows, given.out)


if __name__ == "__main__":
    main()
