"""The machine of a measurement, and commands that print what they measured."""

from __future__ import annotations

import datetime
import json
import os
import platform
import re
import statistics
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
RESULTS = Path("benchmarks/results")  # in a checkout of the repository


def machine() -> dict[str, Any]:
    """The machine of the measurement, and its load before."""
    names = re.findall(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text(encoding="utf-8"))
    return {
        "cpu": names[0] if names else platform.processor(),
        "cores": os.cpu_count(),
        "load_before": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "date": datetime.date.today().isoformat(),
    }


def middle(values: Sequence[float]) -> float:
    """The median, rounded for reading."""
    return round(statistics.median(values), 3)


def told(python: str, script: Path | str, *arguments: str) -> dict[str, Any]:
    """Run a script or a module of this package; return the JSON object of its last line."""
    how = ["-m", script] if isinstance(script, str) else [str(script)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    if isinstance(script, str):
        environment["PYTHONPATH"] = str(ROOT)
    done = subprocess.run([python, *how, *arguments], capture_output=True, text=True, env=environment)
    if done.returncode:
        raise SystemExit(f"{script} {' '.join(arguments)}: exit status {done.returncode}\n{done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found
