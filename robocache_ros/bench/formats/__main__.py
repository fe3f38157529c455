"""Measures how fast batches of each format are loaded, by their size, and writes formats.json and formats.md.

python -m robocache_ros.bench.formats --out benchmarks/results     # about a minute
python -m robocache_ros.bench.formats --out /tmp/bench --quick     # tiny, to see that it runs

The data is that of `robocache bench make-data`. The streams of the HDF5 file are also loaded by torch's DataLoader:
with np.interp in 8 workers, as it is commonly written, and with whole arrays in a worker a core. Batches of 64 of every
format come first, so that a limit of time leaves out what matters least. Rates are means over the time, with all
waiting, after a batch of each worker.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import torch

from robocache_ros.bench.formats.batch_rates import measure
from robocache_ros.bench.formats.make_sets import DEFAULT, make_sets
from robocache_ros.bench.formats.measured_loaders import CACHED, PEERS, READ, WINDOW, MeasuredLoaders
from robocache_ros.bench.result_files import tell
from robocache_ros.bench.training.measured import Row
from robocache_ros.bench.training.training_report import machine, write
from robocache_ros.programs import HelpFormatter

FIRST = 64  # samples of the batches that are measured first
BATCHES = (16, FIRST, 256)
MOST_WORKERS = 8


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
    workers = min(MOST_WORKERS, os.cpu_count() or 1) if args.workers is None else args.workers
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
