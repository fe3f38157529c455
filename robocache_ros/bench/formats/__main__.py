"""Measures how fast batches of each format are loaded, by their size, and writes formats.json and formats.md.

python -m robocache_ros.bench.formats --out benchmarks/results     # about 2 minutes
python -m robocache_ros.bench.formats --out /tmp/bench --quick     # tiny, to see that it runs

The data is that of `robocache bench make-data`. The streams of the HDF5 file are also loaded by torch's DataLoader:
with np.interp in 8 workers, as it is commonly written, and with whole arrays in a worker a core.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch

from robocache_ros.bench.formats.make_sets import DEFAULT, make_sets
from robocache_ros.bench.training.interpolating_dataset import InterpolatingDataset, data_loader
from robocache_ros.bench.training.measured import Row, tell, wait_for
from robocache_ros.bench.training.mixed_rate_episodes import mixed_rate_dataset
from robocache_ros.bench.training.training_report import machine, write
from robocache_ros.datasets import TimelineDataset, TimelineLoader, Window
from robocache_ros.training.training_data import open_for_training

WINDOW = Window(n_obs=16, horizon=16)
BATCHES = (16, 64, 256)
STREAMING, CACHED = "read", "cached"


class Load(NamedTuple):
    """How much is measured."""

    episodes: int
    seconds: float  # of a form
    workers: int
    batches: tuple[int, ...]
    limit_s: float  # what begins later is not measured


QUICK = Load(1, 0.01, 0, (16,), 600.0)


def main(given: list[str] | None = None) -> int:
    """Measure and write the result; 1 if a form failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for formats.json and formats.md")
    parser.add_argument("--format", action="append", choices=DEFAULT, help="this format only; may be repeated")
    parser.add_argument("--quick", action="store_true", help="tiny data: no figure means anything")
    parser.add_argument("--limit-s", type=float, default=150.0, help="what begins after so many seconds is left out")
    args = parser.parse_args(given)
    device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    cores = os.cpu_count() or 1
    load = QUICK if args.quick else Load(20, 1.0, min(8, cores), BATCHES, args.limit_s)
    rows: list[Row] = []
    record = {"machine": machine(), "quick": args.quick, "size": load._asdict()}
    with tempfile.TemporaryDirectory(prefix="robocache-bench-") as folder:
        sets = make_sets(Path(folder) / "sets", args.format or DEFAULT, load.episodes)
        for row in measured(sets, load, device):
            rows.append(row)
            write(args.out, "formats", "Batches of each format", record, rows)
    sys.stdout.write((args.out / "formats.md").read_text(encoding="utf-8"))
    return int(any(row.what == "failed" for row in rows))


def measured(sets: dict[str, Path], load: Load, device: torch.device) -> Iterator[Row]:
    """Yield the rows of all formats."""
    end = time.monotonic() + load.limit_s
    for name, path in sets.items():
        part = f"{name}, windows of {WINDOW.n_obs} ticks"
        for batch_size in load.batches:
            forms = _forms(name, path, batch_size, load, device)
            for form, make in forms.items():
                what = f"batch {batch_size}, {form}"
                if time.monotonic() > end:
                    yield Row(part, what, None, "samples/s", note=f"left out after {load.limit_s:g} s")
                    continue
                tell(f"{name}: {what}")
                try:
                    yield _row(part, what, make(), batch_size, load.seconds, device)
                except Exception as error:  # the other forms are measured
                    yield Row(part, "failed", None, "", note=f"{what}: {error}"[:200])


def _forms(name: str, path: Path, batch_size: int, load: Load, device: torch.device) -> dict[str, Callable[[], Any]]:
    """The ways to load a set, by their names."""

    def dataset() -> TimelineDataset:
        if name == "hdf5":
            return mixed_rate_dataset(path, WINDOW)
        return open_for_training(path, file_format=name, rate_hz=30 if name == "calvin" else 50, window=WINDOW)

    def ours(cache: str) -> Callable[[], Any]:
        workers = load.workers if cache == "none" else min(2, load.workers)
        place = {"device": device, "workers": workers, "cache": cache}
        return lambda: TimelineLoader(dataset(), batch_size, shuffle=True, drop_last=True, **place)  # type: ignore[arg-type]

    def peer(workers: int, *, careful: bool) -> Callable[[], Any]:
        return lambda: data_loader(InterpolatingDataset(path, WINDOW, keep_open=careful), batch_size, workers, device)

    forms = {STREAMING: ours("none"), CACHED: ours("device" if device.type == "cuda" else "host")}
    if name == "hdf5":
        cores = os.cpu_count() or 1
        forms["DataLoader, 8 workers, np.interp"] = peer(min(8, load.workers), careful=False)
        forms["DataLoader, a worker a core, whole arrays"] = peer(cores if load.workers else 0, careful=True)
    return forms


def _row(part: str, what: str, loader: Any, batch_size: int, seconds: float, device: torch.device) -> Row:
    """Samples per second over some seconds after the first batches, and how long a batch takes."""
    batches = _endless(loader)
    for _ in range(3):
        next(batches)
    wait_for(device)
    taken: list[float] = []
    start = now = time.perf_counter()
    while now - start < seconds or not taken:
        next(batches)
        wait_for(device)  # a batch counts when it is on the device
        taken.append(time.perf_counter() - now)
        now += taken[-1]
    batches.close()
    if isinstance(loader, TimelineLoader):
        loader.close()
    late = sorted(taken)[int(len(taken) * 0.95)]
    note = f"{median(taken) * 1000:,.2f} ms a batch, 95 % within {late * 1000:,.2f} ms"
    return Row(part, what, len(taken) * batch_size / sum(taken), "samples/s", note=note)


def _endless(loader: Any) -> Any:
    while True:
        yield from loader


if __name__ == "__main__":
    sys.exit(main())
