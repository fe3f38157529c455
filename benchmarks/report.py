"""What every benchmark reports: progress, the machine and its other work, files that are complete at any time."""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import re
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from robocache_ros.programs import HelpFormatter

ROOT = Path(__file__).resolve().parents[1]
RESULTS = Path("benchmarks/results")  # in a checkout of the repository


def tell(text: str) -> None:
    """Print a line about the progress, with the time."""
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} {text}\n")
    sys.stderr.flush()


def argument_parser(description: str | None) -> argparse.ArgumentParser:
    """Return the arguments of a benchmark: the option --out, to which it adds its own."""
    parser = argparse.ArgumentParser(description=description, formatter_class=HelpFormatter)
    parser.add_argument("--out", type=Path, default=RESULTS, help="Folder of the results.")
    return parser


def write_results(folder: Path, name: str, results: Mapping[str, Any], page: str) -> None:
    """Replace `name`.json and `name`.md in a folder."""
    replace(folder / f"{name}.json", json.dumps(results, indent=1) + "\n")
    replace(folder / f"{name}.md", page)


def replace(path: Path, text: str) -> None:
    """Write a file as a whole, and its folder if there is none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)


# The machine of a measurement: what it is, what is installed, and what else it does at the time.


PACKAGES = ("robocache_ros", "torch", "numpy", "cupy-cuda12x", "cupy-cuda13x", "rclpy", "rosbags", "pyarrow", "av")
GPU_FACTS = ("name", "driver_version", "clocks.sm", "clocks.max.sm", "clocks.mem", "temperature.gpu", "power.draw")
BUSY_CORES = 0.5  # load of other processes above which a measurement counts as disturbed


def system() -> dict[str, Any]:
    """Return what the machine is: processor, memory, GPUs, versions and date."""
    memory = re.search(r"MemTotal:\s*(\d+)", _text("/proc/meminfo"))
    return {
        "cpu": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(int(memory[1]) / 2**20, 1) if memory else None,
        "gpus": gpus(),
        "os": platform.platform(),
        "python": platform.python_version(),
        "versions": {name: found for name in PACKAGES if (found := _version(name))},
        "cuda": torch.version.cuda,
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
    }


def gpus() -> list[dict[str, str]]:
    """Return the facts of each GPU, with its clocks at the moment; none without nvidia-smi."""
    return [dict(zip(GPU_FACTS, line, strict=True)) for line in _nvidia_smi("--query-gpu", GPU_FACTS)]


def activity() -> dict[str, Any]:
    """Return what the machine does at the moment: its load, and the processes on its GPUs."""
    processes = _nvidia_smi("--query-compute-apps", ("pid", "used_memory"))
    return {
        "load_1min": round(os.getloadavg()[0], 2),
        "gpu_processes": [pid for pid, _memory in processes],
        "gpu_clocks": [gpu["clocks.sm"] for gpu in gpus()],
    }


def disturbances(before: Mapping[str, Any], seconds: float, own_cpu_s: float, all_cpu_s: float) -> list[str]:
    """Return what disturbed a measurement, a line each.

    Args:
        before: `activity` before the measurement.
        seconds: how long it took.
        own_cpu_s: processor time of the measurement and its children.
        all_cpu_s: processor time of all processes of the machine.
    """
    found = []
    others = (all_cpu_s - own_cpu_s) / seconds if seconds > 0 else 0.0
    if others > BUSY_CORES:
        found.append(f"other processes used {others:.1f} cores")
    if before["gpu_processes"]:
        found.append(f"other processes on the GPU: {', '.join(before['gpu_processes'])}")
    return found


def children_seconds() -> float:
    """Return the processor time of the processes that this one has started, and that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def busy_seconds() -> float:
    """Return the processor time of all processes since the machine started."""
    first = _text("/proc/stat").partition("\n")[0].split()[1:]
    user, nice, kernel, _idle, _wait, *interrupts = (int(ticks) for ticks in first[:8])
    return (user + nice + kernel + sum(interrupts[:2])) / os.sysconf("SC_CLK_TCK")


def _processor() -> str:
    names = re.findall(r"model name\s*:\s*(.+)", _text("/proc/cpuinfo"))
    return names[0] if names else platform.processor()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError:
        return ""


def _nvidia_smi(query: str, fields: Sequence[str]) -> list[list[str]]:
    command = ["nvidia-smi", f"{query}={','.join(fields)}", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return []
    lines = done.stdout.splitlines() if done.returncode == 0 else []
    rows = [[cell.strip() for cell in line.split(",")] for line in lines]
    return [row for row in rows if len(row) == len(fields)]


# The machine of a measurement, and commands that print what they measured.


def machine() -> dict[str, Any]:
    """The machine of the measurement, and its load before."""
    return {
        "cpu": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "load_before": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "date": datetime.date.today().isoformat(),
    }


def table(head: Iterable[Any], rows: Iterable[Iterable[Any]]) -> list[str]:
    """The lines of a Markdown table."""
    head = list(head)
    return [f"| {' | '.join(map(str, row))} |" for row in (head, ["---"] * len(head), *rows)]


def middle(values: Sequence[float]) -> float:
    """The median, rounded for reading."""
    return round(statistics.median(values), 3)


def json_of(python: str, script: Path | str, *arguments: str) -> dict[str, Any]:
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
