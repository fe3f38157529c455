"""A tick with a window of 20 samples x 32 columns against a tick with a linear stream of 640 columns.

    python -m benchmarks.ops.windows

Both have two other linear streams, of 7 and 6 columns. The window's sensor has a rate of 1 kHz, the others 100 Hz.
Every tick has new samples. Ticks of all engines alternate. Device time is between two events around the tick, put
behind work that keeps the GPU busy until all of it is queued: from the upload of the plan to the end of the kernel.
"""

from __future__ import annotations

import statistics
from functools import partial
from typing import Any

import numpy as np
import torch

from benchmarks.ops import device_time
from benchmarks.ops.tick import MS, T0, device_us, row
from benchmarks.report import argument_parser
from robocache_ros.engine import FusionEngine
from robocache_ros.spec import load_spec

SAMPLES, COLUMNS = 20, 32
TICK_MS, DELAY_MS = 20, 10
FAST_MS, SLOW_MS = range(1 - TICK_MS, 1), (-5, 5)  # of the samples, from the tick
WINDOW = {"align": "window", "samples": SAMPLES, "dim": COLUMNS, "rate_hz": 1000}
MEASURED = {
    f"linear, {SAMPLES * COLUMNS} columns": {"align": "linear", "dim": SAMPLES * COLUMNS, "rate_hz": 100},
    f"window, {SAMPLES} x {COLUMNS}": WINDOW,
    f"window, {SAMPLES} x {COLUMNS}, mean": {**WINDOW, "reduce": "mean"},
    f"window, {SAMPLES} x {COLUMNS}, max": {**WINDOW, "reduce": "max"},
}


class Robot:
    """An engine, and random samples for each of its ticks."""

    def __init__(self, keys: dict[str, Any]) -> None:
        array = {"type": "std_msgs/msg/Float32MultiArray", "stamp": "receive"}
        others = {"joints": 7, "force": 6}
        streams = {name: {**array, "topic": f"/{name}", "dim": dim, "rate_hz": 100} for name, dim in others.items()}
        streams["measured"] = {**array, "topic": "/measured", **keys}
        spec = {"robocache": 1, "rate_hz": 1000 // TICK_MS, "delay_ms": DELAY_MS, "streams": streams}
        self.engine = FusionEngine(load_spec(spec), "cuda")
        self.engine.advance(T0 - 1)
        rng = np.random.default_rng(0)
        self._values = {s.name: rng.normal(size=(64, s.dim)).astype(np.float32) for s in self.engine.spec.streams}

    def tick(self, k: int) -> tuple[float, float]:
        """Push the samples of tick k; returns microseconds of the tick on the GPU and on the host."""
        tick = T0 + k * TICK_MS * MS
        for stream in self.engine.spec.streams:
            for offset in FAST_MS if stream.samples else SLOW_MS:
                stamp = tick + offset * MS
                self.engine.push(stream.name, stamp, stamp, self._values[stream.name][(k + offset) % 64])
        torch.cuda.synchronize()
        return device_us(partial(self.engine.advance, tick + DELAY_MS * MS, limit=1))


def main() -> None:
    """Measure and write windows.json and windows.md."""
    parser = argument_parser(__doc__)
    parser.add_argument("--ticks", type=int, default=1000, help="Ticks of each measurement.")
    arguments = parser.parse_args()
    robots = {name: Robot(keys) for name, keys in MEASURED.items()}
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in robots}
    for k in range(arguments.ticks):
        for name, robot in robots.items():
            times[name].append(robot.tick(k))
    warm = arguments.ticks // 10
    columns = {name: tuple(map(list, zip(*each[warm:], strict=True))) for name, each in times.items()}
    rows = [row(name, device, host) for name, (device, host) in columns.items()]
    first, *others = (statistics.median(device) for device, _ in columns.values())
    for line, median in zip(rows[1:], others, strict=True):
        line["of linear"] = median / first
    rows[0]["of linear"] = 1.0
    overflow = {name: robot.engine.lost("measured").get("window_overflow", 0) for name, robot in robots.items()}
    method = "GPU: events around each tick, on a GPU that is busy until all of the tick is queued"
    extra = {"tick": "the stream, and linear streams of 7 and 6 columns", "window_overflow": overflow}
    device_time.write("windows", "Windows of fast sensors", rows, extra, arguments.out, method)


if __name__ == "__main__":
    main()
