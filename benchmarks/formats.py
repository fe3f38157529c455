"""One synthetic dataset in every format, and how fast the loader reads each of them."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, suppress
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch

from benchmarks.episodes import InterpolatingDataset, data_loader, mixed_rate_dataset
from benchmarks.make_data import DEFAULT, make_sets
from benchmarks.report import busy_seconds, tell
from benchmarks.training.measured import Row, machine, wait_for, write
from robocache_ros.datasets import TimelineDataset, TimelineLoader, Window
from robocache_ros.datasets.loader.order import Epochs
from robocache_ros.datasets.loader.timeline_loader import make_order
from robocache_ros.programs import HelpFormatter
from robocache_ros.training.throughput import endless
from robocache_ros.training.training_data import open_for_training

# Batches per second of a source, with all of its waiting.


class Rate(NamedTuple):
    """What was measured.

    Attributes:
        batches_per_s: over the whole time, with all waiting.
        batch_ms: median and 95th percentile of the time from one batch to the next, in milliseconds.
        busy_cores: processors that all processes of the machine used.
    """

    batches_per_s: float
    batch_ms: tuple[float, float]
    busy_cores: float

    def __str__(self) -> str:
        middle, late = self.batch_ms
        return f"{middle:,.2f} ms a batch, 95 % within {late:,.2f} ms, {self.busy_cores:.1f} cores busy"


def warm_up(batches: Iterator[Any], count: int) -> Iterator[Any]:
    """Take some batches, and return the rest of them."""
    for _ in islice(batches, count):
        pass
    return batches


def measure(batches: Iterator[Any], seconds: float, workers: int, device: torch.device) -> Rate:
    """Measure a source each of whose workers has just read a batch, so that nothing that was read before is counted.

    A batch counts when it is on the device. Workers begin together, so that their batches arrive in waves: only whole
    waves are counted, since the part of a wave that has not arrived has taken time as well.

    Args:
        batches: without an end. They are taken without a pause, so that none waits for being taken.
        seconds: at least so long.
        workers: that read at the same time; 0: this process reads.
        device: of the batches.
    """
    taken: list[float] = []
    wait_for(device)
    busy = busy_seconds()
    start = now = time.perf_counter()
    while now - start < seconds or not taken or len(taken) % max(1, workers):
        next(batches)
        wait_for(device)
        taken.append(time.perf_counter() - now)
        now += taken[-1]
    total, busy = now - start, busy_seconds() - busy
    late = sorted(taken)[int(len(taken) * 0.95)]
    return Rate(len(taken) / total, (median(taken) * 1000, late * 1000), busy / total)


# The sources of batches that are measured. Their workers start together, once for all sizes of batches.


WINDOW = Window(n_obs=16, horizon=16)
READ, CACHED = "read", "cached"
PEERS = {"DataLoader, 8 workers, np.interp": False, "DataLoader, a worker a core, whole arrays": True}
SMALL = 16  # samples of the batches with which workers start


class ResizableLoader(TimelineLoader):
    """A `TimelineLoader` that keeps its workers and its cache when the size of its batches changes."""

    def resize(self, batch_size: int) -> None:
        """Make the batches of the following epochs of another size. What was read ahead is discarded."""
        order = self._order
        self.batch_size = batch_size
        self._order = make_order(
            self._shuffle, self._samples, batch_size, order.seed, order.drop_last, order.rank, order.world_size
        )
        self._epochs = Epochs(self._order, self._samples)

    def rest(self) -> None:
        """Wait for what workers are reading ahead, and discard it."""
        for _ in self._prefetcher.batches(iter(()), 0, self._widths, self._finish):
            pass


class MeasuredLoaders:
    """The loaders of some sets.

    Args:
        sets: path of each set, by the name of its format.
        workers: of a loader that reads; 0: this process reads.
        device: of the batches.
    """

    def __init__(self, sets: Mapping[str, Path], workers: int, device: torch.device) -> None:
        self._sets, self._device = sets, device
        self.workers = {READ: workers, CACHED: 0}  # one pass fills a cache, sooner than workers start
        self.workers |= {name: workers and (os.cpu_count() or 1 if careful else 8) for name, careful in PEERS.items()}
        self._loaders: dict[tuple[str, str], ResizableLoader] = {}

    def start(self) -> None:
        """Start the workers of all sets at the same time, which takes most of a benchmark otherwise."""
        for name in self._sets:
            with suppress(Exception):  # raised again, and reported, when the set is measured
                self.loader(name, READ)
        for name in self._sets:
            with suppress(Exception):
                warm_up(endless(self.loader(name, READ)), 2 * self.workers[READ])
                self.rest(name, READ, last=False)

    def batches(self, name: str, form: str, batch_size: int) -> Iterator[Any]:
        """Return the batches of a set in one of the forms, epoch after epoch, after a batch of each of its workers.

        Errors:
            RoboCacheError: the set cannot be read.
        """
        batches = endless(self._source(name, form, batch_size))
        return warm_up(batches, max(1, self.workers[form]) * (2 if form in PEERS else 1))  # those of peers start

    def rest(self, name: str, form: str, *, last: bool) -> None:
        """Make the workers of a loader rest while others are measured; end them if it is not used again."""
        if last and (name, form) in self._loaders:
            self._loaders.pop((name, form)).close()
        elif (name, form) in self._loaders:
            self._loaders[name, form].rest()

    def _source(self, name: str, form: str, batch_size: int) -> Iterable[Any]:
        if form in PEERS:
            dataset = InterpolatingDataset(self._sets[name], WINDOW, keep_open=PEERS[form])
            return data_loader(dataset, batch_size, self.workers[form], self._device)
        loader = self.loader(name, form)
        loader.resize(batch_size)
        return loader

    def loader(self, name: str, form: str) -> ResizableLoader:
        """Return the loader of a set, which is made once."""
        if (name, form) not in self._loaders:
            where = "device" if self._device.type == "cuda" else "host"
            self._loaders[name, form] = ResizableLoader(
                _opened(name, self._sets[name]),
                SMALL,
                shuffle=True,
                drop_last=True,
                device=self._device,
                workers=self.workers[form],
                cache=where if form == CACHED else "none",
            )
        return self._loaders[name, form]

    def close(self) -> None:
        """End the workers."""
        for loader in self._loaders.values():
            loader.close()


def _opened(name: str, path: Path) -> TimelineDataset:
    if name == "hdf5":
        return mixed_rate_dataset(path, WINDOW)
    return open_for_training(path, file_format=name, rate_hz=30 if name == "calvin" else 50, window=WINDOW)


# Measures how fast batches of each format are loaded, by their size, and writes formats.json and formats.md.
#
# python -m benchmarks.formats --out benchmarks/results     # about a minute
# python -m benchmarks.formats --out /tmp/bench --quick     # tiny, to see that it runs
#
# The data is that of `python -m benchmarks make-data`. The streams of the HDF5 file are also loaded by torch's
# DataLoader: with np.interp in 8 workers, as it is commonly written, and with whole arrays in a worker a core.
# Batches of 64 of every format come first, so that a limit of time leaves out what matters least. Rates are means
# over the time, with all waiting, after a batch of each worker.


FIRST = 64  # samples of the batches that are measured first
BATCHES = (16, FIRST, 256)
MAX_WORKERS = 8


class Load(NamedTuple):
    """How much is measured."""

    episodes: int
    seconds: float  # of a form; a cached one is measured for half of it
    workers: int
    batches: tuple[int, ...]
    limit_s: float  # what begins later is not measured


class Case(NamedTuple):
    """A row of the tables."""

    name: str  # of the format
    batch_size: int
    form: str

    @property
    def part(self) -> str:
        """The title of its table."""
        return f"{self.name}, windows of {WINDOW.n_obs} ticks"

    @property
    def what(self) -> str:
        """What is measured."""
        return f"batch {self.batch_size}, {self.form}"


QUICK = Load(1, 0.01, 0, (16,), 600.0)


def main(given: list[str] | None = None) -> int:
    """Measure and write the result; 1 if a form failed."""
    started = time.monotonic()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=HelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for formats.json and formats.md")
    parser.add_argument("--format", action="append", choices=DEFAULT, help="this format only; may be repeated")
    parser.add_argument("--quick", action="store_true", help="tiny data: no figure means anything")
    parser.add_argument("--seconds", type=float, default=0.7, help="of a measurement")
    parser.add_argument("--workers", type=int, help="of the loader that reads; default: a core each, at most 8")
    parser.add_argument("--limit-s", type=float, default=150.0, help="what begins after so many seconds is left out")
    args = parser.parse_args(given)
    device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    workers = min(MAX_WORKERS, os.cpu_count() or 1) if args.workers is None else args.workers
    load = QUICK if args.quick else Load(20, args.seconds, workers, BATCHES, args.limit_s)
    rows: dict[Case, Row] = {}
    record = {"machine": machine(), "quick": args.quick, "size": load._asdict()}
    with tempfile.TemporaryDirectory(prefix="robocache-bench-") as folder:
        tell("the sets are written")
        sets = make_sets(Path(folder) / "sets", args.format or DEFAULT, load.episodes)
        order = cases(tuple(sets), load.batches)
        with closing(MeasuredLoaders(sets, load.workers, device)) as loaders:
            for case, row in measured(order, loaders, load, device, started):
                rows[case] = row
                write(args.out, "formats", title(load), record, [rows[case] for case in order if case in rows])
    sys.stdout.write((args.out / "formats.md").read_text(encoding="utf-8"))
    return int(any(row.what == "failed" for row in rows.values()))


def title(load: Load) -> str:
    """Return the heading of the result."""
    return f"Batches of each format, read by {load.workers} workers" if load.workers else "Batches of each format"


def cases(names: tuple[str, ...], batches: tuple[int, ...]) -> list[Case]:
    """Return all cases in the order of the tables."""
    found = []
    for name in names:
        forms = (READ, CACHED, *PEERS) if name == "hdf5" else (READ, CACHED)
        found += [Case(name, batch_size, form) for batch_size in batches for form in forms]
    return found


def measured(
    order: list[Case], loaders: MeasuredLoaders, load: Load, device: torch.device, started: float
) -> Iterator[tuple[Case, Row]]:
    """Yield the row of each case, the most important ones first; `started` is the begin of `limit_s`."""
    end = started + load.limit_s
    tell("the workers start")
    loaders.start()
    left = Counter((case.name, case.form) for case in order)
    for case in sorted(order, key=lambda case: (case.batch_size != FIRST, case.form in PEERS)):
        if time.monotonic() > end:
            yield case, Row(case.part, case.what, None, "samples/s", note=f"left out after {load.limit_s:g} s")
            continue
        tell(f"{case.name}: {case.what}")
        try:
            batches = loaders.batches(case.name, case.form, case.batch_size)
            seconds = load.seconds / 2 if case.form == CACHED else load.seconds
            found = measure(batches, seconds, loaders.workers[case.form], device)
            del batches  # ends the workers of a peer
            left[case.name, case.form] -= 1
            loaders.rest(case.name, case.form, last=not left[case.name, case.form])
            rate = found.batches_per_s * case.batch_size
            yield case, Row(case.part, case.what, rate, "samples/s", note=str(found))
        except Exception as error:  # the other cases are measured
            yield case, Row(case.part, "failed", None, "", note=f"{case.what}: {error}"[:200])


if __name__ == "__main__":
    sys.exit(main())
