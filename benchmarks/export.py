"""The job on a recording: `robocache info` and `robocache export`, each in a process of its own, as a user runs them.

Run: python benchmarks/export.py [--bag test/data/panda_lift] [--spec config/panda_lift.yaml] [--rounds 5]

Writes benchmarks/results/export.json. `conversion_s` is what the tool prints: from the first look at the recording
until the dataset has its name, the report included, libraries loaded. `process_s` is the whole process, with Python's
start and the import of torch.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULT = Path(__file__).parent / "results" / "export.json"


def main() -> None:
    """Measure and write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bag", type=Path, default=ROOT / "test" / "data" / "panda_lift")
    parser.add_argument("--spec", type=Path, default=ROOT / "config" / "panda_lift.yaml")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        export = ["export", str(options.bag), "--spec", str(options.spec), "--out", f"{folder}/set", "--overwrite"]
        jobs = {
            "info": ["info", str(options.bag)],
            "export, no video": [*export, "--no-video"],
            "export, PNG images": [*export, "--media", "image"],
            "export, video": export,
        }
        result = {
            "machine": machine(),
            "bag": options.bag.name,
            "jobs": {name: measured(job, options.rounds) for name, job in jobs.items()},
        }
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    for name, job in result["jobs"].items():
        print(f"{name:20s} {job}")


def measured(arguments: list[str], rounds: int) -> dict[str, Any]:
    """Median, and best, of some runs after one that warms the disk's cache."""
    process, conversion, times = [], [], []
    for _ in range(rounds + 1):
        begun = time.perf_counter()
        command = [sys.executable, "-m", "robocache_ros", *arguments]
        done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
        process.append(time.perf_counter() - begun)
        said = re.search(r"in\s+([\d.]+)\s+s\s+\(([\d.]+)\s+x\s+real\s+time", done.stdout)
        if said:
            conversion.append(float(said[1]))
            times.append(float(said[2]))
    told = {"process_s": middle(process[1:]), "process_best_s": round(min(process[1:]), 3)}
    if conversion:
        told |= {"conversion_s": middle(conversion[1:]), "conversion_best_s": round(min(conversion[1:]), 3)}
        told |= {"times_real_time": middle(times[1:]), "times_real_time_best": max(times[1:])}
    return told


def middle(values: list[float]) -> float:
    """The median, rounded for reading."""
    return round(statistics.median(values), 3)


def machine() -> dict[str, Any]:
    """What the numbers were measured on, and how busy it was."""
    names = re.findall(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text(encoding="utf-8"))
    return {
        "cpu": names[0] if names else platform.processor(),
        "cores": os.cpu_count(),
        "load_before": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "date": datetime.date.today().isoformat(),
    }


if __name__ == "__main__":
    main()
