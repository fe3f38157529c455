"""The cost of receiving a message in Python, for several ways of receiving it.

A robot's small messages (joints at 500 Hz, IMU at 200, pose at 100) and two cameras of 640x480 at 30 Hz, from one
publisher process through the shipped transport profile into one process that receives them. Each way is a run of its
own:

- executors of rclpy with a callback for each topic, typed or serialized, and a timer of 50 Hz;
- a wait set and rcl's take in a thread of its own, as `fusion_node` does it, 50 times a second;
- the same with all that the node does with a message on the CPU: decode, keep, compute ticks, but not publish.

    python -m benchmarks.ingest_cost --out benchmarks/results
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.report import argument_parser, replace
from robocache_ros.bench.live import environment, machine
from robocache_ros.bench.processes import GO, READY, STOP, Family

MODULE = "benchmarks.ingest_cost"
WARM_UP_S = 2.0


def measure(way: str, seconds: float) -> dict[str, Any]:
    """One run."""
    from benchmarks.ingest_receiver import LOAD  # here, so that --help does without ROS

    env = environment(tuned=True)
    with tempfile.TemporaryDirectory() as folder, Family(Path(folder), env) as family:
        command = [sys.executable, "-m", "benchmarks.ingest_receiver", way]
        pipe = subprocess.PIPE
        receiver = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env={**os.environ, **env})
        assert receiver.stdin is not None
        assert receiver.stdout is not None
        names = [sensor.name for sensor in LOAD.sensors]
        options = {"load": asdict(LOAD), "sensors": names, "tuned": True, "reliability": "best_effort"}
        publisher = family.start("publisher", "publisher", seconds=WARM_UP_S + seconds + 1.0, **options)
        assert receiver.stdout.readline().strip() == READY  # both processes start at the same time
        publisher.await_ready()
        publisher.send(GO)
        time.sleep(WARM_UP_S + 1.0)
        receiver.stdin.write(GO + "\n")
        receiver.stdin.flush()
        time.sleep(seconds)
        receiver.stdin.write(STOP + "\n")
        receiver.stdin.flush()
        found: dict[str, Any] = json.loads(receiver.stdout.readline())
        receiver.wait(10)
        publisher.await_ready()
        publisher.send(STOP)
        family.result(publisher)
    expected = sum(sensor.rate_hz for sensor in LOAD.sensors) * seconds
    return {"way": way, "share": found["received"] / expected, **found}


def table(rows: list[dict[str, Any]], about: dict[str, Any], seconds: float) -> str:
    """The results as a Markdown page."""
    lines = [
        "# What a message costs until Python has it",
        "",
        f"{about['cores']} cores, torch {about['torch']}, Python {about['python']}, {about['date']}; "
        f"{seconds:g} s each. `python -m {MODULE}`",
        "",
        "| way | received % | CPU, cores | us a message | latency ms p50 / p99 | interval error ms p50 / p99 / max |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        late, off = row["latency_ms"] or {}, row["interval_error_ms"]
        each = row["cpu_cores"] * seconds / max(row["received"], 1) * 1e6
        lines.append(
            f"| {row['way']} | {100 * row['share']:.1f} | {row['cpu_cores']:.3f} | {each:.0f} | "
            + " / ".join(f"{late.get(key, float('nan')):.2f}" for key in ("p50", "p99"))
            + " | "
            + (" / ".join(f"{off[key]:.2f}" for key in ("p50", "p99", "max")) if off else "-")
            + " |"
        )
    small, frames = ("{p50:.0f} / {p99:.0f}".format(**found) for found in rows[-1]["push_us"])
    lines += [
        "",
        f"Decoding and keeping a message in the node, us p50 / p99: {small} for a small one, {frames} for an image.",
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure every way, print the table and write ingest.json and ingest.md."""
    parser = argument_parser(__doc__)
    parser.add_argument("--seconds", type=float, default=15.0, help="Seconds of each way.")
    given = parser.parse_args()
    from benchmarks.ingest_receiver import WAYS

    about = {**machine(), "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())}
    rows = []
    for way in WAYS:
        rows.append(measure(way, given.seconds))
        replace(given.out / "ingest.json", json.dumps({"machine": about, "rows": rows}, indent=1) + "\n")
    text = table(rows, about, given.seconds)
    replace(given.out / "ingest.md", text)
    sys.stdout.write(text)


if __name__ == "__main__":
    main()
