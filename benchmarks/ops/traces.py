"""Traces of a tick of the fusion engine: every kernel, copy and Python call on one timeline.

    python -m benchmarks.ops.traces [--out FOLDER] [--ticks 20]

Writes tick_trace.json, which https://ui.perfetto.dev and chrome://tracing draw, and profile.json and profile.md with
the time of each kernel. Nsight Systems profiles the same ticks, each an NVTX range, with
`nsys profile -t cuda,nvtx python -m benchmarks.ops.traces --no-trace`.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.ops import device_time
from benchmarks.ops.tick import MS, T0, Robot, make_spec
from robocache_ros.engine import FusionEngine
from robocache_ros.programs import HelpFormatter

WARM_UP = 20  # ticks before those of the trace


def run_ticks(engine: FusionEngine, robot: Robot, first: int, ticks: int) -> None:
    """Feed and compute ticks, each as an NVTX range."""
    for k in range(first, first + ticks):
        with torch.cuda.nvtx.range(f"tick {k}"):
            now = robot.feed(engine, k)
            engine.advance(now + 5 * MS, limit=1)
    torch.cuda.synchronize()


def kernels(events: Any, ticks: int) -> list[dict[str, Any]]:
    """Return the time of each kernel and copy, the longest first."""
    found = [
        {"what": event.key, "calls a tick": event.count / ticks, "us a tick": event.self_device_time_total / ticks}
        for event in events
        if event.device_type.name == "CUDA" and event.self_device_time_total
    ]
    return sorted(found, key=lambda row: -row["us a tick"])


def main() -> None:
    """Run ticks under the profiler of torch, and write the trace and the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=HelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("bench-results"), help="Folder of the trace and the table.")
    parser.add_argument("--ticks", type=int, default=20, help="Ticks of the trace.")
    parser.add_argument("--no-trace", action="store_true", help="Only run the ticks, for a profiler outside.")
    given = parser.parse_args()
    engine, robot = FusionEngine(make_spec(), "cuda"), Robot()
    engine.advance(T0 - 1)
    run_ticks(engine, robot, 0, WARM_UP)
    if given.no_trace:
        run_ticks(engine, robot, WARM_UP, given.ticks)
        return
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as trace:
        run_ticks(engine, robot, WARM_UP, given.ticks)
    given.out.mkdir(parents=True, exist_ok=True)
    trace.export_chrome_trace(str(given.out / "tick_trace.json"))
    tools = {tool: str(shutil.which(tool) is not None) for tool in ("nsys", "ncu")}
    rows = kernels(trace.key_averages(), given.ticks)
    device_time.write("profile", "Kernels and copies of a tick", rows, tools, given.out, "the profiler of torch")


if __name__ == "__main__":
    main()
