"""Measures trainings on this machine's first GPU, or on the CPU, and writes training.json and training.md.

python -m benchmarks.training --out benchmarks/results     # about 8 minutes on a GPU
python -m benchmarks.training --out /tmp/bench --quick     # tiny, to see that it runs

Each part has a process and a limit of time. The files are written after each figure: a part that is ended, or Ctrl-C,
loses none.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from benchmarks.episodes import write_episodes
from benchmarks.processes import ProcessEndedError, end_on_sigterm, lines_of
from benchmarks.report import tell
from benchmarks.training.measured import Row, Size, machine, write
from benchmarks.training.parts import PARTS
from robocache_ros.programs import HelpFormatter

FULL = Size(episodes=100, seconds=6.0, workers=max(1, (os.cpu_count() or 2) - 2), tiny=False)
QUICK = Size(episodes=1, seconds=0.02, workers=0, tiny=True)
RUN_PART = (sys.executable, "-m", "benchmarks.training.parts")


def main(given: list[str] | None = None) -> int:
    """Run the parts and write the results; 1 if a part failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=HelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for training.json and training.md")
    parser.add_argument("--quick", action="store_true", help="tiny policies and data: no figure means anything")
    parser.add_argument("--part", action="append", choices=PARTS, help="this part only; may be repeated")
    parser.add_argument("--seconds", type=float, help="of each measurement; default: 6")
    parser.add_argument("--limit-s", type=float, help="seconds after which a part is ended; default: its own limit")
    args = parser.parse_args(given)
    size = QUICK if args.quick else replace(FULL, seconds=args.seconds or FULL.seconds)
    rows: dict[tuple[str, str], Row] = {}
    record: dict[str, Any] = {"machine": machine(), "quick": args.quick, "size": asdict(size), "took_s": {}}
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        episodes = Path(folder) / "episodes.hdf5"
        record["data_bytes"] = write_episodes(episodes, size.episodes)
        for name in args.part or PARTS:
            start, limit_s = time.perf_counter(), args.limit_s or PARTS[name].limit_s
            tell(f"{name}: at most {limit_s:g} s")
            wanted = {"part": name, "size": asdict(size), "episodes": str(episodes), "limit_s": limit_s}
            for row in rows_of(wanted):
                rows[row.part, row.what] = row
                failed |= row.what == "failed"
                record["took_s"][name] = round(time.perf_counter() - start, 1)
                write(args.out, "training", "Training", record, list(rows.values()))
            tell(f"{name}: {time.perf_counter() - start:.1f} s")
    print((args.out / "training.md").read_text(encoding="utf-8"))
    return failed


def rows_of(wanted: dict[str, Any]) -> Iterator[Row]:
    """Yield the rows of a part as its process measures them, and one of its failure if it fails or is ended."""
    try:
        for line in lines_of([*RUN_PART, json.dumps(wanted)], wanted["limit_s"]):
            yield Row(**json.loads(line))
    except ProcessEndedError as ended:
        yield Row(wanted["part"], "failed", None, "", note=str(ended))


if __name__ == "__main__":
    end_on_sigterm()
    sys.exit(main())
