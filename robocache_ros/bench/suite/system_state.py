"""The machine of a measurement: what it is, what is installed, and what else it does at the time."""

from __future__ import annotations

import datetime
import os
import platform
import re
import subprocess
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

PACKAGES = ("robocache_ros", "torch", "numpy", "cupy-cuda12x", "cupy-cuda13x", "rclpy", "rosbags", "pyarrow", "av")
GPU_FACTS = ("name", "driver_version", "clocks.sm", "clocks.max.sm", "clocks.mem", "temperature.gpu", "power.draw")
BUSY_CORES = 0.5  # load of other processes above which a measurement counts as disturbed


def system() -> dict[str, Any]:
    """Return what the machine is: processor, memory, GPUs, versions and date."""
    names = re.findall(r"model name\s*:\s*(.+)", _text("/proc/cpuinfo"))
    memory = re.search(r"MemTotal:\s*(\d+)", _text("/proc/meminfo"))
    return {
        "cpu": names[0] if names else platform.processor(),
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


def busy_seconds() -> float:
    """Return the processor time of all processes since the machine started."""
    first = _text("/proc/stat").partition("\n")[0].split()[1:]
    user, nice, kernel, _idle, _wait, *interrupts = (int(ticks) for ticks in first[:8])
    return (user + nice + kernel + sum(interrupts[:2])) / os.sysconf("SC_CLK_TCK")


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
