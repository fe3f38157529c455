"""How loading, alignment and training scale with the number of GPUs."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.episodes import write_episodes
from benchmarks.processes import ProcessEndedError, end_on_sigterm, lines_of
from benchmarks.published import SCALING_NOTE
from benchmarks.report import tell, write_results
from benchmarks.training.measured import machine
from robocache_ros.programs import HelpFormatter
from robocache_ros.training.throughput import table

# Measures how loading, alignment and training scale over 1, 2, 4 and 8 GPUs, and writes scaling.json and scaling.md.
#
# python -m benchmarks.scaling --out benchmarks/results     # as many as this machine has, about 90 s each
# python -m benchmarks.scaling --out /tmp/bench --quick     # tiny, on 1 and 2 processes of the CPU
#
# weak: each process has a batch; strong: they share one. The efficiency is the rate per process over that of one alone.


COUNTS = (1, 2, 4, 8)
FULL: dict[str, Any] = {"policy": "act-101m", "batch": 64, "n_obs": 234, "seconds": 4.0, "device": "cuda"}
QUICK: dict[str, Any] = {"policy": "tiny", "batch": 4, "n_obs": 4, "seconds": 0.01, "device": "cpu"}
PROCESS = "benchmarks.scaling_process"
WANTED = "Wanted on 2 GPUs, weak: 99 % of loading and preprocessing."


def main(given: list[str] | None = None) -> int:
    """Measure and write the result; 1 if a number of processes failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=HelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for scaling.json and scaling.md")
    parser.add_argument("--quick", action="store_true", help="tiny, on the CPU: no figure means anything")
    parser.add_argument("--limit-s", type=float, default=140.0, help="seconds after which a number of GPUs is ended")
    args = parser.parse_args(given)
    there = 2 if args.quick else torch.cuda.device_count()
    counts = [count for count in COUNTS if count <= there]
    record: dict[str, Any] = {"machine": machine(), "quick": args.quick, "rows": [], "failed": {}}
    with tempfile.TemporaryDirectory(prefix="robocache-bench-") as folder:
        episodes = Path(folder) / "episodes.hdf5"
        write_episodes(episodes, 1 if args.quick else 100)
        wanted = {**(QUICK if args.quick else FULL), "episodes": str(episodes), "limit_s": args.limit_s}
        for count in counts:
            tell(f"{count} processes, at most {args.limit_s:g} s")
            try:
                for line in lines_of(command(count, wanted), args.limit_s):
                    record["rows"].append(json.loads(line))
                    _write(args.out, record, there)
            except ProcessEndedError as ended:
                record["failed"][str(count)] = str(ended)
            _write(args.out, record, there)
    sys.stdout.write((args.out / "scaling.md").read_text(encoding="utf-8"))
    return int(bool(record["failed"]))


def command(count: int, wanted: dict[str, Any]) -> Sequence[str]:
    """Return the command of a number of processes."""
    alone = (sys.executable, "-m", PROCESS, json.dumps(wanted))
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={count}")
    return (*torchrun, "--no-python", *alone) if count > 1 else alone


def _write(folder: Path, record: dict[str, Any], there: int) -> None:
    about = record["machine"]
    lines = ["# Scaling over GPUs", ""]
    lines.append(f"{there} x {about['gpu']}, {about['cores']} cores, torch {about['torch']}, {about['date']}. {WANTED}")
    lines += ["", SCALING_NOTE]
    if record["quick"]:
        lines += ["", "A quick run on the CPU, whose cores the processes share: no figure means anything."]
    lines += ["", table(record["rows"]), ""]
    lines += [f"{count} processes: not measured, {reason}.\n" for count, reason in record["failed"].items()]
    lines += [f"{count} processes: not measured, needs {count} GPUs.\n" for count in COUNTS if count > there]
    write_results(folder, "scaling", record, "\n".join(lines))


if __name__ == "__main__":
    end_on_sigterm()
    sys.exit(main())
