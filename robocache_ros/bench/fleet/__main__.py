"""What an export with Ray costs beside its conversions, and how it scales; a model of up to 256 workers.

    python -m robocache_ros.bench.fleet [--episodes 10000] [--out benchmarks/results] [--image docs/images]

Measures, on this machine: the driver with episodes of nothing, and exports of short recordings by 1, 2 and 4 workers.
A model of these times is compared with the exports, and extended to machines that read from a bucket. Writes
fleet.json and fleet.md, and fleet.png.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from robocache_ros.bench.export.machine import RESULTS, machine
from robocache_ros.bench.fleet.fleet_report import draw, report
from robocache_ros.bench.fleet.measure_ray import conversions, driver_cost, fleet, recordings_in
from robocache_ros.bench.fleet.scaling import Costs, end_of_linear, speedups
from robocache_ros.programs import HelpFormatter

WORKERS = (1, 2, 4)
MODELLED = tuple(range(1, 257))
RECORDINGS = 10_000  # of the model
LONG_S = 30.0  # length of the longer recordings of the model
REQUESTS = 40  # of a recording: reads of 8 MB, the files of its piece, and its records


def main() -> None:
    """Measure, compare with the model, and write the results."""
    given = _arguments()
    if given.recordings < 4:
        raise SystemExit("--recordings: use 4 or more")
    result: dict[str, Any] = {"machine": machine(), "seconds": given.seconds, "recordings": given.recordings}
    with fleet(), tempfile.TemporaryDirectory(prefix="robocache-fleet-") as scratch:
        folder = Path(scratch)
        result["driver"] = {"episodes": given.episodes, **driver_cost(given.episodes)}
        bags = recordings_in(folder, given.recordings, given.seconds, given.cameras)
        size = sum(file.stat().st_size for file in bags[0].iterdir())
        few = bags[: given.recordings // 4]
        conversions(bags, given.cameras, 4, folder / "first")  # whose workers import what conversions import
        few_s = conversions(few, given.cameras, 4, folder / "few")["merge_s"]
        measured = {workers: conversions(bags, given.cameras, workers, folder / f"set{workers}") for workers in WORKERS}
    one, cores = measured[1], os.cpu_count() or 1
    costs = Costs(
        task_s=one["task_s"],
        driver_s=result["driver"]["cpu_seconds"],
        merge_s=max(0.0, measured[4]["merge_s"] - few_s) / (given.recordings - len(few)),
        start_s=max(0.0, one["convert_s"] - given.recordings * one["task_s"]),
        core_s=one["task_cpu_s"] / cores,
    )
    result["measured"] = {
        workers: {**found, "model_s": costs.seconds(given.recordings, workers) - given.recordings * costs.merge_s}
        for workers, found in measured.items()
    }
    bucket = replace(
        costs,
        core_s=0.0,
        start_s=given.start_s,
        read_bytes=size,
        written_bytes=size / 20,
        requests=REQUESTS,
        latency_s=given.latency_ms / 1e3,
        worker_bytes_s=given.worker_mb_s * 1e6,
        bucket_bytes_s=given.bucket_gb_s * 1e9,
    )
    times = LONG_S / given.seconds
    longer = replace(bucket, task_s=times * costs.task_s, read_bytes=times * size, written_bytes=times * size / 20)
    result["model"] = [
        _modelled(f"recordings of {seconds:g} s", each) for seconds, each in ((given.seconds, bucket), (LONG_S, longer))
    ]
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "fleet.json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    text = report(result)
    (given.out / "fleet.md").write_text(text, encoding="utf-8")
    draw(result, given.image / "fleet.png")
    print(text)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=HelpFormatter)
    parser.add_argument("--episodes", type=int, default=10_000, help="Episodes of nothing.")
    parser.add_argument("--recordings", type=int, default=16, help="Recordings that are exported.")
    parser.add_argument("--seconds", type=float, default=2.0, help="Length of each.")
    parser.add_argument("--cameras", type=int, default=1, help="Cameras of 640x480 at 30 Hz in each.")
    parser.add_argument("--latency-ms", type=float, default=30.0, help="Of the model: a request to the bucket.")
    parser.add_argument("--worker-mb-s", type=float, default=90.0, help="Of the model: bandwidth of a worker.")
    parser.add_argument("--bucket-gb-s", type=float, default=12.5, help="Of the model: bandwidth of the bucket.")
    parser.add_argument("--start-s", type=float, default=60.0, help="Of the model: until machines have started.")
    parser.add_argument("--out", type=Path, default=RESULTS, help="Folder of the results.")
    parser.add_argument("--image", type=Path, default=Path("docs/images"), help="Folder of the plot.")
    return parser.parse_args()


def _modelled(name: str, costs: Costs) -> dict[str, Any]:
    last, limit = end_of_linear(costs, RECORDINGS, MODELLED[-1])
    return {
        "name": name,
        "recordings": RECORDINGS,
        "costs": asdict(costs),
        "recording_s": costs.recording_s,
        "linear_to": last,
        "limit": limit,
        "seconds_at": {count: costs.seconds(RECORDINGS, count) for count in (1, 16, 64, 256)},
        "workers": MODELLED,
        "speedups": speedups(costs, RECORDINGS, MODELLED),
    }


if __name__ == "__main__":
    main()
