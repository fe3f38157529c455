"""The rows of the benchmark of the loader on a GPU, and its results as JSON and Markdown."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from robocache_ros.bench.loading.trajectory_file import SECONDS, STREAMS
from robocache_ros.bench.ops import device_time
from robocache_ros.bench.result_files import replace

Row = dict[str, Any]


def row(what: str, measured: float, unit: str, target: str, **more: Any) -> Row:
    """One line of the table, which is also printed at once."""
    found = {"what": what, "measured": round(measured, 4), "unit": unit, "target": target, **more}
    sys.stdout.write(f"{found}\n")
    sys.stdout.flush()
    return found


def write(rows: list[Row], folder: Path) -> None:
    """Write loading_on_gpu.json and .md."""
    method = "trajectories/s and frames/s: wall time over whole epochs, on the host; us: medians of CUDA-graph replays"
    about = {**device_time.machine(), "cores": str(os.cpu_count())}
    streams = ", ".join(f"{name} {width} columns at {hz} Hz" for name, (hz, width) in STREAMS.items())
    text = {"machine": about, "method": method, "trajectories": f"{SECONDS} s: {streams}", "rows": rows}
    replace(folder / "loading_on_gpu.json", json.dumps(text, indent=1) + "\n")
    lines = [
        "# The loader on a GPU",
        "",
        ", ".join(about.values()) + ".",
        "",
        f"Trajectories of {text['trajectories']}.",
        "",
    ]
    lines += [f"{method}.", "", "| | measured | target | |", "| --- | --- | --- | --- |"]
    for each in rows:
        rest = ", ".join(
            f"{key} {value}" for key, value in each.items() if key not in ("what", "measured", "unit", "target")
        )
        lines.append(f"| {each['what']} | {each['measured']:,.2f} {each['unit']} | {each['target']} | {rest} |")
    replace(folder / "loading_on_gpu.md", "\n".join(lines) + "\n")
